"""The law λ I: each head reads coordinates of its input, the same for all heads or its own."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from wellcond.init.laws import Exactly, Shape


def identity_law(shape: Shape, strength: float = 1.0, *, block: bool = False) -> Exactly:
    """λ I as `(heads, D, d)`: the same coordinates for every head, or (block) each head its own.

    >>> identity_law((2, 4, 2), block=True).build()[1]
    tensor([[0., 0.],
            [0., 0.],
            [1., 0.],
            [0., 1.]])
    """
    times = "" if strength == 1 else f"{strength:g} "
    label = f"{times}identity ({'each head its own' if block else 'the same'} coordinates)"
    return Exactly(partial(_identity, shape, strength, block), label)


def _identity(shape: Shape, strength: float, block: bool) -> Tensor:
    heads, rows, columns = shape
    eye = torch.zeros(heads if block else 1, columns, rows)
    for head, matrix in enumerate(eye):
        first = head * columns
        size = min(columns, rows - first)
        matrix[:size, first : first + size].fill_diagonal_(strength)
    return eye.mT.expand(shape)  # one matrix serves all heads unless each has its own
