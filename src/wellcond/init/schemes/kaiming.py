"""Kaiming (He) baseline with explicit fans."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated

from wellcond._core.argument_types import Range
from wellcond.attention.view import AttentionLayer
from wellcond.init.fan_laws import Distribution, Granularity, fan_in_law
from wellcond.init.registry import register_scheme
from wellcond.init.scheme import Laws, Scheme


@register_scheme(
    "kaiming",
    citation="He et al. 2015",
    published="normal with a = 0; nn.Linear's own default is uniform with a = √5, that is U(±1/√fan_in)",
)
@dataclass(frozen=True)
class Kaiming(Scheme):
    """Q, K, V and O with variance 2 ÷ ((1 + a²) fan_in).

    Only the output's fan depends on the granularity: the other roles read the model's width whatever it is.

    Args:
        distribution: `"normal"` or `"uniform"`.
        a: slope of the leaky ReLU that follows (0 for ReLU).
        granularity: whose fan: `"projection"`, `"head"` or the stored `"matrix"`.
    """

    distribution: Distribution = "normal"
    a: Annotated[float, Range(-1e9, 1e9)] = 0.0  # it is squared
    granularity: Granularity = "projection"

    def laws(self, layer: AttentionLayer) -> Laws:
        """One law per role, by its fan-in."""
        options = math.sqrt(2 / (1 + self.a**2)), self.distribution, self.granularity
        return {(role,): fan_in_law(role, projection, *options) for role, projection in layer.projections()}
