"""Symmetric query–key products (Saponati et al. 2025)."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from wellcond._core.argument_types import Positive
from wellcond._core.keyed_random import Draw
from wellcond.attention.view import AttentionLayer
from wellcond.init.fan_laws import Distribution, fan_in_law
from wellcond.init.laws import Check, Law, Shape
from wellcond.init.products import query_key_refusal
from wellcond.init.registry import register_scheme
from wellcond.init.scheme import Laws, Scheme


@register_scheme(
    "symmetric",
    citation="Saponati et al. 2025 (The underlying structures of self-attention), arXiv 2502.10927",
    published="W_K = W_Q as nn.Linear draws them, U(±1/√D), that is gain 0.577; BERT and BERT-mini from scratch",
)
@dataclass(frozen=True)
class Symmetric(Scheme):
    r"""W_K = W_Q in every head, so that W_Q W_Kᵀ is symmetric, as training makes it in encoders; V and O stay.

    The product $\pm W_Q W_Q^\top$ is also semi-definite: tokens attend to those alike (or unlike) them. Decoders grow
    products that are not symmetric, and biases, which stay, make logits so.

    Args:
        gain: W_Q has variance gain² ÷ D.
        distribution: `"uniform"` or `"normal"`.
        sign: −1 for W_K = −W_Q.
    """

    gain: Positive = 1.0
    distribution: Distribution = "uniform"
    sign: Literal[1, -1] = 1

    def applies(self, layer: AttentionLayer) -> str | None:
        """Needs as many key heads as query heads, of one width."""
        return query_key_refusal(layer)

    def laws(self, layer: AttentionLayer) -> Laws:
        """One joint law."""
        assert layer.query is not None
        return {("query", "key"): SamePair(fan_in_law("query", layer.query, self.gain, self.distribution), self.sign)}


@dataclass(frozen=True)
class SamePair(Law):
    """One draw for two roles, the second with a sign."""

    law: Law
    sign: int

    def sample(self, draw: Draw, roles: tuple[str, ...], shapes: tuple[Shape, ...]) -> tuple[Tensor, ...]:
        """Draw for the first role."""
        (drawn,) = self.law.sample(draw, roles[:1], shapes[:1])
        return drawn, drawn * self.sign

    def rms(self, role: int, shapes: tuple[Shape, ...]) -> float:
        """Scale of the draw."""
        return self.law.rms(0, shapes[:1])

    def checks(self, weights: tuple[Tensor, ...], eps: float) -> Iterator[Check]:
        """The moments of W_Q, and of each product its asymmetry and its trace, in units of ‖W_Q‖², to rounding."""
        yield from self.law.checks(weights[:1], eps)
        for head, (query, key) in enumerate(zip(*weights, strict=True)):
            product = query @ key.T
            size = max(float(query.square().sum()), torch.finfo(torch.float64).tiny)
            tolerance = eps * math.sqrt(query.shape[1])
            yield Check(1, head, "asymmetry of Q Kᵀ", float((product - product.T).norm()) / size, 0.0, tolerance)
            yield Check(1, head, "trace of Q Kᵀ", float(product.trace()) / size, self.sign, tolerance)

    def __str__(self) -> str:
        return f"K = {'' if self.sign > 0 else '−'}Q, {self.law}"
