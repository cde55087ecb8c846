"""Bands within which a control leaves attention alone."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from wellcond.attention.storage import HALF_DTYPES


@dataclass(frozen=True)
class Bands:
    """Limits of each quantity; None for a quantity that is not looked at.

    Args:
        beta: sharpness of a head, least and largest; above it queries and keys shrink, below it is only told.
        max_logit: largest size of a logit of a head.
        kappa: largest condition number of a head's W_Q, W_K and W_V.
        balance: largest ratio of the norms of W_Q and W_K, and of W_V and W_O.
    """

    beta: tuple[float, float] | None
    max_logit: float | None
    kappa: float | None
    balance: float | None


def at_limit(dtype: torch.dtype) -> float:
    """Relative distance above a limit that still counts as at it: weights are stored with rounding."""
    return 1e-2 if dtype in HALF_DTYPES else 1e-3
