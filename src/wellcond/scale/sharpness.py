r"""Sharpness β of a head: the standard deviation of its logits along a row, ÷ √(2 log T) for T visible keys.

At β = 1 the largest of T Gaussian logits outweighs the sum of the others. It does not change with the coordinates of
W_Q and W_K. On tokens of unit size that are not alike, the β of the theory (`wc.locate`) is √2 times this.
"""

from __future__ import annotations

import torch
from torch import Tensor

from wellcond.attention.replay import Attended


def sharpness(seen: Attended) -> list[float | None]:
    """Return β of every head, mean over rows that see at least two keys; None for a head without such a row.

    >>> logits = torch.tensor([[[[0.0, 2.0], [1.0, 1.0]]]])
    >>> [round(beta, 4) for beta in sharpness(Attended(logits, logits.softmax(-1), None))]   # (√2 + 0) / 2 / √(2 log 2)
    [0.6006]
    """
    shown = None if seen.hidden is None else ~seen.hidden
    count = torch.tensor(seen.logits.shape[-1]) if shown is None else shown.sum(-1)
    logits = seen.logits.double() if shown is None else seen.logits.double().masked_fill(~shown, 0.0)
    keys = count.to(logits).clamp_min(2)
    apart = logits - logits.sum(-1, keepdim=True) / keys[..., None]
    apart = apart if shown is None else apart.masked_fill(~shown, 0.0)
    rows = (apart.square().sum(-1) / (keys - 1)).sqrt() / (2 * keys.log()).sqrt()
    return head_means(rows, (count > 1).expand(rows.shape))


def head_means(rows: Tensor, counted: Tensor) -> list[float | None]:
    """Mean over the rows that count, `(B, H, N)` to H numbers; None for a head with no such row."""
    count = counted.sum((0, 2))
    total = torch.where(counted, rows, 0.0).sum((0, 2)) / count.clamp_min(1)
    return [float(t) if c else None for t, c in zip(total, count, strict=True)]
