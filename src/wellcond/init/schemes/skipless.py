"""Initialisation for transformers without skips (Ji et al. 2025)."""

from __future__ import annotations

from dataclasses import dataclass

from wellcond._core.argument_types import Positive
from wellcond.attention.roles import ROLES
from wellcond.attention.view import AttentionLayer
from wellcond.init.orthogonal_pair import OrthogonalPair, Structure
from wellcond.init.products import Noise, QueryKeyProduct, query_key_refusal, value_output_refusal
from wellcond.init.registry import register_scheme
from wellcond.init.scheme import Laws, Scheme


@register_scheme(
    "skipless",
    citation="Ji et al. 2025 (Cutting the Skip: Training Residual-Free Transformers), arXiv 2510.00345",
    published="c = 3; α = 2, β = 0.6 (ViT-B) or α = 1.8, β = 1 (ViT-S, DINO); SOAP; orthogonal MLP. Unconfirmed: "
    "read in a reproduction, which has c A and c Aᵀ, and in a summary, which has c U and c Vᵀ",
)
@dataclass(frozen=True)
class Skipless(Scheme):
    r"""W_V W_O = c² I over all heads, from c A and c Aᵀ with A orthogonal, and W_Q W_Kᵀ ≈ α Z + β I in every head.

    A skip adds I to the derivative of attention, which keeps it away from singular. Where the skip was removed, a
    value–output product of condition 1 and attention that leans towards each token itself do so. The MLP stays.

    Args:
        c: singular values of W_V and of W_O.
        alpha: α.
        beta: β.
        noise: law of Z, whose entries are independent of variance 1/D.
        structure: `"identity"`, or `"rotation"`: c A and c Bᵀ with two draws, whose product is c² times a rotation.
    """

    c: Positive = 3.0
    alpha: float = 2.0
    beta: float = 0.6
    noise: Noise = "normal"
    structure: Structure = "identity"

    def applies(self, layer: AttentionLayer) -> str | None:
        """Needs query and key of one width, ungrouped, and a square value–output product."""
        return self.applies_to(layer, frozenset(ROLES))

    def applies_to(self, layer: AttentionLayer, roles: frozenset[str]) -> str | None:
        """Each product has its own needs."""
        reason = query_key_refusal(layer) if roles & {"query", "key"} else None
        return reason or (value_output_refusal(layer) if roles & {"value", "output"} else None)

    def laws(self, layer: AttentionLayer) -> Laws:
        """One joint law per product."""
        return {
            ("query", "key"): QueryKeyProduct(self.alpha, self.beta, self.noise),
            ("value", "output"): OrthogonalPair(self.c, self.c, self.structure),
        }
