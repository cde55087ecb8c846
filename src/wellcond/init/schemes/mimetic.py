"""Mimetic initialisation (Trockman & Kolter 2023)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Literal

from wellcond.attention.layers import AttentionLayers
from wellcond.attention.roles import ROLES
from wellcond.attention.view import AttentionLayer
from wellcond.init.laws import Exactly
from wellcond.init.positions import find_positions, positions_of, sincos
from wellcond.init.products import (
    Noise,
    QueryKeyProduct,
    ValueOutputProduct,
    query_key_refusal,
    value_output_refusal,
)
from wellcond.init.registry import register_scheme
from wellcond.init.scheme import Laws, Scheme, Target


@register_scheme(
    "mimetic",
    citation="Trockman & Kolter 2023, arXiv 2305.09828",
    published="α = β = 0.7 for query–key, α = β = 0.4 with −I for value–output, ViT on CIFAR and ImageNet; "
    "coefficients for language models are not confirmed",
)
@dataclass(frozen=True)
class Mimetic(Scheme):
    r"""Products like those of trained models: W_Q W_Kᵀ ≈ α Z + β I and W_V W_O = α Z − β I.

    Z has independent entries of variance 1/D. Query–key: fresh Z per head, best rank-d approximation from the SVD,
    $W_Q = U_d S_d^{1/2}$, $W_K = V_d S_d^{1/2}$. Value–output: once per layer on the full D × D product,
    $W_V = U S^{1/2}$, $W_O = S^{1/2} V^\top$, exact in the model's own forward direction.

    Args:
        qk_alpha: α for query–key.
        qk_beta: β for query–key.
        qk_sign: of I for query–key.
        vo_alpha: α for value–output.
        vo_beta: β for value–output.
        vo_sign: of I for value–output.
        noise: law of Z.
        position: `"sincos"` also writes 2-D sine–cosine position embeddings; `"keep"` leaves them.
    """

    qk_alpha: float = 0.7
    qk_beta: float = 0.7
    qk_sign: Literal[1, -1] = 1
    vo_alpha: float = 0.4
    vo_beta: float = 0.4
    vo_sign: Literal[1, -1] = -1
    noise: Noise = "uniform"
    position: Literal["keep", "sincos"] = "keep"

    def applies(self, layer: AttentionLayer) -> str | None:
        """Needs query and key of one width, ungrouped, and a square value–output product."""
        return self.applies_to(layer, frozenset(ROLES))

    def applies_to(self, layer: AttentionLayer, roles: frozenset[str]) -> str | None:
        """Each product has its own needs."""
        reason = query_key_refusal(layer) if roles & {"query", "key"} else None
        if roles & {"value", "output"}:
            reason = reason or value_output_refusal(layer)
        if reason is None and self.position == "sincos":
            found = find_positions(layer)
            reason = found if isinstance(found, str) else None
        return reason

    def laws(self, layer: AttentionLayer) -> Laws:
        """One joint law per product."""
        return {
            ("query", "key"): QueryKeyProduct(self.qk_alpha, self.qk_sign * self.qk_beta, self.noise),
            ("value", "output"): ValueOutputProduct(self.vo_alpha, self.vo_sign * self.vo_beta, self.noise),
        }

    def beyond(self, layers: AttentionLayers) -> Iterator[Target]:
        """The position embeddings, if asked."""
        if self.position == "sincos" and layers:
            found = positions_of(layers[0])
            yield Target(found.path, "position", found.projection, Exactly(partial(sincos, found), "2-D sine–cosine"))
