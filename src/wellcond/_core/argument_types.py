"""Annotations that `@checked` understands: numbers with bounds, and paths."""

from __future__ import annotations

import math
from dataclasses import dataclass
from os import PathLike, fspath
from pathlib import Path
from typing import Annotated, Any


@dataclass(frozen=True)
class Range:
    """Bounds of a number, which belong to it unless `open`; infinity only does where it is a bound and not `open`.

    >>> str(Range(0, 1)), str(Range(1)), str(Range(0, 1, open=True))
    ('from 0 to 1', 'of at least 1', 'above 0 and below 1')
    """

    low: float = -math.inf
    high: float = math.inf
    open: bool = False
    infinite: bool = False

    def __contains__(self, number: Any) -> bool:
        if not self.infinite and not _finite(number):
            return False
        return bool(self.low < number < self.high) if self.open else bool(self.low <= number <= self.high)

    def __str__(self) -> str:
        above, below = ("above", "below") if self.open else ("of at least", "of at most")
        if math.isinf(self.high):
            return "" if math.isinf(self.low) else f"{above} {self.low:g}"
        if math.isinf(self.low):
            return f"{below} {self.high:g}"
        return f"above {self.low:g} and below {self.high:g}" if self.open else f"from {self.low:g} to {self.high:.15g}"


def _finite(number: Any) -> bool:
    try:
        return math.isfinite(number)
    except OverflowError:  # of a whole number beyond every float
        return False


def _is_path(value: str | PathLike[str]) -> bool:
    text = fspath(value)
    return bool(text) and "\0" not in text


def _is_file(value: str | PathLike[str]) -> bool:
    return _is_path(value) and Path(value).name != ""


Count = Annotated[int, Range(1)]
Share = Annotated[float, Range(0, 1)]
Positive = Annotated[float, Range(0, open=True)]
NotNegative = Annotated[float, Range(0)]
Bytes = Annotated[float, Range(0, infinite=True)]
Seed = Annotated[int, Range(-(2**63), 2**64 - 1), "a whole number of 64 bits"]
Folder = Annotated[str | PathLike[str], _is_path, "a path"]
File = Annotated[str | PathLike[str], _is_file, "the path of a file"]
