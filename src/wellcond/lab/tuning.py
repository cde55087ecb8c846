"""A learning rate for each scheme, chosen on seeds that are not reported: none is handed the rate of another."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from wellcond.errors import WellcondError
from wellcond.lab.arms import schemes_of
from wellcond.lab.outcome import Outcome
from wellcond.lab.recipe import ONLY_SCALE, Recipe
from wellcond.tabular import ResultTable, Tabular


@dataclass(frozen=True)
class Rates(Tabular):
    """What was tried, and what came of it.

    Args:
        metric: that it is judged by.
        higher_is_better: whether more of it is better.
        found: by scheme and learning rate, the mean of the metric over the seeds; None where a run did not finish.
        errors: why, of the first such run of a scheme.
    """

    metric: str
    higher_is_better: bool
    found: Mapping[str, Mapping[float, float | None]]
    errors: Mapping[str, str]

    def best(self) -> dict[str, float]:
        """The learning rate of each scheme; of two as good the lower."""
        chosen = {}
        for scheme, tried in self.found.items():
            known = {lr: value for lr, value in tried.items() if value is not None}
            if not known:
                rates = ", ".join(f"{lr:g}" for lr in tried)
                why = self.errors.get(scheme, "no number was measured")
                raise WellcondError(f"the scheme '{scheme}' finished at none of the learning rates {rates}: {why}")
            sign = -1 if self.higher_is_better else 1
            chosen[scheme] = min(known, key=lambda lr: (sign * known[lr], lr))
        return chosen

    def records(self) -> list[dict[str, Any]]:
        """One row per scheme and learning rate that was tried.

        >>> Rates("accuracy", True, {"default": {0.1: 0.5}}, {}).records()
        [{'scheme': 'default', 'lr': 0.1, 'accuracy': 0.5, 'chosen': True}]
        """
        best = self.best()
        return [
            {"scheme": scheme, "lr": lr, self.metric: value, "chosen": lr == best[scheme]}
            for scheme, tried in self.found.items()
            for lr, value in tried.items()
        ]

    def _result_table(self) -> ResultTable:
        best = self.best()
        rates = sorted({lr for tried in self.found.values() for lr in tried})
        rows = []
        for scheme, tried in self.found.items():
            cells = [_cell(tried.get(lr), chosen=lr == best[scheme]) for lr in rates]
            edge = "at the edge" if len(rates) > 2 and best[scheme] in (rates[0], rates[-1]) else ""
            rows.append([scheme, *cells, edge])
        header = [f"{self.metric} at", *(f"{lr:g}" for lr in rates), ""]
        return ResultTable(header, rows, notes=["", "* chosen; at the edge: a better one may lie outside the grid"])


def tuning_recipe(recipe: Recipe) -> Recipe:
    """The comparison that finds the rates: every scheme at every one of them, on the tuning seeds, not monitored.

    >>> from wellcond.lab.recipe import load_recipe
    >>> from wellcond.lab.settings import Tuning
    >>> recipe = load_recipe("digits").model_copy(update={"tuning": Tuning(lr=(1e-3, 1e-2))})
    >>> list(tuning_recipe(recipe).schemes)[:3]
    ['default at 0.001', 'default at 0.01', 'mimetic at 0.001']
    """
    tuning = recipe.tuning
    if tuning is None:
        raise WellcondError("the recipe has no [tuning] with the learning rates to try: lr = [0.0003, 0.001, 0.003]")
    schemes = {
        _at(scheme.name, lr): scheme.arm.model_copy(update={"lr": lr})
        for scheme in schemes_of(recipe)
        if scheme.control_of is None
        for lr in tuning.lr
    }
    train = recipe.train.model_copy(update={"keep": False})
    changes = {"schemes": schemes, "baseline": next(iter(schemes)), "seeds": tuning.seeds, "train": train}
    return recipe.model_copy(update={**changes, "tuning": None, "monitor": None, "rates": {}})


def rates_of(recipe: Recipe, outcomes: Iterable[Outcome]) -> Rates:
    """What the runs of `tuning_recipe` found."""
    runs = list(outcomes)
    assert recipe.tuning is not None
    found: dict[str, dict[float, float | None]] = {}
    errors: dict[str, str] = {}
    for scheme in schemes_of(recipe):
        for lr in recipe.tuning.lr:
            name = _at(scheme.control_of or scheme.name, lr)
            tried = [run for run in runs if (run.scheme, run.control_of) == _named(name, scheme.control_of)]
            known = [run.result for run in tried if run.result is not None]
            for run in tried:
                if run.error:
                    errors.setdefault(scheme.name, run.error)
            whole = len(known) == len(recipe.tuning.seeds)
            found.setdefault(scheme.name, {})[lr] = sum(known) / len(known) if whole else None
    return Rates(runs[0].metric, runs[0].higher_is_better, found, errors)


def _at(name: str, lr: float) -> str:
    return f"{name} at {lr:g}"


def _named(name: str, control_of: str | None) -> tuple[str, str | None]:
    return (name, None) if control_of is None else (f"{name}{ONLY_SCALE}", name)


def _cell(value: float | None, *, chosen: bool) -> str:
    return "—" if value is None else f"{value:.4g}{' *' if chosen else '  '}"
