"""The pieces of a ten-line adapter: projections from sub-modules, and a view from projections.

Paths are relative to the attention module; the storage order (`nn.Linear`'s `(out, in)` or Conv1D's `(in, out)`) and
the presence of a bias are read off the sub-module.
"""

from __future__ import annotations

from collections.abc import Iterable

from torch import nn

from wellcond.attention.blocks import in_out, is_transposed
from wellcond.attention.layouts import Layout, contiguous, interleaved
from wellcond.attention.paths import join, resolve
from wellcond.attention.projection import Projection, Slot
from wellcond.attention.replay import Replay
from wellcond.attention.view import AttentionLayer
from wellcond.errors import WeightError


def _child(module: nn.Module, name: str, child: str) -> nn.Module:
    try:
        return resolve(module, child)
    except KeyError as error:
        raise WeightError(f"'{name}' ({type(module).__name__}) has no child '{child}'; check describe") from error


def _split(module: nn.Module, name: str, child: str, size: int, heads: int) -> int:
    if heads < 1 or size % heads:
        raise WeightError(f"'{join(name, child)}': {size} does not split into {heads} heads; check the head count")
    return size // heads


def part(module: nn.Module, name: str, child: str, layout: Layout) -> Projection:
    """A query, key or value that lies in the linear-like sub-module `child` at `layout` (its axis is set here)."""
    linear = _child(module, name, child)
    size = in_out(linear)[1]
    if layout.stop > size:
        raise WeightError(
            f"'{join(name, child)}' ({type(linear).__name__}) has {size} outputs, but {layout.heads} heads of width "
            f"{layout.width} need {layout.stop}; check the head count"
        )
    placed = Layout(layout.starts, layout.width, layout.step, axis=int(is_transposed(linear)))
    bias = join(name, child, "bias") if getattr(linear, "bias", None) is not None else None
    return Projection(Slot(join(name, child, "weight"), placed), bias, layout if bias else None)


def separate(module: nn.Module, name: str, child: str, heads: int, width: int | None = None) -> Projection:
    """A role with a sub-module of its own, heads one after the other."""
    width = width or _split(module, name, child, in_out(_child(module, name, child))[1], heads)
    return part(module, name, child, contiguous(heads, width))


def fused(
    module: nn.Module,
    name: str,
    child: str,
    heads: int,
    width: int,
    kv_heads: int | None = None,
    order: str = "block",
    parts: int = 3,
) -> list[Projection]:
    """The roles inside one fused sub-module: Q, K, V (`parts=3`), or K, V (`parts=2`).

    The order is `"block"` for `[part, head, d]`, `"head"` for `[head, part, d]`.
    """
    if order not in ("block", "head") or heads < 1 or width < 1:
        raise WeightError(
            f"fused takes order 'block' or 'head' and at least one head; got {order!r}, {heads} heads of {width}"
        )
    if order == "head":
        return [part(module, name, child, interleaved(heads, width, i, parts)) for i in range(parts)]
    counts = [heads, kv_heads or heads, kv_heads or heads][-parts:]
    firsts = [sum(counts[:i]) * width for i in range(parts)]
    return [part(module, name, child, contiguous(n, width, f)) for n, f in zip(counts, firsts, strict=True)]


def output(module: nn.Module, name: str, child: str, heads: int) -> Projection:
    """The output projection in the sub-module `child`, which reads the heads one after the other."""
    linear = _child(module, name, child)
    width = _split(module, name, child, in_out(linear)[0], heads)
    bias = join(name, child, "bias") if getattr(linear, "bias", None) is not None else None
    layout = contiguous(heads, width, axis=1 - int(is_transposed(linear)))
    return Projection(Slot(join(name, child, "weight"), layout), bias)


def layer(
    name: str,
    projections: Iterable[Projection],
    output: Projection | None,
    replay: Replay | None,
    *,
    kind: str = "softmax",
    scale: float | None = None,
    cross: bool = False,
) -> AttentionLayer:
    """The view of a layer that has a query, a key and a value, given in that order."""
    query, key, value = projections
    return AttentionLayer(
        name, kind, query=query, key=key, value=value, output=output, scale=scale, cross=cross, replay=replay
    )


def origin(module: nn.Module, package: str) -> set[str]:
    """Names of the classes of a package that a module is an instance of, as `module.Class`, without importing it.

    >>> sorted(origin(nn.Linear(1, 1), "torch"))
    ['torch.nn.modules.linear.Linear', 'torch.nn.modules.module.Module']
    """
    classes = type(module).__mro__
    return {f"{c.__module__}.{c.__qualname__}" for c in classes if c.__module__.split(".")[0] == package}
