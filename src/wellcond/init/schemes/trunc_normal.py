"""Truncated Gaussian baseline."""

from __future__ import annotations

from dataclasses import dataclass

from wellcond._core.argument_types import Positive
from wellcond.attention.view import AttentionLayer
from wellcond.init.laws import truncated
from wellcond.init.registry import register_scheme
from wellcond.init.scheme import Laws, Scheme


@register_scheme(
    "trunc_normal", citation="the default of timm's Vision Transformers", published="std 0.02, cut at ±2 absolute"
)
@dataclass(frozen=True)
class TruncNormal(Scheme):
    """Q, K, V and O with independent N(0, std²) entries cut at ±cut.

    Args:
        std: standard deviation before the cut.
        cut: absolute, as in timm: 2 is a hundred standard deviations of 0.02, so the published cut does nothing.
    """

    std: Positive = 0.02
    cut: Positive = 2.0

    def laws(self, layer: AttentionLayer) -> Laws:
        """One law for all roles."""
        return {(role,): truncated(self.std, self.cut) for role, _ in layer.projections()}
