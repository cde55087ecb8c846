r"""Learning-rate sensitivity of each arm: how much is lost, on average over a grid of rates, against its best rate.

Wortsman et al., *Small-scale proxies for large-scale Transformer training instabilities* (2309.14322): with ℓ(η) the
loss after training at the learning rate η, and ℓ₀ that of the untrained model, it is the mean of min(ℓ(η), ℓ₀) − min ℓ
over the logarithm of η, here by the trapezoidal rule, for each seed by itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy import integrate

from wellcond._core.json_safe import plain
from wellcond._core.result_table import ResultTable, Tabular
from wellcond.errors import WellcondError
from wellcond.lab.analysis.early_warning import EarlyWarnings, early_warnings
from wellcond.lab.analysis.outcome import Outcome, final_loss
from wellcond.lab.analysis.paired_test import PairedTest, interval, mean_of, paired_test, sd_of, with_holm
from wellcond.lab.analysis.verdicts import verdict
from wellcond.lab.recipe.arms import arms_of
from wellcond.lab.recipe.rate_grid import runs_by_rate
from wellcond.lab.recipe.recipe import Recipe

if TYPE_CHECKING:
    import os

    from matplotlib.figure import Figure

GRID = tuple(2.0**k for k in range(-3, 4))  # of the recipe's own rate, where no other is asked for


@dataclass(frozen=True)
class RatePoint:
    """Results of an arm at one learning rate.

    Args:
        results: the metric by seed, of runs that finished.
        mean: of them; None unless all seeds finished.
        interval: 95 %, of the mean.
        lost: seeds that diverged, or ended without a number; for the area they are as good as untrained.
    """

    results: Mapping[int, float]
    mean: float | None
    interval: tuple[float, float] | None
    lost: tuple[int, ...]


@dataclass(frozen=True)
class ArmSensitivity:
    """One arm over the grid.

    Args:
        arm: its name.
        control_of: the arm that it is a control of, if it is one.
        rates: by learning rate.
        best: the rate with the best mean; None if no rate has one.
        areas: sensitivity by seed.
        mean: of them.
        interval: 95 %, of the mean.
        to_baseline: paired differences of the areas; None for the baseline itself.
    """

    arm: str
    control_of: str | None
    rates: Mapping[float, RatePoint]
    best: float | None
    areas: Mapping[int, float]
    mean: float | None
    interval: tuple[float, float] | None
    to_baseline: PairedTest | None = None


@dataclass(frozen=True)
class Sensitivity(Tabular):
    """Sensitivity of every arm; prints as a table, `.plot()` draws the curves.

    Args:
        baseline: the arm that the others are compared with.
        metric: that was tested.
        higher_is_better: whether more of it is better.
        in_logarithm: whether areas are of its logarithm, as those of a perplexity are.
        untrained: the metric before training, mean over arms and seeds.
        arms: in the recipe's order.
        early_warnings: of arms that a control watched without acting.
    """

    baseline: str
    metric: str
    higher_is_better: bool
    in_logarithm: bool
    untrained: float | None
    arms: tuple[ArmSensitivity, ...]
    early_warnings: EarlyWarnings

    def __getitem__(self, arm: str) -> ArmSensitivity:
        for one in self.arms:
            if one.arm == arm:
                return one
        raise WellcondError(f"no arm '{arm}'; there are {', '.join(one.arm for one in self.arms)}")

    def records(self) -> list[dict[str, Any]]:
        """Return one row per arm and learning rate."""
        return [
            {"arm": one.arm, "lr": lr, self.metric: point.mean, "seeds": len(point.results), "lost": len(point.lost)}
            | {"sensitivity": one.mean, "best": lr == one.best}
            for one in self.arms
            for lr, point in one.rates.items()
        ]

    def to_dict(self) -> dict[str, Any]:
        """Return plain numbers, strings, lists and dictionaries."""
        data: dict[str, Any] = plain(asdict(self))
        return data

    def plot(self, path: str | os.PathLike[str] | None = None) -> Figure:
        """Draw each arm's metric against the learning rate, with its seeds; write it if there is a path."""
        from wellcond.lab.figures.sensitivity import sensitivity_figure

        return sensitivity_figure(self, path)

    def _result_table(self) -> ResultTable:
        rates = sorted({lr for one in self.arms for lr in one.rates})
        rows = [[one.arm, _with_interval(one), *(_cell(one, lr) for lr in rates)] for one in self.arms]
        of = f"log {self.metric}" if self.in_logarithm else self.metric
        notes = [
            "",
            f"area: mean shortfall of {of} from the arm's best, over the logarithm of the rate. * best rate; "
            "(n): so many seeds were lost, and count as untrained",
            *(
                f"{one.arm}: area {verdict(one.to_baseline, higher_is_better=False)}"
                for one in self.arms
                if one.to_baseline is not None
            ),
        ]
        return ResultTable(["arm", "area", *(f"{self.metric} at {lr:g}" for lr in rates)], rows, notes=notes)


def sensitivity_of(recipe: Recipe, lr: Sequence[float], outcomes: Iterable[Outcome]) -> Sensitivity:
    """Read the sensitivity of each arm off the runs of its `grid_recipe`, whose first test is of untrained models."""
    runs = list(outcomes)
    first = runs[0]
    in_logarithm = first.metric == "perplexity"
    sorted_runs = runs_by_rate(recipe, lr, runs)
    found = [_arm(name, by_rate, in_logarithm) for name, by_rate in sorted_runs.items()]
    base = next(one for one in found if one.arm == recipe.baseline)
    others = [one for one in found if one is not base]
    tests = with_holm([paired_test(one.arm, one.areas, base.arm, base.areas) for one in others])
    tested = {test.arm: test for test in tests}
    arms = tuple(replace(one, to_baseline=tested.get(one.arm)) for one in found)
    untrained = mean_of([run.test[0][1] for run in runs if run.test])
    watched = [arm.name for arm in arms_of(recipe) if (arm.settings.bands or {}).get("act") is False]
    early = early_warnings(sorted_runs, watched)
    return Sensitivity(base.arm, first.metric, first.higher_is_better, in_logarithm, untrained, arms, early)


def _arm(name: str, by_rate: Mapping[float, Sequence[Outcome]], in_logarithm: bool) -> ArmSensitivity:
    points = {lr: _point(runs) for lr, runs in by_rate.items()}
    means = {lr: point.mean for lr, point in points.items() if point.mean is not None}
    some = next(run for runs in by_rate.values() for run in runs)
    sign = -1 if some.higher_is_better else 1
    best = min(means, key=lambda lr: (sign * means[lr], lr)) if means else None
    losses: dict[int, dict[float, float]] = {}
    for lr, runs in by_rate.items():
        for run in runs:
            if run.status in ("finished", "diverged") and run.test and run.test[0][0] == 0:
                losses.setdefault(run.seed, {})[lr] = final_loss(run, in_logarithm)
    areas = {seed: area(own) for seed, own in sorted(losses.items()) if len(own) == len(by_rate)}
    values = list(areas.values())
    spread = interval(values) if sd_of(values) else None
    return ArmSensitivity(name, some.control_of, points, best, areas, mean_of(values), spread)


def _point(runs: Sequence[Outcome]) -> RatePoint:
    results = {run.seed: run.result for run in runs if run.result is not None}
    values, lost = list(results.values()), tuple(run.seed for run in runs if run.result is None)
    mean = None if lost else mean_of(values)
    return RatePoint(results, mean, interval(values) if mean is not None and sd_of(values) else None, lost)


def area(losses: Mapping[float, float]) -> float:
    """Return the mean of loss − least loss over the logarithm of the learning rate.

    >>> area({0.001: 2.0, 0.01: 1.0, 0.1: 4.0})
    1.0
    """
    rates = sorted(losses)
    x, y = np.log(rates), np.array([losses[lr] for lr in rates])
    return float(integrate.trapezoid(y - y.min(), x) / (x[-1] - x[0]))


def _with_interval(one: ArmSensitivity) -> str:
    ends = "" if one.interval is None else f" [{one.interval[0]:.3g}, {one.interval[1]:.3g}]"
    return "—" if one.mean is None else f"{one.mean:.3g}{ends}"


def _cell(one: ArmSensitivity, lr: float) -> str:
    point = one.rates[lr]
    mean = "—" if point.mean is None else f"{point.mean:.4g}"
    return f"{mean}{f' ({len(point.lost)})' if point.lost else ''}{' *' if lr == one.best else ''}"
