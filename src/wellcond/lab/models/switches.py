"""QK-norm and LayerScale, with and without which every comparison can be run: from what `[model]` says to modules."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from wellcond.errors import WellcondError

QK_NORM_EPS = 1e-6  # as in timm


class LayerScale(nn.Module):
    """A learned factor for each channel of what a branch adds to the stream (Touvron et al. 2021, arXiv 2103.17239).

    >>> LayerScale(3, 0.1)(torch.ones(3)).tolist() == [torch.tensor(0.1).item()] * 3
    True
    """

    def __init__(self, width: int, value: float) -> None:
        super().__init__()
        self.gamma = nn.Parameter(torch.full((width,), value))

    def forward(self, x: Tensor) -> Tensor:
        """Return `(…, width)`."""
        return x * self.gamma


def first_scale(layer_scale: object) -> float | None:
    """Return the value that LayerScale begins with, None for no LayerScale.

    >>> first_scale(0.1), first_scale(False)
    (0.1, None)
    >>> first_scale(True)
    Traceback (most recent call last):
    wellcond.errors.WellcondError: layer_scale is the number above 0 that it begins with, or false for none; got True
    """
    if layer_scale is None or layer_scale is False:
        return None
    if isinstance(layer_scale, (int, float)) and layer_scale is not True and 0 < layer_scale < math.inf:
        return float(layer_scale)
    raise WellcondError(
        f"layer_scale is the number above 0 that it begins with, or false for none; got {layer_scale!r}"
    )


def normalises(qk_norm: object) -> bool:
    """Return whether queries and keys are normalised.

    >>> normalises("yes")
    Traceback (most recent call last):
    wellcond.errors.WellcondError: qk_norm is true or false, got 'yes'
    """
    if not isinstance(qk_norm, bool):
        raise WellcondError(f"qk_norm is true or false, got {qk_norm!r}")
    return qk_norm


def branch_scale(width: int, layer_scale: object) -> nn.Module:
    """Return the LayerScale of a branch; a module that does nothing where there is none."""
    value = first_scale(layer_scale)
    return nn.Identity() if value is None else LayerScale(width, value)


def head_norms(width: int, qk_norm: object) -> tuple[nn.Module, nn.Module]:
    """Return the norms of queries and of keys in heads of some width; modules that do nothing where there are none."""
    if not normalises(qk_norm):
        return nn.Identity(), nn.Identity()
    return nn.LayerNorm(width, QK_NORM_EPS), nn.LayerNorm(width, QK_NORM_EPS)
