"""Numbers for people and for averages: one rounding, one mean, one idea of what is finite."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any


def finite_number(value: Any) -> float | None:
    """Return a number that an axis can show, None for anything else; JSON files keep infinities as text.

    >>> finite_number(3), finite_number("inf"), finite_number(True), finite_number(None)
    (3.0, None, None, None)
    """
    known = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
    return float(value) if known else None


def three_digits(value: float | None) -> str:
    """Write a number with three digits, a dash where there is none.

    >>> three_digits(0.12345), three_digits(2e9), three_digits(None)
    ('0.123', '2e+09', '–')
    """
    return "–" if value is None else f"{float(value):.3g}"


def memory_words(count: int) -> str:
    """Write a number of bytes for people.

    >>> memory_words(3 * 2**30)
    '3.0 GiB'
    """
    return f"{count / 2**30:.1f} GiB" if count >= 2**30 else f"{count / 2**20:.0f} MiB"


def average(values: Sequence[float]) -> float | None:
    """Return the plain mean, None of nothing.

    Where the sum overflows, as that of bounds of nearly one-hot attention does, it is divided before it is summed.

    >>> average([1.0, 2.0]), average([1.5e308, 1.5e308]), average([])
    (1.5, 1.5e+308, None)
    """
    if not values:
        return None
    total = sum(values)
    return total / len(values) if math.isfinite(total) else math.fsum(value / len(values) for value in values)
