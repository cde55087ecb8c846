"""A learning rate for each arm, chosen on seeds that are not reported: none is handed the rate of another."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from wellcond._core.result_table import ResultTable, Tabular
from wellcond.errors import WellcondError
from wellcond.lab.analysis.outcome import Outcome
from wellcond.lab.recipe.rate_grid import grid_recipe, runs_by_rate
from wellcond.lab.recipe.recipe import Recipe


@dataclass(frozen=True)
class Rates(Tabular):
    """Learning rates that were tried for each arm, and what came of them.

    Args:
        metric: that it is judged by.
        higher_is_better: whether more of it is better.
        found: by arm and learning rate, the mean of the metric over the seeds; None where a run did not finish.
        errors: why, of the first such run of an arm.
    """

    metric: str
    higher_is_better: bool
    found: Mapping[str, Mapping[float, float | None]]
    errors: Mapping[str, str]

    def best(self) -> dict[str, float]:
        """Return the best learning rate of each arm; of two as good the lower."""
        chosen = {}
        for arm, tried in self.found.items():
            known = {lr: value for lr, value in tried.items() if value is not None}
            if not known:
                rates = ", ".join(f"{lr:g}" for lr in tried)
                why = self.errors.get(arm, "no number was measured")
                raise WellcondError(f"the arm '{arm}' finished at none of the learning rates {rates}: {why}")
            sign = -1 if self.higher_is_better else 1
            chosen[arm] = min(known, key=lambda lr: (sign * known[lr], lr))
        return chosen

    def records(self) -> list[dict[str, Any]]:
        """Return one row per arm and learning rate that was tried.

        >>> Rates("accuracy", True, {"default": {0.1: 0.5}}, {}).records()
        [{'arm': 'default', 'lr': 0.1, 'accuracy': 0.5, 'chosen': True}]
        """
        best = self.best()
        return [
            {"arm": arm, "lr": lr, self.metric: value, "chosen": lr == best[arm]}
            for arm, tried in self.found.items()
            for lr, value in tried.items()
        ]

    def _result_table(self) -> ResultTable:
        best = self.best()
        rates = sorted({lr for tried in self.found.values() for lr in tried})
        rows = []
        for arm, tried in self.found.items():
            cells = [_cell(tried.get(lr), chosen=lr == best[arm]) for lr in rates]
            edge = "at the edge" if len(rates) > 2 and best[arm] in (rates[0], rates[-1]) else ""
            rows.append([arm, *cells, edge])
        header = [f"{self.metric} at", *(f"{lr:g}" for lr in rates), ""]
        return ResultTable(header, rows, notes=["", "* chosen; at the edge: a better one may lie outside the grid"])


def tuning_recipe(recipe: Recipe) -> Recipe:
    """Return the comparison that finds the rates: every arm at every one of them, on the tuning seeds, not monitored.

    >>> from wellcond.lab.recipe.recipe import load_recipe
    >>> from wellcond.lab.recipe.settings import Tuning
    >>> recipe = load_recipe("digits").model_copy(update={"tuning": Tuning(lr=(1e-3, 1e-2))})
    >>> list(tuning_recipe(recipe).arms)[:3]
    ['default at 0.001', 'default at 0.01', 'mimetic at 0.001']
    """
    tuning = recipe.tuning
    if tuning is None:
        raise WellcondError("the recipe has no [tuning] with the learning rates to try: lr = [0.0003, 0.001, 0.003]")
    return grid_recipe(recipe, tuning.lr, tuning.seeds)


def rates_of(recipe: Recipe, outcomes: Iterable[Outcome]) -> Rates:
    """Read the learning rates off the runs of `tuning_recipe`."""
    runs = list(outcomes)
    assert recipe.tuning is not None
    found: dict[str, dict[float, float | None]] = {}
    errors: dict[str, str] = {}
    for arm, by_rate in runs_by_rate(recipe, recipe.tuning.lr, runs).items():
        for lr, tried in by_rate.items():
            known = [run.result for run in tried if run.result is not None]
            for run in tried:
                if run.error:
                    errors.setdefault(arm, run.error)
            whole = len(known) == len(recipe.tuning.seeds)
            found.setdefault(arm, {})[lr] = sum(known) / len(known) if whole else None
    return Rates(runs[0].metric, runs[0].higher_is_better, found, errors)


def _cell(value: float | None, *, chosen: bool) -> str:
    return "—" if value is None else f"{value:.4g}{' *' if chosen else '  '}"
