r"""Exact statistics of two softmax rows whose logits are correlated column by column.

Write a logit as $\sqrt\rho\,c + \sqrt{1-\rho}\,e$. Given the common parts c the two rows are independent, so what
would be integrals over four dimensions are matrix products: with $f_k(x) = E_e[w^k e^{-w}]$,
$M(\tau, \upsilon) = E_c[f_0 f_0']$ and $g_{jk} = E_c[f_j f_k']$, $E[X] = T \iint g_{11} M^{T-1}$ for the overlap
$X = \sum_s A_{ts} A_{us}$. A second row with n more columns (a later position of a decoder) multiplies by
$l(\upsilon)^n$.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor

from wellcond._core.argument_types import Range
from wellcond._core.checked import checked
from wellcond.propagation.gaussian_lattice import (
    Deviation,
    Tokens,
    exponential_moments,
    extrapolate_colder,
    gaussian,
    log_probability,
    lower_end,
    upper_end,
)

PAIR_STEP = 0.4
COARSE_PAIR_STEP = 0.65  # enough for five digits of the overlap
MAX_PAIR_DEVIATION = 10.0  # ÷ √(2 log T), up to which pairs are integrated, which takes its cube in time


@dataclass(frozen=True)
class Pair:
    """Averages over the logits of two rows.

    Args:
        overlap: E[X], X = Σ A A'.
        gradient: S = E[X − Σ A²A' − Σ A A'² + X²], what a coherent query gradient is proportional to.
    """

    overlap: float
    gradient: float


@checked
def exact_pair(
    deviation: Deviation,
    correlation: Annotated[float, Range(-1, 1)],
    tokens: Tokens,
    *,
    second: Deviation | None = None,
    extra: Annotated[float, Range(0, 2.0**80)] = 0,
    step: Annotated[float, Range(0.05, 1)] = PAIR_STEP,
) -> Pair:
    """Return the averages over two rows of T tokens.

    Logits whose deviation is more than 10 √(2 log T) are continued from there; the overlap is then off by 1e-2 at most,
    where rows are nearly equal, and by 1e-4 up to a correlation of 0.9.

    Args:
        deviation: s, of the logits along the first row.
        correlation: ρ of the two rows' logits in the same column.
        tokens: T, the columns that both rows see.
        second: the deviation of the second row, if it is another.
        extra: columns that only the second row sees.
        step: of the lattice.

    >>> pair = exact_pair(1.5, 0.5, 16)
    >>> round(pair.overlap, 7), round(pair.gradient, 6)
    (0.1222924, 0.067479)
    """
    first, other = deviation, deviation if second is None else second
    scale = MAX_PAIR_DEVIATION * math.sqrt(2 * math.log(tokens + extra + 1)) / max(first, other, 1e-300)
    if scale < 1:

        def at(share: float) -> tuple[float, float]:
            one, two = first * scale * share, other * scale * share
            pair = exact_pair(one, correlation, tokens, second=two, extra=extra, step=step)
            return pair.overlap, pair.gradient

        overlap, gradient = extrapolate_colder(at, scale, (False, True))
        return Pair(overlap, max(0.0, gradient))
    wide = max(9.5, math.sqrt(2 * math.log(tokens)) + 6)
    common, weights = _common(math.sqrt(abs(correlation)), max(first, other), step, wide)
    own = math.sqrt(1 - abs(correlation))
    _, left, left_missing = rows = _side(first, first * own, first * common, tokens, step, wide)
    if other != first or extra:
        rows = _side(other, other * own, other * common, tokens + extra, step, wide)
    _, right, right_missing = rows
    if correlation < 0:  # the nodes of the common part are symmetric
        right, right_missing = [f.flip(1) for f in right], right_missing.flip(1)
    n = float(tokens)

    def average(a: Tensor, b: Tensor) -> Tensor:
        return (a * weights) @ b.mT

    f0, f1, f2 = left
    h0, h1, h2 = right
    joint = average(f0, h0)
    # 1 − f f' = (1 − f) + (1 − f') − (1 − f)(1 − f'), without cancellation.
    lost_left, lost_right = left_missing @ weights, right_missing @ weights
    missing = lost_left[:, None] + lost_right[None, :] - average(left_missing, right_missing)
    log_m = log_probability(missing, joint)
    more = torch.zeros(())
    if extra:
        (l0,), l_missing = exponential_moments(rows[0], other, (0,), step, wide)
        more = extra * log_probability(l_missing, l0)[None, :]
    once, twice = torch.exp((n - 1) * log_m + more), torch.exp(max(n - 2, 0.0) * log_m + more)
    g11 = average(f1, h1)
    area = step * step
    overlap = n * float((g11 * once).sum()) * area
    cubes = n * float(((average(f2, h1) + average(f1, h2)) * once).sum()) * area
    square = float((n * average(f2, h2) * once + n * (n - 1) * g11 * g11 * twice).sum()) * area
    return Pair(overlap, overlap - cubes + square)


def _common(share: float, deviation: float, step: float, wide: float) -> tuple[Tensor, Tensor]:
    """Nodes of the common part, in units of the deviation, such that times the deviation they lie on the lattice."""
    if share * deviation == 0:
        return torch.zeros(1, dtype=torch.float64), torch.ones(1, dtype=torch.float64)
    nodes, weights = gaussian(share * deviation, step, wide)
    return nodes / deviation, weights


def _side(
    deviation: float, own: float, c: Tensor, tokens: float, step: float, wide: float
) -> tuple[Tensor, list[Tensor], Tensor]:
    """τ, f_0, f_1 and f_2 at each τ and common part of one row, `(n_tau, n_c)`, and 1 − f_0."""
    left, right = lower_end(deviation, tokens, 20), upper_end(deviation, tokens, 32, step)
    tau = step * torch.arange(math.floor(left / step), math.ceil(right / step) + 1, dtype=torch.float64)
    if len(c) > 1 and math.isclose(abs(float(c[1] - c[0])), step, rel_tol=1e-9):
        # On the lattice τ + c takes few values: f is computed once at each, and shifted.
        half = len(c) // 2
        line = tau[0] + step * torch.arange(-half, len(tau) + half, dtype=torch.float64)
        found, missing = exponential_moments(line, own, (0, 1, 2), step, wide)
        shifted = [f.unfold(0, len(c), 1) for f in (*found, missing)]
        return tau, shifted[:3], shifted[3]
    found, missing = exponential_moments(tau[:, None] + c[None, :], own, (0, 1, 2), step, wide)
    return tau, found, missing
