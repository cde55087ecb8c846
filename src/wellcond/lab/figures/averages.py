"""Averages of several runs: mean and spread over the seeds of a label."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from wellcond._core.numbers import average
from wellcond.diagnosis.summaries import Summary
from wellcond.lab.figures.runs import RecordedRun, Series


def over_seeds(runs: Sequence[RecordedRun]) -> list[Series]:
    """Mean and sample standard deviation over the seeds of each label, at the steps that all of them have.

    >>> pairs = ((0, 0.5), (1, 0.7))
    >>> runs = [RecordedRun("default", seed, ((100, {"entropy": Summary(mean)}),)) for seed, mean in pairs]
    >>> (series,) = over_seeds(runs)
    >>> series.steps, f"{series.mean[0]:.2f} ± {series.deviation[0]:.2f}"
    ((100,), '0.60 ± 0.14')
    """
    result = []
    for label in dict.fromkeys(run.label for run in runs):
        members = [run for run in runs if run.label == label]
        seeds, tables = tuple(run.seed for run in members), [_by_step(run) for run in members]
        about = {name: shared_value(getattr(run, name) for run in members) for name in ("control_of", "epoch")}
        result += [
            replace(_series(label, quantity, seeds, [table.get(quantity, {}) for table in tables]), **about)
            for quantity in dict.fromkeys(quantity for table in tables for quantity in table)
        ]
    return result


def shared_value(values: Iterable[Any]) -> Any:
    """Return what all have in common, None if nothing."""
    different = set(values)
    return different.pop() if len(different) == 1 else None


def _by_step(run: RecordedRun) -> dict[str, dict[int, Summary]]:
    """Sort by quantity and step; of a step that was recorded again after a crash, the last record counts."""
    table: dict[str, dict[int, Summary]] = {}
    for step, averages in run.records:
        for quantity, summary in averages.items():
            table.setdefault(quantity, {})[step] = summary
    return table


def _series(label: str, quantity: str, seeds: tuple[int | None, ...], runs: Sequence[Mapping[int, Summary]]) -> Series:
    steps = tuple(sorted(set.intersection(*[set(run) for run in runs])))
    columns = [[run[step] for run in runs] for step in steps]
    spreads = [_spread([one.mean for one in column]) for column in columns]
    reasons = sum((Counter(one.left_out) for column in columns for one in column), Counter[str]())
    return Series(
        label=label,
        quantity=quantity,
        seeds=seeds,
        steps=steps,
        mean=tuple(mean for mean, _ in spreads),
        deviation=tuple(deviation for _, deviation in spreads) if len(runs) > 1 else None,
        averaged=tuple(sum(one.count for one in column) for column in columns),
        left_out=tuple(sum(sum(one.left_out.values()) for one in column) for column in columns),
        reasons=dict(reasons),
    )


def _spread(means: Sequence[float | None]) -> tuple[float | None, float | None]:
    values = [mean for mean in means if mean is not None]
    if len(values) < len(means):  # a mean of the other seeds would be one of another population
        return None, None
    scale = max(map(abs, values)) or 1.0  # squares of the bound overflow
    deviation = scale * float(np.std(np.array(values) / scale, ddof=1)) if len(values) > 1 else None
    return average(values), deviation
