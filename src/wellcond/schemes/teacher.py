"""A teacher's weights by canonical path, from a model or from safetensors."""

from __future__ import annotations

import os
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from wellcond.attention.paths import join, walk
from wellcond.checkpoint import Source
from wellcond.errors import SchemeError


def read_teacher(teacher: Any) -> dict[str, Tensor]:
    """Return every parameter of a teacher; refuse what is neither a model nor readable safetensors."""
    if isinstance(teacher, nn.Module):
        return {
            join(path, name): value
            for path, module in walk(teacher)
            for name, value in module._parameters.items()
            if value is not None
        }
    if not isinstance(teacher, (str, os.PathLike)):
        raise SchemeError(f"a teacher is a model or the path of a safetensors file, got {type(teacher).__name__}")
    with ExitStack() as stack:
        source = Source.open(Path(teacher), stack)
        return {name: source.read(name) for name in source.handles}
