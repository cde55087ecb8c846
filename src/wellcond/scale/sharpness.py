r"""Sharpness β of a head: the standard deviation of its logits along a row, ÷ √(2 log T) for T visible keys.

At β = 1 the largest of T Gaussian logits outweighs the sum of the others. It does not change with the coordinates of
W_Q and W_K. On tokens of unit size that are not alike, the β of the theory (`wc.locate`) is √2 times this.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from wellcond.attention.storage import HALF_DTYPES


def sharpness(logits: Tensor, hidden: Tensor | None = None) -> list[float | None]:
    """Return β of every head, mean over rows that see at least two keys; None for a head without such a row.

    Logits are `(B, H, N, T)`; `hidden` broadcasts to them and is True where a mask takes a key out.

    >>> logits = torch.tensor([[[[0.0, 2.0], [1.0, 1.0]]]])
    >>> [round(beta, 4) for beta in sharpness(logits)]                      # (√2 + 0) / 2 / √(2 log 2)
    [0.6006]
    """
    logits = logits.float() if logits.dtype in HALF_DTYPES else logits
    if hidden is None:
        total = logits.shape[-1]
        apart = logits - logits.mean(-1, keepdim=True)  # with a norm, a quarter of the time of torch.std
        rows = torch.linalg.vector_norm(apart, dim=-1) / math.sqrt(max(total - 1, 1) * 2 * math.log(max(total, 2)))
        return head_means(rows.double().cpu(), torch.tensor(total > 1).expand(rows.shape))
    hidden = hidden.expand(logits.shape)
    count = (~hidden).sum(-1)
    keys = count.clamp_min(2).double()
    apart = logits.masked_fill(hidden, 0.0)
    apart = (apart - (apart.sum(-1) / keys)[..., None].to(apart)).masked_fill(hidden, 0.0)
    rows = (apart.square().sum(-1) / (keys - 1) / (2 * keys.log())).sqrt()
    return head_means(rows.cpu(), (count > 1).cpu())


def head_means(rows: Tensor, counted: Tensor) -> list[float | None]:
    """Mean over the rows that count, `(B, H, N)` to H numbers; None for a head with no such row."""
    count = counted.sum((0, 2))
    total = torch.where(counted, rows, 0.0).sum((0, 2)) / count.clamp_min(1)
    return [float(t) if c else None for t, c in zip(total, count, strict=True)]
