"""The parameter and the layout that hold given elements: what a view is made of."""

from __future__ import annotations

import torch
from torch import Tensor

from wellcond.attention.layouts import AnyLayout, Layout, Strided, as_matrix
from wellcond.attention.recorded.columns import Undescribed
from wellcond.attention.recorded.tape import Tape
from wellcond.errors import WeightError


def matrix_layout(elements: Tensor, tape: Tape) -> tuple[str, AnyLayout]:
    """Return the path of the parameter, and the layout, that have these elements, `(heads, D, d)`."""
    low, high = (int(x) for x in elements.aminmax())
    if low < 0:
        raise Undescribed("a weight is not made of parameters alone")
    path, first, parameter = tape.parameter(low)
    local = elements - first
    if high - first >= parameter.numel():
        raise Undescribed("a weight is put together from several parameters")
    starts, row_step, step = local[:, 0, 0], _step(local, 1), _step(local, 2)
    rows, width = torch.arange(local.shape[1]) * row_step, torch.arange(local.shape[2]) * step
    if not torch.equal(local, starts[:, None, None] + rows[:, None] + width):
        raise Undescribed(f"'{path}' of shape {tuple(parameter.shape)}: the columns of a head lie in no regular order")
    strided = Strided(tuple(starts.tolist()), local.shape[1], local.shape[2], row_step, step)
    return path, _as_layout(strided, parameter) or strided


def _step(elements: Tensor, dim: int) -> int:
    if elements.shape[dim] == 1:
        return 1
    return int(elements.select(dim, 1).flatten()[0] - elements.select(dim, 0).flatten()[0])


def _as_layout(strided: Strided, parameter: Tensor) -> Layout | None:
    """The same as rows or columns of a stored matrix, if they are whole ones."""
    try:
        rows, columns = as_matrix(parameter).shape
    except WeightError:
        return None
    step = 1 if strided.width == 1 else strided.step
    last = max(strided.starts) + (strided.width - 1) * step
    apart = 1 if strided.rows == 1 else strided.row_step
    whole = all(number % columns == 0 for number in (*strided.starts, *([] if strided.width == 1 else [step])))
    if step > 0 and strided.rows == columns and apart == 1 and whole:
        return Layout(tuple(start // columns for start in strided.starts), strided.width, max(step // columns, 1), 0)
    if step > 0 and strided.rows == rows and (apart == columns or rows == 1) and last < columns:
        return Layout(strided.starts, strided.width, step, 1)
    return None


def vector_layout(elements: Tensor, tape: Tape) -> tuple[str, Layout] | None:
    """Return the path and layout of a bias that has these elements, `(heads, d)`; None if it is no parameter."""
    if int(elements.max()) < 0:
        return None
    path, first, parameter = tape.parameter(int(elements.min()))
    if int(elements.min()) < 0 or int(elements.max()) - first >= parameter.numel():
        raise Undescribed("a bias is not made of one parameter")
    local = elements - first
    step = _step(local, 1)
    if step < 1 or not torch.equal(local, local[:, :1] + torch.arange(local.shape[1]) * step):
        raise Undescribed(f"'{path}': the numbers of a head lie in no regular order")
    return path, Layout(tuple(local[:, 0].tolist()), local.shape[1], step)
