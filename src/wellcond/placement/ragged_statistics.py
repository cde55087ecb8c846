"""Rows of different lengths, as causal and padding masks leave them, in a theory of rows of one length."""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor

from wellcond.propagation.attention_statistics import Attention, Statistics, exact_statistics

# Standard deviation of logits beyond which rows are taken as no sharper: they point at one token either way, the same
# one if its shift is scaled alike, and integrals over pairs of rows grow with its square: 0.7 s at 10, 19 s at 40.
MAX_LOGIT_DEVIATION = 10.0


def ragged_statistics(alone: float, together: float, head_dim: float | None = None) -> Statistics:
    """Return exact statistics of rows at one length and of pairs of rows at another; exact for even attention.

    Args:
        alone: length at which even attention has the mask's mean Σ p².
        together: length at which it has the mask's mean Σ p p' of two rows.
        head_dim: see `exact_statistics`.

    >>> import torch
    >>> seen = ragged_statistics(14, 32)(*torch.zeros(3, dtype=torch.float64))         # a decoder of 64 tokens, about
    >>> round(1 / float(seen.participation)), round(1 / float(seen.overlap))
    (14, 32)
    """
    rows, pairs = exact_statistics(max(2, round(alone)), head_dim), exact_statistics(max(2, round(together)), head_dim)
    even = round(alone) == round(together)

    def at(deviation: Tensor, correlation: Tensor, shift: Tensor) -> Attention:
        less = (MAX_LOGIT_DEVIATION / deviation.clamp_min(MAX_LOGIT_DEVIATION)).clamp_max(1.0)
        given = deviation * less, correlation, shift * less
        seen = rows(*given)
        other = seen if even else pairs(*given)
        return replace(seen, overlap=other.overlap, pair_gradient=other.pair_gradient)

    return at
