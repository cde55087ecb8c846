"""Small-Init (Nguyen & Salazar 2019)."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from wellcond.attention.layers import AttentionLayers
from wellcond.attention.view import AttentionLayer
from wellcond.init.block_schemes import ALL_ROLES, mlp_targets
from wellcond.init.fan_laws import fans
from wellcond.init.laws import Normal
from wellcond.init.registry import register_scheme
from wellcond.init.scheme import Laws, Scheme, Target


@register_scheme(
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
        return mlp_targets(layers, lambda block, role, p: Normal(math.sqrt(2 / sum(fans(role, p)))))

    def zeroed(self) -> frozenset[str]:
        """All biases."""
        return ALL_ROLES
