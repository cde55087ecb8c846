"""Products of matrices that are written as a sum of products element by element: `(q[:, None] * k).sum(-1)`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from torch import Tensor

from wellcond.attention.recorded.sources import Origin
from wellcond.attention.recorded.tape import Step


def is_outer(step: Step) -> bool:
    """Return whether a step multiplies two tensors each of which is repeated along an axis of the other."""
    if step.name != "mul" or len(step.operands) != 2:
        return False
    a, b = (_aligned(x, step.results[0].ndim) for x in step.operands)
    alone = {(m == 1) - (n == 1) for m, n in zip(a, b, strict=True) if m != n}
    return alone == {1, -1}


def factors(product: Step, sum_: Step, origins: tuple[Origin, Origin]) -> tuple[tuple[int, Origin], ...] | None:
    """Return the two factors of a product of matrices, left and right: each as its place and its numbers.

    None unless the sum is over one axis, and rows and columns are the last axes of what it leaves.
    """
    (x,), dims = sum_.operands, sum_.args[1] if len(sum_.args) > 1 else None
    keeps = len(sum_.args) > 2 and sum_.args[2]
    if not isinstance(dims, list) or len(dims) != 1 or keeps or x.ndim < 3:
        return None
    dim = dims[0] % x.ndim
    sizes = [_aligned(operand, x.ndim) for operand in product.operands]
    sizes = [[*size[:dim], *size[dim + 1 :]] for size in sizes]  # (…, rows, columns)
    for left, right in ((0, 1), (1, 0)):
        if sizes[left][-1] == 1 and sizes[right][-2] == 1 and x.movedim(dim, -1).shape[-3:].count(1) == 0:
            rows = _mapped(origins[left], lambda n: n.expand(x.shape).movedim(dim, -1)[..., 0, :])
            columns = _mapped(origins[right], lambda n: n.expand(x.shape).movedim(dim, -1)[..., 0, :, :].mT)
            return (left, rows), (right, columns)
    return None


def _aligned(x: Tensor, ndim: int) -> list[int]:
    """The sizes of a tensor as broadcasting sees them."""
    return [1] * (ndim - x.ndim) + list(x.shape)


def _mapped(origin: Origin, change: Callable[[Tensor], Tensor]) -> Origin:
    second = None if origin.second is None else change(origin.second)
    return replace(origin, first=change(origin.first), second=second)
