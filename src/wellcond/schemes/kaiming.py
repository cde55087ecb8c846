"""Kaiming (He) baseline with explicit fans."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from wellcond.attention.view import AttentionLayer
from wellcond.errors import SchemeError
from wellcond.schemes.base import Laws, Scheme, fans, register
from wellcond.schemes.laws import Normal, Uniform
from wellcond.schemes.xavier import Granularity


@register(
    "kaiming",
    citation="He et al. 2015",
    published="normal with a = 0; nn.Linear's own default is uniform with a = √5, that is U(±1/√fan_in)",
)
@dataclass(frozen=True)
class Kaiming(Scheme):
    """Q, K, V and O with variance 2 ÷ ((1 + a²) fan_in).

    Args:
        distribution: `"normal"` or `"uniform"`.
        a: slope of the leaky ReLU that follows (0 for ReLU).
        granularity: whose fan: `"projection"`, `"head"` or the stored `"matrix"`; they differ for the output only.
    """

    distribution: Literal["uniform", "normal"] = "normal"
    a: float = 0.0
    granularity: Granularity = "projection"

    def __post_init__(self) -> None:
        """The slope is squared."""
        if abs(self.a) > 1e9:
            raise SchemeError(f"'kaiming' takes a slope a of a size that can be squared, got {self.a}")

    def laws(self, layer: AttentionLayer) -> Laws:
        """One law per role, by its fan-in."""
        law = Uniform if self.distribution == "uniform" else Normal
        laws: Laws = {}
        for role, projection in layer.projections():
            fan_in = fans(role, projection, self.granularity)[0]
            laws[(role,)] = law(math.sqrt(2 / ((1 + self.a**2) * fan_in)), f"fan in {fan_in}")
        return laws
