"""The row of a measured quantity, its colour scale and the verdicts on its number; `quantities` has the table."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from wellcond.diagnosis.readings import Read, Reading, Source
from wellcond.diagnosis.remedies import Remedy

Statistic = Literal["mean", "min", "max"]
DECADES_SHOWN = 2.0  # of a scale whose place is not known


@dataclass(frozen=True)
class Scale:
    """The range of a quantity's colours: the same for every model, wider only where values lie outside.

    A range that follows the values would paint a κ of 3.2 and one of 3.7 in opposite colours.

    >>> from wellcond.diagnosis.quantities import KAPPA, SHARE
    >>> KAPPA.limits([3.2, 3.7]), KAPPA.limits([3.2, 5e6]), SHARE.limits([0.99])
    ((1.0, 100.0), (1.0, 5000000.0), (0.0, 1.0))
    """

    log: bool  # whether ratios count, rather than differences
    low: float | None = None  # the range at least; None for two decades around the values
    high: float | None = None
    fixed: bool = False  # whether the quantity cannot lie outside, but for rounding
    diverging: bool = False  # whether two colours meet in the middle of the range, which then stays there

    def limits(self, values: Sequence[float]) -> tuple[float, float]:
        """The ends of the scale for these values.

        >>> from wellcond.diagnosis.quantities import GRADIENT, RATIO
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


@dataclass(frozen=True)
class VerdictRule:
    """When a number is called wrong, and what to do then."""

    code: str  # in a word or three; a `ConcernKind`, which has how grave it is
    text: str  # with {value}, {percent}, {label}, {symbol} and the reading's facts
    remedy: Remedy
    above: str = ""  # field of `wc.Thresholds` that the value must not exceed
    below: str = ""  # or fall short of
    status: str = ""  # or the status of a reading that is wrong by itself
    unless: str = ""  # code that makes this one superfluous

    def excess(self, found: Reading, limits: Any) -> float | None:
        """Return a number that is larger for the worse of two heads; None where nothing is wrong."""
        if self.status:
            return -(found.facts.get("rank") or 0) if found.status == self.status else None
        if found.value is None:
            return None
        if self.above:
            return found.value if found.value > getattr(limits, self.above) else None
        return -found.value if found.value < getattr(limits, self.below) else None


@dataclass(frozen=True)
class Column:
    """A column of the terminal's table, one row a layer; quantities with an equal one share it."""

    header: str
    pick: Literal["median", "min", "max"] = "median"  # what is shown of the heads
    form: str = ".2g"  # how a number is written


@dataclass(frozen=True)
class Quantity:
    """One measured quantity: how it is read, and all that is said of it anywhere."""

    key: str  # its name in flat rows, trackers and run folders
    label: str  # its symbol or name
    source: Source  # which records of a layer have it
    read: Read  # from one of those records
    scale: Scale  # of its colours
    group: str = ""  # of the page's menu; empty if the page does not show it
    role: str = ""  # whose weight it is of
    otherwise: str = ""  # key of the quantity that has its number, for averages, in a layer where it has none
    words: str = ""  # its name where it stands alone, as above a curve
    meaning: str = ""  # of the ends of the scale, in words
    column: bool = False  # whether the page's table has it without being asked
    overview: bool = False  # whether the page opens on it
    picture: bool = False  # whether `Diagnosis.plot` shows it
    headline: bool = False  # whether a comparison shows it before the others
    terminal: Column | None = None  # its column in the terminal's table
    logged: tuple[Statistic, ...] = ()  # what trackers and the laboratory's tables get of it; the first by its key
    kept: tuple[str, ...] | None = None  # statuses of readings that count in averages; None for all that have a value
    figure: str = ""  # the papers' figure that it is drawn in; empty if none
    axis: str = ""  # its name there, where `words` or the label say too much
    line: Literal["solid", "dashed", "dashdot", "dotted"] = "solid"  # and its style
    log: bool | None = None  # whether curves have a logarithmic axis; None if the numbers decide
    verdicts: tuple[VerdictRule, ...] = ()

    @property
    def title(self) -> str:
        """Its name where it stands alone."""
        return self.words or self.label

    @property
    def names(self) -> dict[str, Statistic]:
        """By what name a tracker gets which statistic of it."""
        return {self.key if not index else f"{self.key}_{one}": one for index, one in enumerate(self.logged)}
