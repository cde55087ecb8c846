"""Admin, data-free."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from wellcond.attention.find import AttentionLayers
from wellcond.attention.view import AttentionLayer, Block, Projection
from wellcond.schemes.base import Laws, Scheme, Target, mlp_targets, outside_block, register
from wellcond.schemes.deepnorm import not_post_norm
from wellcond.schemes.laws import Law
from wellcond.schemes.xavier import xavier


@register(
    "admin",
    citation="Liu et al. 2020, arXiv 2004.08249",
    published="ω from a profiling pass, or data-free: ω = √((n+1)/ln(n+1) − 1) with n = 2L residual branches",
)
@dataclass(frozen=True)
class Admin(Scheme):
    r"""Post-norm LN(ω x + f(x)) with Xavier-uniform weights and the data-free ω; biases zero.

    ω is folded into the matrices that write to the residual stream, as $LN(\omega x + f) = LN(x + f/\omega)$.

    Args:
        residual: `"fold"`; or `"slot"` if the model multiplies its own skip by ω.
        post_norm: say so for a class whose norm position is not known.
    """

    residual: Literal["fold", "slot"] = "fold"
    post_norm: bool | None = None

    def applies(self, layer: AttentionLayer) -> str | None:
        """Needs a post-norm block."""
        return outside_block(layer) or not_post_norm(layer, self.post_norm)

    def laws(self, layer: AttentionLayer) -> Laws:
        """Gain 1, and 1/ω for O."""
        assert layer.block is not None
        return {(role,): self._law(layer.block, role, p) for role, p in layer.projections()}

    def beyond(self, layers: AttentionLayers) -> Iterator[Target]:
        """Gain 1, and 1/ω for the second MLP matrix."""
        return mlp_targets(layers, self._law)

    def zeroed(self) -> frozenset[str]:
        """All biases."""
        return frozenset(["query", "key", "value", "output", "mlp"])

    def _law(self, block: Block, role: str, projection: Projection) -> Law:
        writes = role in ("output", "mlp_out") and self.residual == "fold"
        # A decoder block has three branches: self-attention, cross-attention and MLP.
        branches = (3 if block.stack == "decoder" else 2) * block.depth
        return xavier(role, projection, 1 / omega(branches) if writes else 1.0)


def omega(branches: int) -> float:
    """Data-free ω for a stack with this many residual branches.

    >>> round(omega(12), 3)
    2.017
    """
    return math.sqrt((branches + 1) / math.log(branches + 1) - 1)
