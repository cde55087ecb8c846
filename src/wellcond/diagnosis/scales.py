"""Colour scales with a meaning: how wide at least, where they start, and where they turn from good to bad."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

DECADES_SHOWN = 2.0  # of a scale whose place is not known


@dataclass(frozen=True)
class Scale:
    """The range of a quantity's colours: the same for every model, wider only where values lie outside.

    A range that follows the values would paint a κ of 3.2 and one of 3.7 in opposite colours.

    Args:
        log: whether ratios count, rather than differences.
        low, high: the range at least; None for two decades around the values.
        fixed: whether the quantity cannot lie outside, but for rounding.
        diverging: whether two colours meet in the middle of the range, which then stays there.

    >>> KAPPA.limits([3.2, 3.7]), KAPPA.limits([3.2, 5e6]), SHARE.limits([0.99])
    ((1.0, 100.0), (1.0, 5000000.0), (0.0, 1.0))
    """

    log: bool
    low: float | None = None
    high: float | None = None
    fixed: bool = False
    diverging: bool = False

    def limits(self, values: Sequence[float]) -> tuple[float, float]:
        """The ends of the scale for these values.

        >>> low, high = RATIO.limits([1e-6])
        >>> f"{low:.0e} {high:.0e}"
        '1e-06 1e+06'
        >>> low, high = GRADIENT.limits([0.2, 0.3])
        >>> round(math.log10(high / low), 6)
        2.0
        """
        known = [value for value in values if not self.log or value > 0]
        if self.low is None or self.high is None:
            return _around(known)
        if self.fixed or not known:
            return self.low, self.high
        low, high = min(self.low, *known), max(self.high, *known)
        if self.diverging:
            middle = math.sqrt(self.low * self.high)
            factor = max(middle / low, high / middle)
            return middle / factor, middle * factor
        return low, high


def _around(values: Sequence[float]) -> tuple[float, float]:
    """Two decades around the middle of positive values, or as many as they need."""
    if not values:
        return 0.1, 10.0
    low, high = math.log10(min(values)), math.log10(max(values))
    room = max(0.0, DECADES_SHOWN - (high - low)) / 2
    return 10 ** (low - room), 10 ** (high + room)


SHARE = Scale(log=False, low=0.0, high=1.0, fixed=True)
LOGIT = Scale(log=False, low=0.0, high=10.0)  # a softmax of smaller ones is far from one-hot
RANK = Scale(log=False, low=1.0, high=10.0)
KAPPA = Scale(log=True, low=1.0, high=100.0)
KAPPA_JACOBIAN = Scale(log=True, low=1.0, high=1e4)
GAIN = Scale(log=True, low=0.1, high=10.0)
GRADIENT = Scale(log=True)
RATIO = Scale(log=True, low=0.01, high=100.0, diverging=True)
