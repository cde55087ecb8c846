"""How much of the differences between arms a number that is known at the start explains, each arm held out in turn."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

FEWEST_ARMS = 6  # that a curve of three numbers can be held out from
RESAMPLES = 999  # of arms
LEVERAGE = 1 - 1e-6  # of an arm without which the others do not tell the curve
ROUNDING = 1e-12  # of results: smaller differences are none


@dataclass(frozen=True)
class Share:
    """The share of the variance between arms that a predictor explains.

    Args:
        predictor: its name.
        share: 1 − Σ (y − ŷ)² ÷ Σ (y − ȳ)² over arms, ŷ being predicted without the arm; negative where the mean of the
            others does better. None where it is known of too few arms, or these do not differ.
        interval: 95 % of resamples of the arms, each with its prediction.
        arms: over how many.
    """

    predictor: str
    share: float | None
    interval: tuple[float, float] | None
    arms: int


def share_of(predictor: str, means: Sequence[float], predicted: Sequence[float] | None) -> Share:
    """Return the share of the variance between arms that predictions explain.

    Args:
        predictor: its name.
        means: of each arm, over its seeds.
        predicted: of each arm, without it; None where nothing can be.

    >>> share_of("half", [1.0, 2.0, 3.0], [1.5, 2.0, 2.5]).share
    0.75
    """
    y = np.asarray(means, dtype=np.float64)
    if predicted is None or len(y) < 2:
        return Share(predictor, None, None, len(y))
    told = np.asarray(predicted, dtype=np.float64)

    def share(chosen: NDArray[np.intp]) -> float:
        whole = float(((y[chosen] - y[chosen].mean()) ** 2).sum())
        left = float(((y[chosen] - told[chosen]) ** 2).sum())
        return 1 - left / whole if math.sqrt(whole) > ROUNDING * float(np.abs(y).max()) else math.nan

    generator = np.random.default_rng(0)
    drawn = [share(generator.integers(len(y), size=len(y))) for _ in range(RESAMPLES)]
    known = [value for value in drawn if math.isfinite(value)]
    found = share(np.arange(len(y)))
    if not math.isfinite(found):
        return Share(predictor, None, None, len(y))
    low, high = np.quantile(known, [0.025, 0.975])
    return Share(predictor, found, (float(low), float(high)), len(y))


def held_out(numbers: Sequence[Sequence[float]], means: Sequence[float]) -> list[float] | None:
    """Return what the others predict of each arm, by a parabola in the logarithm of each number.

    A prediction stays within what the others have: a parabola that is continued to a lone arm may be anywhere. Where
    the others do not tell the curve, it is their mean. None where there are too few arms.

    Args:
        numbers: of each arm, positive, as many for all.
        means: of each arm, over its seeds.
    """
    if len(numbers) < FEWEST_ARMS:
        return None
    x, y = np.log(np.array(numbers, dtype=np.float64)), np.asarray(means, dtype=np.float64)
    x = (x - x.mean(0)) / np.where(x.std(0) > 0, x.std(0), 1)
    design = np.hstack([np.ones((len(x), 1)), x, x**2])
    if len(x) <= design.shape[1]:
        return None
    leverage = np.diag(design @ np.linalg.pinv(design))
    found = []
    for arm, share in enumerate(leverage):
        others = np.arange(len(x)) != arm
        told = y[others].mean()
        if share < LEVERAGE:
            told = design[arm] @ np.linalg.lstsq(design[others], y[others], rcond=None)[0]
        found.append(float(np.clip(told, y[others].min(), y[others].max())))
    return found


def noise_share(results: Mapping[str, Mapping[int, float]]) -> float | None:
    """Return the share of the variance between arms that is the standard error of their means: nothing explains it.

    >>> round(noise_share({"a": {0: 1.0, 1: 1.2}, "b": {0: 2.0, 1: 2.4}}), 4)
    0.0083
    """
    table = np.array([list(by_seed.values()) for by_seed in results.values()])
    if table.shape[1] < 2:
        return None
    paired = table - table.mean(0)  # what a seed does to all arms is no difference between them
    errors = (paired.var(1, ddof=1) / table.shape[1]).sum()
    whole = ((table.mean(1) - table.mean()) ** 2).sum()
    return float(errors / whole) if whole else None
