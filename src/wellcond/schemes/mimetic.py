"""Mimetic initialisation."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Literal

import torch
from torch import Tensor

from wellcond.attention.find import AttentionLayers
from wellcond.attention.view import ROLES, AttentionLayer
from wellcond.draw import WHOLE, Draw
from wellcond.linalg import leading_triples, singular_values, svd
from wellcond.schemes.base import Laws, Scheme, Target, missing, register
from wellcond.schemes.centring import square_value_output
from wellcond.schemes.laws import SIGMAS, Check, Exactly, Law, Shape, joined, split_heads
from wellcond.schemes.positions import find_positions, sincos

Noise = Literal["uniform", "normal"]


@register(
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
        reason = None
        if roles & {"query", "key"}:
            reason = missing(layer, "query", "key") or query_key_refusal(layer)
        if roles & {"value", "output"}:
            reason = reason or square_value_output(layer)
        if reason is None and self.position == "sincos":
            assert layer.root is not None
            found = find_positions(layer.root)
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
            assert layers[0].root is not None
            found = find_positions(layers[0].root)
            assert not isinstance(found, str)
            yield Target(found.path, "position", found.projection, Exactly(partial(sincos, found), "2-D sine–cosine"))


def query_key_refusal(layer: AttentionLayer) -> str | None:
    """Say why a layer has no query–key product on one space, or None."""
    assert layer.query is not None
    assert layer.key is not None
    (heads, width, d), (kv_heads, key_width, key_d) = layer.query.shape, layer.key.shape
    if heads != kv_heads:
        return f"grouped-query: {heads} query heads share {kv_heads} key heads, so products cannot be set one by one"
    if width != key_width or d != key_d:
        return f"query reads width {width} and key {key_width}: their product is not square"
    if d > width:
        return f"head width {d} exceeds D = {width}"
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
        return z + self.beta * torch.eye(size, dtype=torch.float64)

    def _trace_check(self, product: Tensor, head: int, quantity: str) -> Check:
        """Mean of the diagonal: β within the standard error of the mean of D entries of αZ."""
        size = product.shape[0]
        error = abs(self.alpha) / size  # std α/√D, over D entries
        return Check(0, head, quantity, float(product.diagonal().mean()), self.beta, SIGMAS * error + 1e-6)


@dataclass(frozen=True)
class QueryKeyProduct(_Product):
    """Per head, the best rank-d approximation of α Z + β I, split evenly."""

    def sample(self, draw: Draw, roles: tuple[str, ...], shapes: tuple[Shape, ...]) -> tuple[Tensor, ...]:
        """Truncated SVD of each head's target: the D × D factorisation is the cost of this scheme."""
        heads, width, d = shapes[0]
        query, key = torch.empty(heads, d, width), torch.empty(heads, d, width)
        for head in range(heads):
            target = self.target(draw, roles[0], head, width)
            # Half of the singular values of αZ + βI are within a small factor of the largest.
            u, s, vt = leading_triples(target, d) if 2 * d <= width else svd(target)
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
            yield Check(0, head, "imbalance of Q and K", unbalanced, 0.0, tolerance)
            yield Check(0, head, "departure from singular vectors", coupled, 0.0, tolerance)
            yield self._spectrum(query @ key.T, head)

    def _spectrum(self, product: Tensor, head: int) -> Check:
        """Largest singular value: at most ‖αZ‖ + |β|, with ‖Z‖ → 2 for entries of variance 1/D."""
        top = float(singular_values(product)[0])
        low, high = max(abs(self.beta), abs(self.alpha)) * 0.5, 2.5 * abs(self.alpha) + abs(self.beta)
        return Check(0, head, "σ_max of Q Kᵀ", top, (low + high) / 2, (high - low) / 2)

    def __str__(self) -> str:
        return f"Q Kᵀ ≈ {self.alpha:g} Z {self.beta:+g} I, rank d"


@dataclass(frozen=True)
class ValueOutputProduct(_Product):
    """Over all heads together, W_V W_O = α Z + β I exactly."""

    def sample(self, draw: Draw, roles: tuple[str, ...], shapes: tuple[Shape, ...]) -> tuple[Tensor, ...]:
        """SVD of the layer's D × D target; head h gets singular triples h·d…(h+1)·d−1."""
        heads, width, _ = shapes[0]
        u, s, vt = svd(self.target(draw, roles[0], WHOLE, width))
        root = s.sqrt()
        return split_heads(u * root, heads), split_heads(vt.T * root, heads)

    def checks(self, weights: tuple[Tensor, ...], eps: float) -> Iterator[Check]:
        """Diagonal and off-diagonal moments of W_V W_O."""
        product = joined(weights[0]) @ joined(weights[1]).T
        size = product.shape[0]
        yield self._trace_check(product, WHOLE, "mean diagonal of V O")
        noise = product - self.beta * torch.eye(size, dtype=product.dtype)
        kurtosis = 1.8 if self.noise == "uniform" else 3.0
        std = abs(self.alpha) / math.sqrt(size)
        error = std * math.sqrt((kurtosis - 1) / 4) / size
        rounding = eps * (2 * abs(self.alpha) + abs(self.beta))
        measured = float(noise.square().mean().sqrt())
        yield Check(1, WHOLE, "std of V O ∓ β I", measured, std, SIGMAS * error + rounding)

    def __str__(self) -> str:
        return f"V O = {self.alpha:g} Z {self.beta:+g} I"
