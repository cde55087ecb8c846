"""`wc.head_blocks`: which numbers of which parameter belong to which head, for optimizers that work head by head."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import Tensor, nn

from wellcond._core.checked import checked
from wellcond.attention.find import attention_layers, chosen_layers, from_structure
from wellcond.attention.head_blocks import HeadBlock, HeadBlocks
from wellcond.attention.layers import AttentionLayers, LayerFilter
from wellcond.attention.layouts import AnyLayout, Layout, Strided, as_matrix
from wellcond.attention.paths import join, resolve, unwrap, walk
from wellcond.attention.storage import split_path


@checked
def head_blocks(model: nn.Module, inputs: Any = None, layers: LayerFilter = None) -> HeadBlocks:
    """Return the blocks of every matrix of a model: one a head in attention, one where there are no heads.

    From the views of `attention_layers` alone, whatever the storage: fused, head-interleaved, transposed, grouped.
    Attention that no adapter knows (latent attention, one's own classes) needs a batch, or layers that one has shown;
    without, its matrices are one block each.

    Args:
        model: any model, wrapped or not.
        inputs: a batch for it, which verifies the views.
        layers: a name, a pattern or several, or layers of `wc.attention_layers(model, batch)`; all if None.

    >>> import torch, wellcond as wc
    >>> blocks = wc.head_blocks(torch.nn.MultiheadAttention(8, 2))
    >>> {name: (len(parts), parts[0].axis, parts[-1].role) for name, parts in blocks.items()}
    {'in_proj_weight': (6, 0, 'value'), 'out_proj.weight': (2, 1, 'output')}
    >>> blocks["in_proj_weight"][1].indices
    range(4, 8)
    """
    if inputs is not None:
        views = attention_layers(model, inputs).select(layers)
    else:
        views = from_structure(model) if layers is None else chosen_layers(model, layers)
    cuts = _cuts(views)
    found, notes = dict[str, tuple[HeadBlock, ...]](), list[tuple[str, str]]()
    for name, parameter in matrices(unwrap(model)).items():
        parts = cuts.get(id(parameter), [])
        found[name], reason = _partition(parameter, parts)
        if reason:
            notes.append((name, reason))
    return HeadBlocks(found, tuple(notes))


def matrices(root: nn.Module) -> dict[str, Tensor]:
    """Every parameter that is a matrix or a bank of matrices, once, by its canonical name."""
    found: dict[int, tuple[str, Tensor]] = {}
    for path, module in walk(root):
        for name, parameter in module._parameters.items():
            if parameter is not None and is_matrix(module, parameter):
                found.setdefault(id(parameter), (join(path, name), parameter))
    return dict(found.values())


def is_matrix(module: nn.Module, parameter: Tensor) -> bool:
    """Whether a parameter is a matrix, a bank `(count, m, n)`, a table, or a kernel of one pixel; vectors are not."""
    if parameter.ndim < 2 or parameter.numel() == max(parameter.shape):
        return False
    kernel = isinstance(module, (nn.Conv1d, nn.Conv2d, nn.ConvTranspose1d, nn.ConvTranspose2d))
    return parameter.shape[2:].numel() == 1 or (parameter.ndim == 3 and not kernel)


def _cuts(layers: AttentionLayers) -> dict[int, list[HeadBlock]]:
    """The blocks of heads in each parameter, by its identity; of weights that layers share, once."""
    found: dict[int, list[HeadBlock]] = {}
    for layer in layers:
        if layer.standing == "refused":
            continue
        for role, projection in layer.projections():
            stored = _trained(layer.root, projection.weight.path)
            if stored is None:
                continue
            mine = found.setdefault(id(stored), [])
            known = {block.layout for block in mine}
            for head, layout in enumerate(_single(projection.weight.layout)):
                if layout not in known:
                    mine.append(HeadBlock(layer.name, role, head, layout))
    return found


def _trained(root: nn.Module | None, path: str) -> Tensor | None:
    """The parameter behind a weight: itself, or what a parametrisation of the same shape is computed from."""
    assert root is not None
    owner_path, name = split_path(path)
    owner = resolve(root, owner_path)
    parametrized = getattr(owner, "parametrizations", {})
    if name in parametrized:
        original = getattr(parametrized[name], "original", None)
        return original if isinstance(original, Tensor) and original.shape == getattr(owner, name).shape else None
    return owner._parameters.get(name)


def _single(layout: AnyLayout) -> list[AnyLayout]:
    """One layout for each head."""
    if isinstance(layout, Layout):
        return [Layout((start,), layout.width, layout.step, layout.axis) for start in layout.starts]
    return [Strided((s,), layout.rows, layout.width, layout.row_step, layout.step) for s in layout.starts]


def _partition(parameter: Tensor, parts: list[HeadBlock]) -> tuple[tuple[HeadBlock, ...], str]:
    """The blocks of a parameter in storage order, rows that no head has among them; or one, and why."""
    if not parts:
        return (HeadBlock(),), ""
    layer = parts[0].layer
    layouts = [part.layout for part in parts]
    if all(isinstance(layout, Strided) for layout in layouts):
        total = sum(layout.rows * layout.width for layout in layouts if isinstance(layout, Strided))
        if total == parameter.numel():
            return tuple(sorted(parts, key=_start)), ""
        return (HeadBlock(layer),), "heads are a part of a parameter of more than two axes"
    axes = {part.axis for part in parts}
    if len(axes) > 1 or None in axes:
        return (HeadBlock(layer),), "its heads are rows for one role and columns for another"
    axis = axes.pop()
    assert axis is not None
    claimed = sorted(i for part in parts for i in part.indices or ())
    if len(set(claimed)) < len(claimed):
        return (HeadBlock(layer),), "two of its heads overlap"
    free = sorted(set(range(as_matrix(parameter).shape[axis])) - set(claimed))
    rest = [HeadBlock(layer, layout=Layout((first,), width, axis=axis)) for first, width in _runs(free)]
    return tuple(sorted([*parts, *rest], key=_start)), ""


def _start(block: HeadBlock) -> int:
    return block.layout.starts[0] if block.layout is not None else 0


def _runs(numbers: list[int]) -> Iterator[tuple[int, int]]:
    """First number and length of each run of consecutive numbers."""
    first = 0
    for end in range(1, len(numbers) + 1):
        if end == len(numbers) or numbers[end] != numbers[end - 1] + 1:
            yield numbers[first], end - first
            first = end
