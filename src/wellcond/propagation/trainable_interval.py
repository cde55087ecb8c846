"""The trainable interval on a line of a diagram."""

from __future__ import annotations

import math

from torch import Tensor


def widest_interval(at: list[float], excess: Tensor) -> tuple[float, float] | None:
    """Return the widest run of points where no criterion is exceeded, its ends interpolated to where one is."""
    worst = excess.amax(0)
    good = (worst <= 0).tolist()
    best: tuple[float, float] | None = None
    start = None
    for i, fine in enumerate([*good, False]):
        if fine and start is None:
            start = i
        if not fine and start is not None:
            low = at[start] if start == 0 else _crossing(at, worst, start, start - 1)
            high = at[i - 1] if i == len(at) else _crossing(at, worst, i - 1, i)
            if best is None or high - low > best[1] - best[0]:
                best = (low, high)
            start = None
    return best


def _crossing(at: list[float], worst: Tensor, inside: int, outside: int) -> float:
    a, b = float(worst[inside]), float(worst[outside])
    return at[inside] + (at[outside] - at[inside]) * (-a / (b - a) if math.isfinite(b) and b > a else 0.0)
