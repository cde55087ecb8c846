"""Origins of what works along an axis: a softmax of scores, the sum that normalises them, a mean over tokens."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from wellcond.attention.recorded import operators as ops
from wellcond.attention.recorded.pointwise import nothing
from wellcond.attention.recorded.sources import Origin, Source
from wellcond.attention.recorded.tape import Step

NEITHER = 3  # an axis that is neither of the queries nor of the keys


def normalised(step: Step, origin: Origin | None) -> Origin:
    """Return the origin of a softmax: that of its scores, with the axis over which they are normalised."""
    if origin is None:
        return Origin(None, nothing(step.results[0].shape), over=NEITHER, softmax=step)
    return replace(origin, over=score_axis(origin, step.args[ops.SOFTMAX[step.name]]), softmax=step)


def score_axis(origin: Origin, dim: int, scores: Source | None = None) -> int:
    """Return which axis of the matrices of scores, 1 or 2, runs along an axis of a tensor that is made of them.

    Args:
        origin: of the tensor.
        dim: its axis.
        scores: whose matrices, if the tensor is put together from several.
    """
    source = scores or origin.source
    if source is None or source.kind != "scores":
        return NEITHER
    known = _fullest(origin.first.movedim(dim, -1), source) - source.first
    known = known[known // source.area == known[:1] // source.area]  # bands are put together from several matrices
    columns = source.result.shape[-1]
    if len(known) < 2:
        return 2 if columns == 1 else 1 if source.result.shape[-2] == 1 else NEITHER
    if not bool((known.diff() % columns).any()):
        return 1
    return 2 if bool((known // columns == known[0] // columns).all()) else NEITHER


def _fullest(rows: Tensor, source: Source) -> Tensor:
    """The numbers of a source in the row that has most of them; the first row if it has no others."""
    first, end = source.first, source.first + source.result.numel()
    one = rows[(0,) * (rows.ndim - 1)]
    if bool(((one >= first) & (one < end)).all()):
        return one
    inside = (rows >= first) & (rows < end)
    most = int(inside.sum(-1).argmax())
    return rows.reshape(-1, rows.shape[-1])[most][inside.reshape(-1, rows.shape[-1])[most]]


def reduced(step: Step, origin: Origin) -> Origin | None:
    """Return the origin of a sum, mean or extremum over axes."""
    shape = step.results[0].shape
    given = step.args[1] if len(step.args) > 1 else None
    dims = [given] if isinstance(given, int) else given
    if not dims or len(step.results) != 1 or origin.source is None:
        return None
    if origin.source.kind == "scores" and step.name == "sum" and len(dims) == 1 and origin.exponential:
        return Origin(None, nothing(shape), total=score_axis(origin, dims[0]))
    if origin.source.kind != "linear":  # probabilities of all heads together, say, are still normalised scores
        return Origin(None, nothing(shape), over=NEITHER, softmax=origin.softmax) if origin.over else None
    tokens = _over_tokens(origin, dims)
    if tokens is not None:
        return replace(origin, first=tokens.reshape(shape), second=None, spread=True)
    if step.name == "sum" and len(dims) == 1 and origin.second is None:
        rotated = _rotated(origin.first, dims[0])
        if rotated is not None:
            return replace(origin, first=rotated.reshape(shape), second=rotated.flip(-1).reshape(shape))
    return None


def _rotated(numbers: Tensor, dim: int) -> Tensor | None:
    """A rotation of two columns as a product with 2 × 2 matrices, which is summed: the first column of each result."""
    rows = numbers.movedim(dim, -1)
    if rows.ndim < 2 or rows.shape[-2:] != (2, 2) or not torch.equal(rows[..., 0, :], rows[..., 1, :]):
        return None
    return rows[..., 0, :]


def _over_tokens(origin: Origin, dims: list[int]) -> Tensor | None:
    """A mean over tokens keeps the column that it is of; one over columns is of none."""
    assert origin.source is not None
    columns = origin.source.result.shape[-1]
    first = origin.first
    for dim in dims:
        one = first.narrow(dim, 0, 1)
        if bool(((first - one) % columns).any()):
            return None
        first = one
    return first


def mixes_heads(origin: Origin, axis: int) -> bool:
    """Return whether a linear map along an axis adds scores of several heads for the same query and key."""
    if origin.source is None or origin.source.kind != "scores" or axis >= origin.first.ndim:
        return False
    rows = origin.first.movedim(axis, -1)
    row = rows.reshape(-1, rows.shape[-1])[0]
    return len(row) > 1 and bool((row >= 0).all()) and not bool((row.diff() % origin.source.area).any())
