"""Statistics of random attention that a block needs, of rows and of pairs, by temperature, shift and similarity."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TypeVar

import torch
from torch import Tensor

from wellcond._core.linalg import eigh
from wellcond.propagation.exact_pairs import COARSE_PAIR_STEP, exact_pair
from wellcond.propagation.exact_rows import exact_row

# Standard deviation of logits beyond which rows are taken as no sharper: they point at one token either way, the same
# one if its shift is scaled alike, and integrals over pairs of rows grow with its square: 0.7 s at 10, 19 s at 40.
MAX_LOGIT_DEVIATION = 10.0

Value = float | Tensor
Number = TypeVar("Number", float, Tensor)


@dataclass(frozen=True)
class Attention:
    """Averages of the attention matrix of one layer."""

    participation: Tensor  # y = E[Σ A²] of a row
    overlap: Value  # x = E[Σ A A'] of two rows
    entropy: Tensor  # E[H] ÷ log T
    own: Value  # E[A_tt]
    row_gradient: Tensor  # R, the query gradient's factor for gradients that differ from token to token
    pair_gradient: Value  # S, its factor for what they have in common


Statistics = Callable[[Tensor, Tensor, Tensor], Attention]  # of deviation s, correlation ρ of two rows, shift μ


def asymptotic_statistics(tokens: int) -> Statistics:
    """Return the statistics of infinitely many tokens, the random-energy limit: `asymptotic_row` of each element."""
    critical, log = math.sqrt(2 * math.log(tokens)), math.log(tokens)

    def at(deviation: Tensor, correlation: Tensor, shift: Tensor) -> Attention:
        y = (1 - critical / deviation).clamp_min_(0.0)
        entropy = (deviation * deviation).mul_(-0.5 / log).add_(1.0).clamp_min_(0.0)
        return Attention(y, 0.0, entropy, 0.0, torch.addcmul(y, y, y, value=-1).div_(3.0), 0.0)

    return at


def exact_statistics(tokens: int, head_dim: float | None = None) -> Statistics:
    """Return the exact statistics of T tokens; with `head_dim`, averaged over how query norms scatter."""

    def at(deviation: Tensor, correlation: Tensor, shift: Tensor) -> Attention:
        shape = (deviation + correlation + shift).shape
        points = torch.stack([x.expand(shape) for x in (deviation, correlation, shift)], -1)
        found = [_exact(s, rho, mu, tokens, head_dim) for s, rho, mu in points.reshape(-1, 3).tolist()]
        columns = torch.tensor(found, dtype=torch.float64, device=deviation.device).T
        return Attention(*columns.reshape(-1, *shape))

    return at


def ragged_statistics(alone: float, together: float, head_dim: float | None = None) -> Statistics:
    """Return exact statistics of rows at one length and of pairs of rows at another; exact for even attention.

    Causal and padding masks leave rows of different lengths: at length `alone` even attention has the mask's mean Σ p²,
    at `together` its mean Σ p p' of two rows.

    >>> seen = ragged_statistics(14, 32)(*torch.zeros(3, dtype=torch.float64))         # a decoder of 64 tokens, about
    >>> round(1 / float(seen.participation)), round(1 / float(seen.overlap))
    (14, 32)
    """
    rows, pairs = exact_statistics(max(2, round(alone)), head_dim), exact_statistics(max(2, round(together)), head_dim)
    even = round(alone) == round(together)

    def at(deviation: Tensor, correlation: Tensor, shift: Tensor) -> Attention:
        less = (MAX_LOGIT_DEVIATION / deviation.clamp_min(MAX_LOGIT_DEVIATION)).clamp_max(1.0)
        given = deviation * less, correlation, shift * less
        seen = rows(*given)
        other = seen if even else pairs(*given)
        return replace(seen, overlap=other.overlap, pair_gradient=other.pair_gradient)

    return at


def _exact(s: float, rho: float, shift: float, tokens: int, head_dim: float | None) -> tuple[float, ...]:
    """The fields of `Attention` at one point."""
    y, entropy, own, r = row_averages(s, shift, tokens, head_dim)
    x, gradient = pair_averages(s, rho, tokens, head_dim)
    if shift:
        x, gradient = self_attending_pairs(x, gradient, own, tokens)
    return y, x, entropy, own, r, gradient


def row_averages(s: float, shift: float, tokens: int, head_dim: float | None = None) -> tuple[float, ...]:
    """Return y, E[H] ÷ log T, E[A_tt] and R of a row."""
    points = [(1.0, 1.0)] if head_dim is None else _norms(head_dim)
    rows = [(weight, exact_row(s * scale, tokens, shift)) for scale, weight in points]
    found = [(row.participation, row.entropy / math.log(tokens), row.own, row.gradient) for _, row in rows]
    return tuple(sum(weight * one[i] for (weight, _), one in zip(rows, found, strict=True)) for i in range(4))


def pair_averages(s: float, rho: float, tokens: int, head_dim: float | None = None) -> tuple[float, float]:
    """Return X and S of two rows without a shift."""
    pairs = [(1.0, 1.0, rho, 1.0)] if head_dim is None else _norm_pairs(head_dim, rho)
    x = gradient = 0.0
    for first, second, cosine, weight in pairs:
        pair = exact_pair(s * first, cosine, tokens, second=s * second, step=COARSE_PAIR_STEP)
        x, gradient = x + weight * pair.overlap, gradient + weight * pair.gradient
    return x, gradient


def self_attending_pairs(overlap: Number, gradient: Number, own: Number, tokens: int) -> tuple[Number, Number]:
    """Return X and S of two rows that may attend to themselves, which they never do in the same column."""
    other = (1 - own) ** 2
    return other * overlap + 2 * own * (1 - own) / tokens, other * gradient


def _norms(d: float) -> list[tuple[float, float]]:
    """√(χ²_d/d) at the three nodes of Gauss–Laguerre quadrature, and their weights (Golub & Welsch 1969)."""
    alpha = d / 2 - 1
    k = torch.arange(3, dtype=torch.float64)
    off = torch.sqrt(k[1:] * (k[1:] + alpha))
    values, vectors = eigh(torch.diag(2 * k + alpha + 1) + torch.diag(off, 1) + torch.diag(off, -1))
    return [(math.sqrt(2 * float(v) / d), float(w)) for v, w in zip(values, vectors[0] ** 2, strict=True)]


def _norm_pairs(d: float, rho: float) -> list[tuple[float, float, float, float]]:
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


def _chi_square(d: float, z: float) -> float:
    """The quantile of χ²_d at a standard normal z (Wilson & Hilferty 1931)."""
    return d * max(0.0, 1 - 2 / (9 * d) + z * math.sqrt(2 / (9 * d))) ** 3
