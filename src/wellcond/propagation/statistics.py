"""What a block needs to know of attention: row and pair statistics for a temperature, a shift and a similarity."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch

from wellcond.linalg import eigh
from wellcond.propagation.pairs import COARSE, exact_pair
from wellcond.propagation.rows import asymptotic_row, exact_row


@dataclass(frozen=True)
class Attention:
    """Averages of the attention matrix of one layer.

    Args:
        participation: y = E[Σ A²] of a row.
        overlap: x = E[Σ A A'] of two rows.
        entropy: E[H] ÷ log T.
        own: E[A_tt].
        row_gradient: R, the query gradient's factor for gradients that differ from token to token.
        pair_gradient: S, its factor for what they have in common.
    """

    participation: float
    overlap: float
    entropy: float
    own: float
    row_gradient: float
    pair_gradient: float


Statistics = Callable[[float, float, float], Attention]  # of deviation s, correlation ρ of two rows, shift μ


def asymptotic(tokens: int) -> Statistics:
    """The random-energy limit of infinitely many tokens, as published."""

    def at(deviation: float, correlation: float, shift: float) -> Attention:
        row = asymptotic_row(deviation, tokens)
        return Attention(row.participation, 0.0, row.entropy / math.log(tokens), 0.0, row.gradient, 0.0)

    return at


def finite(tokens: int, head_dim: int | None = None) -> Statistics:
    """Exact for T tokens; with `head_dim`, averaged over how far query norms scatter in that many dimensions."""

    def at(deviation: float, correlation: float, shift: float) -> Attention:
        points = [(1.0, 1.0)] if head_dim is None else _norms(head_dim)
        rows = [(weight, exact_row(deviation * scale, tokens, shift)) for scale, weight in points]
        y = sum(weight * row.participation for weight, row in rows)
        entropy = sum(weight * row.entropy for weight, row in rows)
        own = sum(weight * row.own for weight, row in rows)
        r = sum(weight * row.gradient for weight, row in rows)
        pairs = [(1.0, 1.0, correlation, 1.0)] if head_dim is None else _norm_pairs(head_dim, correlation)
        x = s = 0.0
        for first, second, rho, weight in pairs:
            pair = exact_pair(deviation * first, rho, tokens, second=deviation * second, step=COARSE)
            x, s = x + weight * pair.overlap, s + weight * pair.gradient
        if shift:  # both rows may attend to themselves, which they never do in the same column
            x = (1 - own) ** 2 * x + 2 * own * (1 - own) / tokens
            s = (1 - own) ** 2 * s
        return Attention(y, x, entropy / math.log(tokens), own, r, s)

    return at


def _norms(d: int) -> list[tuple[float, float]]:
    """√(χ²_d/d) at the three nodes of Gauss–Laguerre quadrature, and their weights (Golub & Welsch 1969)."""
    alpha = d / 2 - 1
    k = torch.arange(3, dtype=torch.float64)
    off = torch.sqrt(k[1:] * (k[1:] + alpha))
    values, vectors = eigh(torch.diag(2 * k + alpha + 1) + torch.diag(off, 1) + torch.diag(off, -1))
    return [(math.sqrt(2 * float(v) / d), float(w)) for v, w in zip(values, vectors[0] ** 2, strict=True)]


def _norm_pairs(d: int, rho: float) -> list[tuple[float, float, float, float]]:
    """Norms and correlation of two query vectors in d dimensions, at six points of spherical cubature.

    The Wishart matrix of two correlated vectors is A L Lᵀ Aᵀ with Bartlett's L, made of two χ and a normal variable.
    """
    root = math.sqrt(max(0.0, 1 - rho * rho))
    found = []
    for axis in range(3):
        for sign in (-1.0, 1.0):
            g = [sign * math.sqrt(3) if i == axis else 0.0 for i in range(3)]
            c1 = math.sqrt(_chi_square(d, g[0]))
            c2 = math.sqrt(_chi_square(d - 1, g[1])) if d > 1 else 0.0
            first, second = (c1, 0.0), (rho * c1 + root * g[2], root * c2)
            n1, n2 = math.hypot(*first), math.hypot(*second)
            cosine = first[0] * second[0] / (n1 * n2) if n1 * n2 else 0.0
            found.append((n1 / math.sqrt(d), n2 / math.sqrt(d), max(-1.0, min(1.0, cosine)), 1 / 6))
    return found


def _chi_square(d: int, z: float) -> float:
    """The quantile of χ²_d at a standard normal z (Wilson & Hilferty 1931)."""
    return d * max(0.0, 1 - 2 / (9 * d) + z * math.sqrt(2 / (9 * d))) ** 3
