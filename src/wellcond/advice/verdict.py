"""What a probe's last rung allows to say: which candidate is better than the model's own weights, if any is."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import fmean, variance

from wellcond._core.student import holm, interval_around, p_of_mean
from wellcond.advice.probe import Rung

LEVEL = 0.05  # of Holm's p-values
ROUNDING = 1e-6  # of losses: what is less apart is so by floating-point numbers, and its t could be enormous
HEAD_START = 0.05  # of the other's first loss: so much lower a loss before any training is a matter of the draw


@dataclass(frozen=True)
class Difference:
    """One finalist against another, seed by seed: its loss after the last step minus the other's.

    A small head start, a loss that is lower by up to 5 % before anything was trained, is left out of the difference: it
    says what a draw happens to answer, not how the model learns.

    Other seeds would have given another mean, and so would other batches to judge by. Its squared standard error is
    that over seeds plus that over judging batches, which is at least that of a mean over both (too large by the part of
    a single loss that follows from neither), with the degrees of freedom of Welch and Satterthwaite.

    Args:
        candidate: minuend.
        against: subtrahend.
        by_seed: in the order of the rung's seeds.
        mean: of them; infinite where one of the two diverged.
        interval: of the mean over seeds and judging batches, 95 % by Student's t; None where it is not known.
        p: two-sided, of the same t.
        p_holm: after Holm's correction over all finalists.
    """

    candidate: str
    against: str
    by_seed: tuple[float, ...]
    mean: float
    interval: tuple[float, float] | None
    p: float | None
    p_holm: float | None = None

    @property
    def better(self) -> bool:
        """Whether the loss is lower, and is shown to be."""
        return self.mean < 0 and self.p_holm is not None and self.p_holm < LEVEL


def difference(rung: Rung, candidate: str, against: str) -> Difference:
    """Return the paired difference of two finalists' losses.

    >>> losses = {
    ...     "a": {0: {0: [4.0], 5: [1.0]}, 1: {0: [4.0], 5: [1.2]}},
    ...     "b": {0: {0: [4.0], 5: [2.0]}, 1: {0: [4.0], 5: [2.0]}},
    ... }
    >>> found = difference(Rung(5, (0, 1), losses), "a", "b")
    >>> round(found.mean, 3), found.by_seed[0], found.p is not None
    (-0.9, -1.0, True)
    """
    cells = [_apart(rung, candidate, against, seed) for seed in rung.seeds]
    values = tuple(map(fmean, cells))
    if not all(map(math.isfinite, values)):
        signs = {math.copysign(1, value) for value in values if value == value and value != 0}
        certain = len(signs) == 1 and all(math.isinf(value) for value in values)
        mean = values[0] if certain else math.nan
        return Difference(candidate, against, values, mean, None, 0.0 if certain else None)
    mean, (error, freedom) = fmean(values), _error(values, [fmean(column) for column in zip(*cells, strict=True)])
    interval = interval_around(mean, error, freedom)
    return Difference(candidate, against, values, mean, interval, p_of_mean(mean, error, freedom))


def _error(by_seed: Sequence[float], by_batch: Sequence[float]) -> tuple[float, int]:
    """The standard error of a mean over seeds and batches, and its degrees of freedom.

    >>> _error([1.0, 2.0, 3.0], [2.0])  # of one batch: over seeds alone
    (0.5773502691896257, 2)
    """
    parts = [(variance(values) / len(values), len(values) - 1) for values in (by_seed, by_batch) if len(values) > 1]
    whole = sum(part for part, _ in parts)
    if not whole:
        return 0.0, len(by_seed) - 1
    return math.sqrt(whole), max(1, int(whole**2 / sum(part**2 / freedom for part, freedom in parts)))


def _apart(rung: Rung, candidate: str, against: str, seed: int) -> list[float]:
    """The difference of two losses on each judging batch; what diverged is infinitely worse, two that did are alike."""
    pairs = [*zip(*(rung.losses[name][seed][rung.steps] for name in (candidate, against)), strict=True)]
    own, other = (rung.final(name, seed) for name in (candidate, against))
    own, other = (math.inf if math.isnan(loss) else loss for loss in (own, other))
    if own == other:
        return [0.0] * len(pairs)
    head_start = _head_start(rung, candidate, against, seed)
    apart = own - other - head_start
    if math.isinf(apart):
        return [apart] * len(pairs)
    if abs(apart) <= ROUNDING * max(abs(own), abs(other)):
        return [0.0] * len(pairs)
    return [one - of_other - head_start for one, of_other in pairs]


def _head_start(rung: Rung, candidate: str, against: str, seed: int) -> float:
    """How much lower the first loss is, negative, where it is little; else 0."""
    own, other = (rung.first(name, seed) for name in (candidate, against))
    lower = own - other
    return lower if -HEAD_START * abs(other) < lower < 0 else 0.0


def differences(rung: Rung, own: str, names: Sequence[str]) -> list[Difference]:
    """Return every finalist's difference to the model's own weights, with Holm's correction over all of them."""
    found = [difference(rung, name, own) for name in names if name != own]
    corrected = holm([one.p for one in found])
    return [replace(one, p_holm=p) for one, p in zip(found, corrected, strict=True)]


def winner(found: Sequence[Difference], control: str | None) -> str | None:
    """Return the candidate with the lowest loss among those shown to be better; a control only if it is alone."""
    better = sorted((one for one in found if one.better), key=lambda one: (one.candidate == control, one.mean))
    return better[0].candidate if better else None
