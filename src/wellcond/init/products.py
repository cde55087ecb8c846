"""The products W_Q W_Kᵀ and W_V W_O: which layers can have them set, and the law α Z + β I of a product.

Z has independent entries of variance 1/D. A product's factors are the even split of its SVD.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Literal

import torch
from torch import Tensor

from wellcond._core.chebyshev_filter import ChebyshevFilter
from wellcond._core.keyed_random import WHOLE_PROJECTION, Draw
from wellcond._core.linalg import leading_triples, svd, svdvals
from wellcond.attention.layouts import joined
from wellcond.attention.view import AttentionLayer
from wellcond.init.laws import SIGMAS, Check, Law, Shape, split_heads
from wellcond.init.scheme import missing_roles

Noise = Literal["uniform", "normal"]


def query_key_refusal(layer: AttentionLayer) -> str | None:
    """Return why a layer has no query–key product on one space, or None."""
    if layer.query is None or layer.key is None:
        return missing_roles(layer, "query", "key")
    (heads, width, d), (kv_heads, key_width, key_d) = layer.query.shape, layer.key.shape
    if heads != kv_heads:
        return f"grouped-query: {heads} query heads share {kv_heads} key heads, so products cannot be set one by one"
    if width != key_width or d != key_d:
        return f"query reads width {width} and key {key_width}: their product is not square"
    if d > width:
        return f"head width {d} exceeds D = {width}"
    return None


def value_output_refusal(layer: AttentionLayer) -> str | None:
    """Return why a layer has no square value–output product, or None."""
    if layer.value is None or layer.output is None:
        return missing_roles(layer, "value", "output")
    heads, width, d = layer.value.shape
    if layer.output.heads != heads:
        return f"grouped-query: {layer.output.heads} output heads share {heads} value heads"
    if layer.output.shape != layer.value.shape or heads * d != width:
        return f"needs heads · d = D on both sides: value {width} × {heads}·{d}, output {layer.output.shape[1]}"
    return None


@dataclass(frozen=True)
class _Product(Law):
    """A factored product α Z + β I; `beta` carries the sign."""

    alpha: float
    beta: float
    noise: Noise

    def target(self, draw: Draw, role: str, head: int, size: int) -> Tensor:
        """α Z + β I, keyed by the first role of the pair and the head."""
        sample = draw.uniform if self.noise == "uniform" else draw.normal
        z = sample(role, 1, size, size, first=head)[0].to(torch.float64)
        z *= self.alpha * (math.sqrt(3 / size) if self.noise == "uniform" else math.sqrt(1 / size))
        z.diagonal().add_(self.beta)
        return z


@dataclass(frozen=True)
class QueryKeyProduct(_Product):
    """Per head, the best rank-d approximation of α Z + β I, split evenly."""

    @cache  # noqa: B019 - a law is a few numbers
    def filter(self, width: int, d: int) -> ChebyshevFilter | None:
        """The quick way to the targets' leading triples, from one draw: all of one size have like singular values."""
        if not ChebyshevFilter.pays(width, d):
            return None
        return ChebyshevFilter.of(svdvals(self.target(Draw(0, "spectrum"), "query", 0, width)), d)

    def sample(self, draw: Draw, roles: tuple[str, ...], shapes: tuple[Shape, ...]) -> tuple[Tensor, ...]:
        """Truncated SVD of each head's target: the D × D factorisation is the cost of this scheme."""
        heads, width, d = shapes[0]
        quick = self.filter(width, d)
        query, key = torch.empty(heads, d, width), torch.empty(heads, d, width)
        for head in range(heads):
            target = self.target(draw, roles[0], head, width)
            found = quick.triples(target) if quick is not None else None
            # Half of the singular values of αZ + βI are within a small factor of the largest.
            u, s, vt = found or (leading_triples(target, d) if 2 * d <= width else svd(target))
            root = s[:d].sqrt()[:, None]
            query[head], key[head] = u[:, :d].T * root, vt[:d] * root
        return query.mT, key.mT

    def checks(self, weights: tuple[Tensor, ...], eps: float) -> Iterator[Check]:
        """The factors are balanced (W_QᵀW_Q = W_KᵀW_K, diagonal) as only an SVD split makes them."""
        for head, (query, key) in enumerate(zip(*weights, strict=True)):
            grams = query.T @ query, key.T @ key
            largest = max(float(grams[0].diagonal().max()), torch.finfo(torch.float64).tiny)
            unbalanced = float((grams[0] - grams[1]).abs().max()) / largest
            coupled = float((grams[0] - torch.diag(grams[0].diagonal())).abs().max()) / largest
            tolerance = 8 * eps * math.sqrt(query.shape[0])  # rounding of D entries a column
            yield Check(0, head, "imbalance of Q and K", unbalanced, 0.0, tolerance, spectral=True)
            yield Check(0, head, "departure from singular vectors", coupled, 0.0, tolerance, spectral=True)
            # At most ‖αZ‖ + |β|, with ‖Z‖ → 2 for entries of variance 1/D.
            low, high = max(abs(self.beta), abs(self.alpha)) * 0.5, 2.5 * abs(self.alpha) + abs(self.beta)
            top = float(svdvals(query @ key.T)[0])
            yield Check(0, head, "σ_max of Q Kᵀ", top, (low + high) / 2, (high - low) / 2, spectral=True)

    def __str__(self) -> str:
        return f"Q Kᵀ ≈ {self.alpha:g} Z {self.beta:+g} I, rank d"


@dataclass(frozen=True)
class ValueOutputProduct(_Product):
    """Over all heads together, W_V W_O = α Z + β I exactly."""

    def sample(self, draw: Draw, roles: tuple[str, ...], shapes: tuple[Shape, ...]) -> tuple[Tensor, ...]:
        """SVD of the layer's D × D target; head h gets singular triples h·d…(h+1)·d−1."""
        heads, width, _ = shapes[0]
        u, s, vt = svd(self.target(draw, roles[0], WHOLE_PROJECTION, width))
        root = s.sqrt()
        return split_heads(u * root, heads), split_heads(vt.T * root, heads)

    def checks(self, weights: tuple[Tensor, ...], eps: float) -> Iterator[Check]:
        """Diagonal and off-diagonal moments of W_V W_O, and its norm."""
        product = joined(weights[0]) @ joined(weights[1]).T
        size = product.shape[0]
        diagonal, error = float(product.diagonal().mean()), abs(self.alpha) / size  # std α/√D, over D entries
        yield Check(0, WHOLE_PROJECTION, "mean diagonal of V O", diagonal, self.beta, SIGMAS * error + 1e-6)
        noise = product - self.beta * torch.eye(size, dtype=product.dtype)
        kurtosis = 1.8 if self.noise == "uniform" else 3.0
        std = abs(self.alpha) / math.sqrt(size)
        error = std * math.sqrt((kurtosis - 1) / 4) / size
        rounding = eps * (2 * abs(self.alpha) + abs(self.beta))
        measured = float(noise.square().mean().sqrt())
        yield Check(1, WHOLE_PROJECTION, "std of V O ∓ β I", measured, std, SIGMAS * error + rounding)
        # ‖αZ + βI‖² ÷ D has mean α² + β² and variance α² (α² (kurtosis − 1) + 4β²) ÷ D².
        norm, expected = float(product.square().sum()) / size, self.alpha**2 + self.beta**2
        error = abs(self.alpha) * math.sqrt(self.alpha**2 * (kurtosis - 1) + 4 * self.beta**2) / size
        tolerance = SIGMAS * error + 8 * eps * expected
        yield Check(1, WHOLE_PROJECTION, "mean σ² of V O", norm, expected, tolerance, spectral=True)

    def __str__(self) -> str:
        return f"V O = {self.alpha:g} Z {self.beta:+g} I"
