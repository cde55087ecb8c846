r"""Integrals over $\tau$ and Gaussian averages on one uniform lattice.

$1/Z^k = \frac{1}{\Gamma(k)} \int_0^\infty t^{k-1} e^{-tZ} dt$ with $t = e^\tau$ turns averages of a softmax into
integrals over the line of products of $m_k(\tau) = E[w^k e^{-w}]$, $w = e^{\tau + sz}$. The integrands are analytic for
$|Im\,\tau| < \pi/2$, so the trapezoid rule with step h is off by about $e^{-\pi^2/h}$: 5e-15 at h = 0.3, and 2e-10
for the highest moment.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cache, lru_cache
from typing import Annotated

import torch
from torch import Tensor

from wellcond._core.argument_types import NotNegative, Range
from wellcond._core.linalg import eigh

LATTICE_STEP = 0.3  # in τ
Deviation = NotNegative
Tokens = Annotated[float, Range(1, 2.0**80)]
HERMITE_NODES = 40  # nodes at the fine steps; a coarse one wants five digits, for which fewer do
MAX_EXPONENT = 700.0  # beyond which exp overflows
MIN_EXPONENT = -46.0  # below which e^(−e^u) is 1 to double precision


def gaussian(deviation: float, step: float = LATTICE_STEP, wide: float = 9.5) -> tuple[Tensor, Tensor]:
    """Return nodes and weights of an average over N(0, deviation²): the lattice, or Gauss–Hermite where it is coarse.

    The lattice is cut off at `wide` standard deviations to either side.

    >>> nodes, weights = gaussian(2.0)
    >>> round(float((weights * nodes**4).sum()), 9)                    # 3 σ⁴
    48.0
    """
    if deviation < 2 * step:
        nodes, weights = _hermite(HERMITE_NODES if step < 0.5 else 18)
        return nodes * deviation, weights
    count = math.ceil(wide * deviation / step)
    nodes = step * torch.arange(-count, count + 1, dtype=torch.float64)
    weights = torch.exp(-0.5 * (nodes / deviation) ** 2)
    return nodes, weights / weights.sum()


@cache
def _hermite(count: int) -> tuple[Tensor, Tensor]:
    """Gauss–Hermite for the standard normal, from the eigenvalues of its Jacobi matrix (Golub & Welsch 1969)."""
    off = torch.arange(1, count, dtype=torch.float64).sqrt()
    values, vectors = eigh(torch.diag(off, 1) + torch.diag(off, -1))
    return values, vectors[0] ** 2


def exponential_moments(
    x: Tensor, deviation: float, orders: tuple[int, ...], step: float = LATTICE_STEP, wide: float = 9.5
) -> tuple[list[Tensor], Tensor]:
    """Return m_k at the points x for each order k, and 1 − m_0, each to full relative precision.

    The Gaussian in the exponent is cut off at `wide` deviations; the largest of T draws is √(2 log T) of them away.
    """
    if deviation < 2 * step:
        nodes, weights = gaussian(deviation, step, wide)
        u = (x[..., None] + nodes).clamp_max(MAX_EXPONENT)
        w = u.exp()
        return [torch.exp(k * u - w) @ weights for k in orders], -torch.expm1(-w) @ weights
    # The same average over the lattice of u = τ + s z, which is common to all x: one exponential per pair of them.
    flat = x.flatten()
    low, high = min(MIN_EXPONENT, -(wide + 1) * deviation), max(6.0, float(flat.max()) + wide * deviation)
    u = step * torch.arange(math.floor(low / step), math.ceil(high / step) + 1, dtype=torch.float64)
    w = u.clamp_max(MAX_EXPONENT).exp()
    values = torch.stack([*(torch.exp(k * u.clamp_max(MAX_EXPONENT) - w) for k in orders), -torch.expm1(-w)], 1)
    values *= step / (deviation * math.sqrt(2 * math.pi))
    chunks = torch.split(flat, max(1, 2**22 // len(u)))
    sums = torch.cat([torch.exp(-0.5 * ((u - chunk[:, None]) / deviation) ** 2) @ values for chunk in chunks])
    *found, missing = sums.T.reshape(len(orders) + 1, *x.shape)
    # Far to the left e^(−w) is 1 and not summed.
    return [
        torch.where(missing < 0.5, 1 - missing, f) if k == 0 else f for k, f in zip(orders, found, strict=True)
    ], missing


def log_probability(missing: Tensor, value: Tensor) -> Tensor:
    """The logarithm of m_0 from 1 − m_0 where that is small, else from m_0 itself."""
    small = missing < 0.5
    return torch.where(small, torch.log1p(-missing.clamp_max(0.5)), value.clamp_min(5e-324).log())


def extrapolate_colder(at: Callable[[float], Sequence[float]], scale: float, gone: Sequence[bool]) -> list[float]:
    """Return averages at logits that are `1/scale` times as large as at the coldest that is integrated, scale < 1.

    All of them are smooth in the temperature, which is 0 where every row is one-hot: the parabola through the values
    at the coldest and at twice and four times its temperature. `at` gives the averages for logits of a share of the
    coldest ones; those that are `gone` with the temperature keep their relative precision.
    """
    weights = ((scale - 2) * (scale - 4) / 3, (scale - 1) * (4 - scale) / 2, (scale - 1) * (scale - 2) / 6)
    values = zip(*(at(1 / u) for u in (1.0, 2.0, 4.0)), strict=True)
    return [
        sum(w * v / (u if none else 1.0) for w, v, u in zip(weights, each, (1.0, 2.0, 4.0), strict=True))
        * (scale if none else 1.0)
        for each, none in zip(values, gone, strict=True)
    ]


def lower_end(deviation: float, tokens: float, slack: float) -> float:
    """Return the τ left of which integrands that begin like w have died out, for T tokens."""
    size = 2 * math.log(tokens) + slack
    return -(deviation**2 / 2 + size) if deviation**2 < 2 * size else -deviation * math.sqrt(2 * size)


@lru_cache(maxsize=1024)
def upper_end(deviation: float, tokens: float, gone: float, step: float = LATTICE_STEP) -> float:
    """Return the τ at which l^(T−1) has fallen below e^−gone; l falls monotonically, so a coarse scan finds it."""
    high = 6.0 + deviation * 9.5
    if tokens < 3:
        return high  # the others' product does not fall faster than a single one
    coarse = torch.linspace(lower_end(deviation, tokens, 0.0), high, 64, dtype=torch.float64)
    (l0,), missing = exponential_moments(coarse, deviation, (0,), max(step, deviation / 4))
    past = float(tokens - 1) * log_probability(missing, l0) < -gone
    return float(coarse[int(past.long().argmax())]) if bool(past.any()) else high
