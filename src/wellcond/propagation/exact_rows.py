r"""Exact statistics of one softmax row of T Gaussian logits, one of which may be shifted.

With $m_k(\tau) = E[w^k e^{-w}]$, $l = m_0$ for the T − 1 other columns and $k_j(\tau) = m_j(\tau + \mu)$ for the own
one, $E[Y_2] = \int k_2 l^{T-1} + (T-1) m_2 l^{T-2} k_0$, and likewise for the other moments; $\mu = 0$ is the plain
row. As T → ∞ at $s^2 = b^2 \log T$ these become the random-energy model's (Derrida 1981).
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
    LATTICE_STEP,
    Deviation,
    Tokens,
    exponential_moments,
    extrapolate_colder,
    log_probability,
    lower_end,
    upper_end,
)

EULER = 0.5772156649015329
MAX_ROW_DEVIATION = 256.0  # up to which rows are integrated; those of larger ones are continued from there


@dataclass(frozen=True)
class RowStatistics:
    """Averages over the logits of one row.

    Args:
        participation: E[Y₂], Y₂ = Σ p².
        cube: E[Y₃], Y₃ = Σ p³.
        square: E[Y₂²].
        entropy: E[−Σ p log p].
        own: E[p of the own column], 1/T without a shift.
    """

    participation: float
    cube: float
    square: float
    entropy: float
    own: float

    @property
    def gradient(self) -> float:
        """Factor of the query's gradient, R = E[Y₂ − 2 Y₃ + Y₂²]."""
        return max(0.0, self.participation - 2 * self.cube + self.square)


def free_energy(deviation: Tensor, tokens: float) -> Tensor:
    r"""Return log Σ exp of T Gaussian logits as T → ∞: an own logit above it takes the row (Derrida 1981).

    $\log T + s^2/2$ for deviations s up to the freezing at $\sqrt{2 \log T}$, $s\sqrt{2 \log T}$ from there on.

    >>> free_energy(torch.tensor([0.0, 10.0]), math.e**2)
    tensor([ 2., 20.])
    """
    log = math.log(tokens)
    frozen = math.sqrt(2 * log)
    return torch.where(deviation > frozen, deviation * frozen, log + deviation**2 / 2)


@checked
def exact_row(
    deviation: Deviation, tokens: Tokens, shift: float = 0.0, *, step: Annotated[float, Range(0.01, 1)] = LATTICE_STEP
) -> RowStatistics:
    """Return the averages over a row of T tokens whose logits have this standard deviation, at any T from 1 to 2^80.

    Args:
        deviation: s, of the logits along the row.
        tokens: T.
        shift: μ, added to the logit of the own column.
        step: of the lattice.

    >>> row = exact_row(1.5, 16)
    >>> round(row.participation, 8), round(row.entropy, 7), round(row.gradient, 7)
    (0.22030399, 1.9842313, 0.1112317)
    """
    if tokens == 1:
        return RowStatistics(1.0, 1.0, 1.0, 0.0, 1.0)
    # Beyond this an own logit takes the row, or none of it, to all digits.
    most = math.log(tokens) + 40 + (math.sqrt(2 * math.log(tokens)) + 10) * deviation
    shift = max(-most, min(most, shift))
    if deviation > MAX_ROW_DEVIATION:
        return _cold_row(deviation, tokens, shift)
    left = lower_end(deviation, tokens, 34) - max(shift, 0.0)
    right = upper_end(deviation, tokens, 46)
    # l^(T−1) falls over a width of about s/√(2 log T), and nothing else changes faster where s is large.
    fine, step = step, step * max(1.0, deviation / math.sqrt(2 * math.log(tokens)))
    tau = step * torch.arange(math.floor(left / step), math.ceil(right / step) + 1, dtype=torch.float64)
    wide = math.sqrt(2 * math.log(tokens)) + 8
    (m0, m2, m3, m4), missing = exponential_moments(tau, deviation, (0, 2, 3, 4), fine, wide)
    log_l = log_probability(missing, m0)
    (k0, k1, k2, k3, k4), own_missing = exponential_moments(tau + shift, deviation, (0, 1, 2, 3, 4), fine, wide)
    log_k = log_probability(own_missing, k0)

    n = float(tokens - 1)
    one, two = torch.exp(n * log_l), torch.exp((n - 1) * log_l)
    three = torch.exp(max(n - 2, 0.0) * log_l)  # two tokens have no third
    own = float((k1 * one).sum()) * step
    own_square = float((k2 * one).sum()) * step
    other_squares = n * float((m2 * two * k0).sum()) * step
    cube = float((k3 * one + n * m3 * two * k0).sum()) * step / 2
    square = k4 * one + n * m4 * two * k0 + 2 * n * k2 * m2 * two + n * (n - 1) * m2 * m2 * three * k0
    # ∫ (e^(−e^τ) − e^(n log l + log k)) dτ: left of b the first is b + γ short of 1, the second is 0 at b.
    short = -torch.expm1(n * log_l + log_k)
    log_z = float(short.sum() - short[-1] / 2) * step - float(tau[-1]) - EULER
    entropy = log_z - shift * own - deviation**2 * (1 - own_square - other_squares)
    return RowStatistics(own_square + other_squares, cube, float(square.sum()) * step / 6, entropy, own)


def _cold_row(deviation: float, tokens: float, shift: float) -> RowStatistics:
    """A row of larger logits than are integrated: what is missing to a one-hot row falls with the temperature."""

    def at(share: float) -> tuple[float, ...]:
        row = exact_row(MAX_ROW_DEVIATION * share, tokens, shift / deviation * MAX_ROW_DEVIATION * share)
        return 1 - row.participation, 1 - row.cube, 1 - row.square, row.entropy, row.own

    y, cube, square, entropy, own = extrapolate_colder(
        at, MAX_ROW_DEVIATION / deviation, (True, True, True, True, False)
    )
    return RowStatistics(1 - y, 1 - cube, 1 - square, max(0.0, entropy), own)


def asymptotic_row(deviation: float, tokens: float) -> RowStatistics:
    """Return a row in the random-energy limit: uniform up to s = √(2 log T), then governed by m = √(2 log T)/s.

    >>> asymptotic_row(1.0, 256).participation
    0.0
    """
    log = math.log(tokens)
    m = math.sqrt(2 * log) / deviation if deviation > 0 else math.inf
    if m >= 1:
        return RowStatistics(0.0, 0.0, 0.0, log - deviation**2 / 2, 0.0)
    return RowStatistics(1 - m, (1 - m) * (2 - m) / 2, (1 - m) * (3 - 2 * m) / 3, 0.0, 0.0)
