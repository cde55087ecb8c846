"""Small-Init."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from wellcond.attention.find import AttentionLayers
from wellcond.attention.view import AttentionLayer
from wellcond.schemes.base import Laws, Scheme, Target, fans, register
from wellcond.schemes.depth import ALL, mlp_targets
from wellcond.schemes.laws import Normal


@register(
    "small_init",
    citation="Nguyen & Salazar 2019, arXiv 1910.05895",
    published="attention std √(2/(5D)), feed-forward √(2/(D + D_ff)), biases 0",
)
@dataclass(frozen=True)
class SmallInit(Scheme):
    """Gaussian: attention std √(2/(5D)), MLP √(2/(D + D_ff)); biases zero."""

    def laws(self, layer: AttentionLayer) -> Laws:
        """D is the width on the model's side of each map."""
        return {(role,): Normal(math.sqrt(2 / (5 * p.shape[1]))) for role, p in layer.projections()}

    def beyond(self, layers: AttentionLayers) -> Iterator[Target]:
        """The MLP by its fans."""
        return mlp_targets(layers, lambda block, role, p: Normal(math.sqrt(2 / sum(fans(role, p, "projection")))))

    def zeroed(self) -> frozenset[str]:
        """All biases."""
        return ALL
