"""A teacher's weights by canonical path, from a model or from safetensors, read one at a time."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from wellcond.attention.paths import join, walk
from wellcond.attention.storage import FLOAT_DTYPES, full
from wellcond.checkpoint.safetensors_files import Source
from wellcond.errors import CheckpointError, SchemeError


@dataclass(frozen=True)
class Teacher:
    """The names of a teacher's parameters, and how to read one."""

    names: frozenset[str]
    get: Callable[[str], Tensor]

    def read(self, name: str, student: str) -> Tensor:
        """Return a parameter on the CPU; refuse one that is missing, quantised or not finite."""
        if name not in self.names:
            raise CheckpointError(f"the teacher has no '{name}' for the student's '{student}': is it the same family?")
        value = full(self.get(name))
        if value.is_meta:
            raise CheckpointError(f"the teacher's '{name}' is on the meta device: it has no numbers yet")
        if value.dtype not in FLOAT_DTYPES:
            raise CheckpointError(f"the teacher's '{name}' is stored as {value.dtype}: quantised or integer")
        if not torch.isfinite(value).all():
            raise CheckpointError(f"the teacher's '{name}' has entries that are not finite")
        return value.cpu()


@contextmanager
def open_teacher(teacher: Any) -> Iterator[Teacher]:
    """Open a teacher; refuse what is neither a model nor readable safetensors."""
    if isinstance(teacher, nn.Module):
        values = {
            join(path, name): value
            for path, module in walk(teacher)
            for name, value in module._parameters.items()
            if value is not None
        }
        yield Teacher(frozenset(values), values.__getitem__)
        return
    if not isinstance(teacher, (str, os.PathLike)):
        raise SchemeError(f"a teacher is a model or the path of a safetensors file, got {type(teacher).__name__}")
    with ExitStack() as stack:
        source = Source.open(Path(teacher), stack)
        yield Teacher(frozenset(source.handles), source.read)
