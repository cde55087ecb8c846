"""Truncated Gaussian baseline."""

from __future__ import annotations

from dataclasses import dataclass

from wellcond.attention.view import AttentionLayer
from wellcond.errors import SchemeError
from wellcond.schemes.base import Laws, Scheme, register
from wellcond.schemes.laws import truncated


@register(
    "trunc_normal", citation="the default of timm's Vision Transformers", published="std 0.02, cut at ±2 absolute"
)
@dataclass(frozen=True)
class TruncNormal(Scheme):
    """Q, K, V and O with independent N(0, std²) entries cut at ±cut.

    Args:
        std: standard deviation before the cut.
        cut: absolute, as in timm: 2 is a hundred standard deviations of 0.02, so the published cut does nothing.
    """

    std: float = 0.02
    cut: float = 2.0

    def __post_init__(self) -> None:
        """Both are positive."""
        if self.std <= 0 or self.cut <= 0:
            raise SchemeError(f"'trunc_normal' takes a positive std and cut, got {self.std} and {self.cut}")

    def laws(self, layer: AttentionLayer) -> Laws:
        """The same law for every role."""
        return {(role,): truncated(self.std, self.cut) for role, _ in layer.projections()}
