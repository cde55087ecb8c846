"""Student's t without a library: intervals of a mean and p-values, and Holm's correction of several."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean, stdev

CONFIDENCE = 0.95
BISECTIONS = 200  # of [0, 1], until floating-point numbers are next to each other


def within(t: float, freedom: int) -> float:
    """Return P(|T| ≤ t) of Student's distribution, a finite sum for whole degrees of freedom (A&S 26.7.3 and 26.7.4).

    >>> round(within(2.776445, 4), 6), round(within(1.0, 1), 6)
    (0.95, 0.5)
    """
    if math.isinf(t):
        return 1.0
    angle = math.atan(t / math.sqrt(freedom))
    sine, square = math.sin(angle), math.cos(angle) ** 2
    odd = freedom % 2
    term = math.cos(angle) if odd else 1.0
    total = 0.0
    for k in range(1, freedom // 2 + 1):
        total += term
        term *= square * (2 * k / (2 * k + 1) if odd else (2 * k - 1) / (2 * k))
    return 2 / math.pi * (angle + sine * total) if odd else sine * total


def quantile(share: float, freedom: int) -> float:
    """Return t with P(|T| ≤ t) = share.

    >>> round(quantile(0.95, 4), 6)
    2.776445
    """
    low, high = 0.0, 1.0  # of t ÷ (1 + t)
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        low, high = (middle, high) if within(middle / (1 - middle), freedom) < share else (low, middle)
        if middle in (0.0, 1.0) or low == high:
            break
    return high / (1 - high) if high < 1 else math.inf


def mean_interval(values: Sequence[float]) -> tuple[float, float]:
    """Return the 95 % interval of a mean, of two values or more.

    >>> [round(end, 3) for end in mean_interval([1.0, 2.0, 3.0])]
    [-0.484, 4.484]
    """
    return interval_around(fmean(values), stdev(values) / math.sqrt(len(values)), len(values) - 1)


def interval_around(mean: float, error: float, freedom: int) -> tuple[float, float]:
    """Return the 95 % interval of a mean with a standard error that is known to some degrees of freedom.

    >>> [round(end, 3) for end in interval_around(2.0, 3**-0.5, 2)]
    [-0.484, 4.484]
    """
    half = quantile(CONFIDENCE, freedom) * error
    return mean - half, mean + half


def p_of_mean(mean: float, error: float, freedom: int) -> float:
    """Return the two-sided p-value of a mean with a standard error that is known to some degrees of freedom.

    >>> round(p_of_mean(2.0, 3**-0.5, 2), 4)
    0.0742
    """
    if error == 0:
        return 0.0 if mean else 1.0
    return max(0.0, 1.0 - within(abs(mean) / error, freedom))


def holm(p_values: Sequence[float | None]) -> list[float | None]:
    """Correct p-values by Holm's method: `max_{j ≤ i} min(1, (m − j + 1) p_(j))` (Holm, Scand. J. Statist. 6, 1979).

    A missing one counts among the m, as it was meant to be tested: what diverged makes the others no more certain.

    >>> holm([0.01, None, 0.04, 0.03])
    [0.04, None, 0.09, 0.09]
    """
    order = sorted((p, i) for i, p in enumerate(p_values) if p is not None)
    corrected: list[float | None] = [None] * len(p_values)
    largest = 0.0
    for rank, (p, i) in enumerate(order):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p))
        corrected[i] = largest
    return corrected
