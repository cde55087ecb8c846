"""Weight selection: a small model starts from some of a large one's numbers."""

from __future__ import annotations

import re
from collections.abc import Callable, Container, Iterator
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from wellcond.attention.find import AttentionLayers, attention_layers
from wellcond.attention.layouts import Layout
from wellcond.attention.paths import join, walk
from wellcond.draw import Draw
from wellcond.errors import CheckpointError, NoAttentionError, SchemeError
from wellcond.schemes.base import Scheme, register
from wellcond.schemes.teacher import open_teacher

Method = Literal["uniform", "consecutive", "random"]
# The classifier, by a whole word: the published rule, "contains head", would also skip torch's `multihead_attn`, and
# miss the names that transformers uses.
HEAD = re.compile(r"(^|[._])(heads?|classifier|score|qa_outputs)([._]|$)")


@register(
    "weight_selection",
    citation="Xu et al. 2024 (Initializing Models with Larger Ones), arXiv 2311.18823",
    published="uniform, first layers, every parameter but the head, fused weights as one; ViT-S (IN-21k) to ViT-T",
)
@dataclass(frozen=True)
class WeightSelection(Scheme):
    """Every parameter but the head is a sub-array of the teacher's parameter of the same name.

    Uniform: with teacher size t and student size s on an axis, the indices j·t/s if s divides t, else s points spread
    evenly over 0…t−1 and rounded.

    Args:
        teacher: a model, or the path of a safetensors file or of a directory with an index.
        method: `"uniform"`; `"consecutive"`: the first s; `"random"`: sorted, the same for every axis of equal sizes.
        blockwise: choose inside Q, K and V of a fused weight separately. `False` treats it as one tensor, as published:
            the same for integer ratios, otherwise not.
        depth: `"first"`: layers of the same name; `"uniform"`: spread over the teacher's depth.
    """

    teacher: Any
    method: Method = "uniform"
    blockwise: bool = True
    depth: Literal["first", "uniform"] = "first"

    composable = False

    def parameters(
        self, layers: AttentionLayers, seed: int, wanted: Container[str] | None = None
    ) -> Iterator[tuple[str, Tensor]]:
        """Select from every teacher parameter that has a namesake."""
        root = layers[0].root
        assert root is not None
        whole = attention_layers(root)
        inside, picked = _region(layers), _Selection(self.method, seed)
        parts = _fused_parts(whole, self.teacher) if self.blockwise else {}
        with open_teacher(self.teacher) as teacher:
            names = _layer_map(whole, teacher.names) if self.depth == "uniform" else {}
            for path, parameter in _parameters(root):
                if not HEAD.search(path) and inside(path) and (wanted is None or path in wanted):
                    value = teacher.read(_rename(path, names), path)
                    yield path, _select(path, value, tuple(parameter.shape), parts.get(path), picked)


def _region(layers: AttentionLayers) -> Callable[[str], bool]:
    """Which parameters are meant: all, or those of the chosen layers' blocks."""
    if not layers.filtered:
        return lambda path: True
    names = [layer.block.name if layer.block else layer.name for layer in layers]
    return lambda path: any(not name or path.startswith(name + ".") for name in names)


def _parameters(root: nn.Module) -> Iterator[tuple[str, Tensor]]:
    seen: set[int] = set()
    for path, module in walk(root):
        for name, value in module._parameters.items():
            if value is not None and id(value) not in seen:
                seen.add(id(value))
                yield join(path, name), value


@dataclass(frozen=True)
class _Selection:
    method: Method
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


def _select(path: str, value: Tensor, shape: tuple[int, ...], parts: _Parts | None, selection: _Selection) -> Tensor:
    """Index every axis of a teacher's tensor down to the student's shape."""
    if value.ndim != len(shape) or any(t < s for t, s in zip(value.shape, shape, strict=False)):
        raise CheckpointError(f"'{path}': the teacher's {tuple(value.shape)} is smaller than the student's {shape}")
    for axis, (t, s) in enumerate(zip(value.shape, shape, strict=True)):
        if parts is not None and axis == parts.axis:
            index = parts.indices(path, t, s, selection)
        elif t == s:
            continue
        else:
            index = selection.indices(t, s)
        value = value.index_select(axis, index)
    return value


@dataclass(frozen=True)
class _Parts:
    """The rows of Q, K and V in a fused parameter, for the student and, if it is a model, for the teacher."""

    axis: int
    student: tuple[Layout, ...]
    teacher: tuple[Layout, ...] | None

    def indices(self, path: str, t: int, s: int, selection: _Selection) -> Tensor:
        """Teacher index of every student index along the fused axis."""
        index = torch.empty(s, dtype=torch.long)
        teachers = self.teacher or self._guess(path, t, s)
        for ours, theirs in zip(self.student, teachers, strict=True):
            mine, yours = _places(ours), _places(theirs)
            if len(yours) < len(mine):
                raise CheckpointError(f"'{path}': a part of the teacher has {len(yours)} rows, the student {len(mine)}")
            index[mine] = yours[selection.indices(len(yours), len(mine))]
        return index

    def _guess(self, path: str, t: int, s: int) -> tuple[Layout, ...]:
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


def _fused_parts(layers: AttentionLayers, teacher: Any) -> dict[str, _Parts]:
    """The fused parameters of the student, weights and biases, by path."""
    ours = _fused_layouts(layers)
    theirs: dict[str, tuple[int, tuple[Layout, ...]]] = {}
    if isinstance(teacher, nn.Module):
        try:
            theirs = _fused_layouts(attention_layers(teacher))
        except NoAttentionError as error:
            raise SchemeError(f"the teacher: {error}") from error
    return {
        path: _Parts(axis, layouts, theirs[path][1] if path in theirs else None)
        for path, (axis, layouts) in ours.items()
    }


def _fused_layouts(layers: AttentionLayers) -> dict[str, tuple[int, tuple[Layout, ...]]]:
    found: dict[str, list[tuple[int, Layout]]] = {}
    for layer in layers:
        for _, projection in layer.projections("query", "key", "value"):
            slot = projection.weight
            found.setdefault(slot.path, []).append((slot.layout.axis, slot.layout))
            if projection.bias is not None and projection.bias_layout is not None:
                found.setdefault(projection.bias, []).append((0, projection.bias_layout))
    return {path: (items[0][0], tuple(i[1] for i in items)) for path, items in found.items() if len(items) > 1}


def _layer_map(layers: AttentionLayers, teacher: frozenset[str]) -> dict[str, str]:
    """Student block → teacher block, spread over the teacher's depth, for one numbered stack."""
    names = [block.name for block in layers.blocks]
    prefixes = {name.rpartition(".")[0] for name in names}
    if len(prefixes) != 1:
        raise SchemeError(f"depth='uniform' needs one numbered stack of blocks, found {sorted(prefixes)}")
    prefix = prefixes.pop()
    pattern = re.compile(re.escape(prefix + ".") + r"(\d+)\.")
    depth = 1 + max((int(m.group(1)) for key in teacher if (m := pattern.match(key))), default=-1)
    if depth < len(names):
        raise CheckpointError(f"the teacher has {depth} blocks under '{prefix}', the student {len(names)}")
    chosen = uniform_indices(depth, len(names)).tolist()
    return {name: f"{prefix}.{index}" for name, index in zip(names, chosen, strict=True)}


def _rename(path: str, names: dict[str, str]) -> str:
    for ours, theirs in names.items():
        if path.startswith(ours + "."):
            return theirs + path.removeprefix(ours)
    return path
