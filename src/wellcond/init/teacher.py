"""A larger model's parameters, by canonical path and read one at a time; and which part of each a student takes.

The part is a sub-array; inside a fused parameter Q, K and V are cut separately.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from wellcond._core.keyed_random import Draw
from wellcond.attention.find import attention_layers
from wellcond.attention.layers import AttentionLayers
from wellcond.attention.layouts import Layout, on_matrix
from wellcond.attention.paths import join, walk
from wellcond.attention.roles import QKV
from wellcond.attention.storage import FLOAT_DTYPES, full
from wellcond.checkpoint.safetensors_files import Source
from wellcond.errors import CheckpointError, NoAttentionError, SchemeError

SelectionMethod = Literal["uniform", "consecutive", "random"]


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


def walk_parameters(root: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Yield every parameter as `(canonical path, parameter)`, a tied one under each of its names."""
    for path, module in walk(root):
        yield from ((join(path, name), value) for name, value in module._parameters.items() if value is not None)


@contextmanager
def open_teacher(teacher: Any) -> Iterator[Teacher]:
    """Open a teacher; refuse what is neither a model nor readable safetensors."""
    if isinstance(teacher, nn.Module):
        values = dict(walk_parameters(teacher))
        yield Teacher(frozenset(values), values.__getitem__)
        return
    if not isinstance(teacher, (str, os.PathLike)):
        raise SchemeError(f"a teacher is a model or the path of a safetensors file, got {type(teacher).__name__}")
    with ExitStack() as stack:
        source = Source.open(Path(teacher), stack)
        yield Teacher(frozenset(source.handles), source.read)


@dataclass(frozen=True)
class Selection:
    """Which indices of a larger axis a smaller one takes."""

    method: SelectionMethod
    seed: int

    def indices(self, t: int, s: int) -> Tensor:
        """`s` of `t` indices, rising."""
        if self.method == "consecutive":
            return torch.arange(s)
        if self.method == "random":
            generator = Draw(self.seed, "weight selection").generator(f"{t} to {s}")
            return torch.randperm(t, generator=generator)[:s].sort().values
        return uniform_indices(t, s)


def uniform_indices(t: int, s: int) -> Tensor:
    """Evenly spread indices.

    >>> uniform_indices(6, 3), uniform_indices(5, 3)
    (tensor([0, 2, 4]), tensor([0, 2, 4]))
    """
    if t % s == 0:
        return torch.arange(s) * (t // s)
    return torch.linspace(0, t - 1, s, dtype=torch.float64).round().long()


def select(path: str, value: Tensor, shape: tuple[int, ...], parts: FusedParts | None, selection: Selection) -> Tensor:
    """Index every axis of a teacher's tensor down to the student's shape."""
    if value.ndim != len(shape) or any(t < s for t, s in zip(value.shape, shape, strict=False)):
        raise CheckpointError(f"'{path}': the teacher's {tuple(value.shape)} is smaller than the student's {shape}")
    for axis, (t, s) in enumerate(zip(value.shape, shape, strict=True)):
        if parts is not None and axis == parts.axis:
            value = value.index_select(axis, parts.indices(path, t, s, selection))
        elif t != s:
            value = value.index_select(axis, selection.indices(t, s))
    return value


@dataclass(frozen=True)
class FusedParts:
    """The rows of Q, K and V in a fused parameter, for the student and, if it is a model, for the teacher."""

    axis: int
    student: tuple[Layout, ...]
    teacher: tuple[Layout, ...] | None

    def indices(self, path: str, t: int, s: int, selection: Selection) -> Tensor:
        """Teacher index of every student index along the fused axis."""
        index = torch.empty(s, dtype=torch.long)
        teachers = self.teacher or self._guess(path, t)
        for ours, theirs in zip(self.student, teachers, strict=True):
            mine, yours = _places(ours), _places(theirs)
            if len(yours) < len(mine):
                raise CheckpointError(f"'{path}': a part of the teacher has {len(yours)} rows, the student {len(mine)}")
            index[mine] = yours[selection.indices(len(yours), len(mine))]
        return index

    def _guess(self, path: str, t: int) -> tuple[Layout, ...]:
        """A file does not say where its heads lie; equal blocks one after the other can be told from the sizes."""
        sizes = {layout.heads * layout.width for layout in self.student}
        blocks = all(_places(layout).diff().eq(1).all() for layout in self.student)
        if len(sizes) > 1 or not blocks or t % len(self.student):
            raise SchemeError(
                f"'{path}' mixes Q, K and V in an order that a file does not tell; give the teacher as a model"
            )
        size = t // len(self.student)
        order = sorted(range(len(self.student)), key=lambda i: self.student[i].starts[0])
        rank = {i: position for position, i in enumerate(order)}
        return tuple(Layout((rank[i] * size,), size) for i in range(len(self.student)))


def _places(layout: Layout) -> Tensor:
    starts = torch.tensor(layout.starts)[:, None]
    return (starts + layout.step * torch.arange(layout.width)).flatten()


def fused_parts(layers: AttentionLayers, teacher: Any) -> dict[str, FusedParts]:
    """Return the fused parameters of the student, weights and biases, by path."""
    ours = _fused_layouts(layers)
    theirs: dict[str, tuple[int, tuple[Layout, ...]]] = {}
    if isinstance(teacher, nn.Module):
        try:
            theirs = _fused_layouts(attention_layers(teacher))
        except NoAttentionError as error:
            raise SchemeError(f"the teacher: {error}") from error
    return {
        path: FusedParts(axis, layouts, theirs[path][1] if path in theirs else None)
        for path, (axis, layouts) in ours.items()
    }


def _fused_layouts(layers: AttentionLayers) -> dict[str, tuple[int, tuple[Layout, ...]]]:
    found: dict[str, list[tuple[int, Layout]]] = {}
    for layer in layers:
        for _, projection in layer.projections(*QKV):
            slot = projection.weight
            layout = on_matrix(slot.layout)
            found.setdefault(slot.path, []).append((layout.axis, layout))
            if projection.bias is not None and projection.bias_layout is not None:
                found.setdefault(projection.bias, []).append((0, projection.bias_layout))
    return {path: (items[0][0], tuple(i[1] for i in items)) for path, items in found.items() if len(items) > 1}
