"""Query and key variance from the signal-propagation theory."""

from __future__ import annotations

import math
from dataclasses import dataclass

from wellcond.attention.view import AttentionLayer
from wellcond.errors import SchemeError
from wellcond.schemes.base import Laws, Scheme, missing, register
from wellcond.schemes.laws import Normal


@register(
    "critical",
    citation="Two failure modes of deep Transformers and how to avoid them, arXiv 2505.24333",
    published="std √β (ln T)^¼ / √d_H with one head of the model's width, β = 0.5 and 3",
)
@dataclass(frozen=True)
class Critical(Scheme):
    r"""Gaussian Q and K such that logits of unit-variance tokens have standard deviation β √(ln T).

    With logit scale $s$ and entry variance $\sigma^2$, random tokens give logits of standard deviation
    $s\sqrt{d}\,D\sigma^2$; hence $\sigma^2 = \beta\sqrt{\ln T} / (s\sqrt{d}\,D)$. The published rule divides by the
    head width instead of D, which is the same for its single head and h times too large for h heads.

    Args:
        tokens: T, the sequence length.
        beta: β, the inverse temperature; below the critical value attention spreads, above it localises.
        literal: divide by the head width as published.
    """

    tokens: int
    beta: float = 0.5
    literal: bool = False

    def __post_init__(self) -> None:
        """The theory needs two tokens and a positive β."""
        if self.tokens < 2 or self.beta <= 0:
            raise SchemeError(f"'critical' takes tokens ≥ 2 and beta > 0, got {self.tokens} and {self.beta}")

    def applies(self, layer: AttentionLayer) -> str | None:
        """Needs softmax over query–key products with one scale."""
        if layer.kind not in ("softmax", "talking-heads", "nystrom"):
            return f"{layer.kind} attention is not a softmax over tokens"
        if layer.qk_norm:
            return "queries and keys are normalised, so weights do not set β"
        if layer.scale is None:
            return "the scale of its logits is not one known number"
        return missing(layer, "query", "key")

    def laws(self, layer: AttentionLayer) -> Laws:
        """The geometric mean of both widths in cross-attention."""
        assert layer.query is not None
        assert layer.key is not None
        assert layer.scale is not None
        d = layer.head_dim
        width = d if self.literal else math.sqrt(layer.query.shape[1] * layer.key.shape[1])
        variance = self.beta * math.sqrt(math.log(self.tokens)) / (layer.scale * math.sqrt(d) * width)
        law = Normal(math.sqrt(variance), f"β = {self.beta:g}, T = {self.tokens}")
        return {("query",): law, ("key",): law}
