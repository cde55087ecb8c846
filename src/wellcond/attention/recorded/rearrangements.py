"""Origins of what a step re-arranges: the same step, applied to numbers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from wellcond.attention.recorded import operators as ops
from wellcond.attention.recorded.pointwise import nothing
from wellcond.attention.recorded.sources import Origin
from wellcond.attention.recorded.tape import Step


def rearranged(step: Step, of: Callable[[Tensor], Origin | None]) -> Sequence[Origin]:
    """Return the origins of the results of a re-arrangement, at least one of whose operands has one."""
    target = id(step.written)

    def numbers(*, second: bool) -> Callable[[Any], Any]:
        def change(x: Any) -> Any:
            if not ops.has_elements(x):
                return x
            origin = of(x)
            if origin is None:  # numbers that are written into need memory of their own
                return torch.full(x.shape, ops.NONE) if id(x) == target else nothing(x.shape)
            return origin.second if second and origin.second is not None else origin.first

        return change

    given = [o for x in step.operands if (o := of(x)) is not None]
    base = next((o for o in given if o.source is not None or o.over), given[0])
    base = replace(base, spread=any(o.spread for o in given), plus=any(o.plus for o in given))
    firsts = ops.rearranged(step, numbers(second=False))
    if not any(o.second is not None for o in given):
        return [replace(base, first=x, second=None) for x in firsts]
    seconds = ops.rearranged(step, numbers(second=True))
    return [replace(base, first=x, second=y) for x, y in zip(firsts, seconds, strict=True)]
