"""Origins of what is computed element by element: the operands' own, if one of them is what the result is about."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from wellcond.attention.recorded import operators as ops
from wellcond.attention.recorded.operators import NONE, SEVERAL
from wellcond.attention.recorded.sources import Origin
from wellcond.attention.recorded.tape import Step

Moving = Callable[[Tensor], bool]  # whether a tensor depends on what the pass was given


def nothing(shape: torch.Size, number: int = NONE) -> Tensor:
    """Numbers of elements that come from nothing, without memory of their own."""
    return torch.tensor(number).expand(shape)


def pointwise(step: Step, operands: Sequence[tuple[Tensor, Origin | None]], moving: Moving) -> Origin | None:
    """Return the origin of the result of a step that works element by element."""
    shape, summed = step.results[0].shape, ops.is_sum(step)
    merged: Origin | None = None
    foreign = lost = False
    for place, (x, origin) in enumerate(operands):
        if place and step.name.removesuffix("_") == "div" and merged is not None:
            continue  # a quotient is about its numerator
        if origin is None or (origin.source is None and not origin.over):
            foreign = foreign or (ops.has_elements(x) and moving(x))
            continue
        expanded = _expanded(origin, shape)
        if expanded is None:  # written into a smaller tensor
            return None
        if merged is None:
            merged = expanded
        elif not lost:
            both = _both(merged, expanded, moving, summed=summed)
            lost, merged = both is None, both or merged
    if merged is None:
        return _unknown(shape, [origin for _, origin in operands if origin is not None])
    linear = merged.source is not None and merged.source.kind == "linear"
    if linear and (lost or (foreign and summed)):
        return Origin(None, nothing(shape, SEVERAL if summed else NONE))
    # An activation that is added, or a scale that depends on other elements (a norm): not this source alone.
    return _changed(step, replace(merged, plus=merged.plus or foreign), operands)


def _expanded(origin: Origin, shape: torch.Size) -> Origin | None:
    if origin.first.shape == shape:
        return origin
    try:
        second = None if origin.second is None else origin.second.expand(shape)
        return replace(origin, first=origin.first.expand(shape), second=second)
    except RuntimeError:
        return None


def _unknown(shape: torch.Size, origins: Sequence[Origin]) -> Origin | None:
    """Where no operand is known: what has been lost stays lost, and what is still to be written stays so."""
    lost = next((o for o in origins if o.first.numel() and int(o.first.flatten()[0]) == SEVERAL), None)
    if lost is not None:
        return Origin(None, nothing(shape, SEVERAL))
    return next((o for o in origins if o.first.shape == shape), None)


def _changed(step: Step, origin: Origin, operands: Sequence[tuple[Tensor, Origin | None]]) -> Origin:
    """Take note of what the function itself does to scores, or for a gate."""
    name = step.name.removesuffix("_")
    if name in ("exp", "exp2"):
        return replace(origin, exponential=not origin.over)
    total = max((o.total for _, o in operands if o is not None), default=0)
    if name == "div" and origin.exponential and total:
        return replace(origin, over=total, softmax=step, exponential=False)
    return replace(origin, gate=True) if name in ops.GATES else origin


def _both(a: Origin, b: Origin, moving: Moving, *, summed: bool) -> Origin | None:
    """Origin of a sum or product of two: of one source, both; else the more important; None if neither is."""
    if a.source is b.source:
        return _of_one_source(a, b)
    if a.gate != b.gate:
        return b if a.gate else a
    ranks = _rank(a, moving), _rank(b, moving)
    main, other = (a, b) if ranks[0] >= ranks[1] else (b, a)
    if main.source is not None and main.source.kind == "linear":
        return None
    same = (
        () if main.source is None or other.source is None else (other.source,) * (main.source.kind == other.source.kind)
    )
    return replace(main, added=(*main.added, *same), plus=main.plus or summed)


def _of_one_source(a: Origin, b: Origin) -> Origin:
    over = a if a.over else b
    spread, plus = a.spread or b.spread, a.plus or b.plus
    if a.first is b.first or torch.equal(a.first, b.first):
        kept = a if a.second is not None else b
        return replace(kept, over=over.over, softmax=over.softmax, spread=spread, plus=plus)
    known = (a.first >= 0) & (b.first >= 0)
    first = torch.where(a.first >= 0, a.first, b.first)
    second = torch.where(known, b.first, first)
    return replace(a, first=first, second=second, over=over.over, softmax=over.softmax, spread=spread, plus=plus)


def _rank(origin: Origin, moving: Moving) -> int:
    """Importance in a sum: a linear map least, then scores (of two activations, made by linear maps), then mixtures."""
    if origin.source is None:
        return 1
    if origin.source.kind != "scores":
        return 0 if origin.source.kind == "linear" else 99
    factors = origin.source.left, origin.source.right
    made = sum(o is not None and o.source is not None and o.source.kind == "linear" for o in origin.source.origins)
    return 2 + 3 * sum(map(moving, factors)) + made
