"""Published numbers with ours beside them, from the runs of a comparison."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from wellcond._core.text_tables import table
from wellcond.reproduce.published_recipe import PublishedRow

if TYPE_CHECKING:  # `reproduce --list` needs neither a run nor torch
    from wellcond.lab.analysis.outcome import Outcome


@dataclass(frozen=True)
class PublishedNumber:
    """One published number, and ours beside it.

    Args:
        label: of the row, and of the column if it has several.
        arm: of the recipe.
        published: the number.
        spread: its standard deviation, where the paper has one.
        ours: by seed, in the paper's unit; empty if it was not run, or no run finished.
        lost: how the other runs ended, `diverged`, `crashed` or `running` where one was interrupted.
    """

    label: str
    arm: str
    published: float
    spread: float | None
    ours: tuple[float, ...]
    lost: tuple[str, ...] = ()


def published_numbers(row: PublishedRow, stages: Mapping[str, Iterable[Outcome]]) -> list[PublishedNumber]:
    """Return every number of a row, with ours from outcomes by stage, of which the last is what is reported."""
    runs = {name: list(outcomes) for name, outcomes in stages.items()}
    found = []
    for arm, values in row.values.items():
        named = values if isinstance(values, dict) else {"": values}
        spreads = row.spread.get(arm)
        for name, published in named.items():
            spread = spreads.get(name) if isinstance(spreads, dict) else spreads
            label = f"{row.label}, {name}" if name else row.label
            ours = tuple(row.scale * value for value in _with_average(name, list(named), arm, runs).values())
            found.append(PublishedNumber(label, arm, published, spread, ours, lost_of(arm, runs)))
    return found


def lost_of(arm: str, runs: Mapping[str, list[Outcome]]) -> tuple[str, ...]:
    """Return how the seeds ended that did not finish every stage; of several stages the first that was lost."""
    lost: dict[int, str] = {}
    for stage in runs.values():
        for outcome in stage:
            if outcome.arm == arm and outcome.status != "finished":
                lost.setdefault(outcome.seed, outcome.status)
    return tuple(lost[seed] for seed in sorted(lost))


def _with_average(name: str, names: list[str], arm: str, runs: Mapping[str, list[Outcome]]) -> dict[int, float]:
    """Return our numbers by seed; the average of the other columns where a seed has all."""
    if name != "average":
        return ours_of(name, arm, runs)
    columns = [ours_of(other, arm, runs) for other in names if other != "average"]
    whole = set.intersection(*map(set, columns))
    return {seed: statistics.fmean(column[seed] for column in columns) for seed in sorted(whole)}


def ours_of(name: str, arm: str, runs: Mapping[str, list[Outcome]]) -> dict[int, float]:
    """Return our numbers of an arm by seed, of the runs that finished; `runs` are by stage.

    The name is that of a stage, whose result it is; `minutes`; a metric of the last stage; or empty for its result.
    """
    if not runs:
        return {}
    stage = runs.get(name, list(runs.values())[-1])
    done = {o.seed: o for o in stage if o.arm == arm and o.result is not None}
    if name == "minutes":
        return {seed: outcome.seconds / 60 for seed, outcome in done.items()}
    if not name or name in runs:
        return {seed: outcome.result for seed, outcome in done.items() if outcome.result is not None}
    return {seed: outcome.final[name] for seed, outcome in done.items() if name in outcome.final}


def numbers_text(rows: Iterable[PublishedNumber], ours: str = "ours") -> str:
    """Write published numbers and ours as a table, `ours` being the title of the last column.

    >>> first = PublishedNumber("ViT-B", "default", 80.7, 0.41, (79.0, 80.0))
    >>> print(numbers_text([first, PublishedNumber("ViT-B", "shift", 81.7, None, ())]))
    row    arm      published    ours
    ViT-B  default  80.7 ± 0.41  79.5 ± 0.707 (2 seeds)
    ViT-B  shift    81.7         not run
    """
    return table(
        ["row", "arm", "published", ours],
        [[row.label, row.arm, number_text(row.published, row.spread), ours_text(row.ours, row.lost)] for row in rows],
    )


def ours_text(values: tuple[float, ...], lost: tuple[str, ...] = ()) -> str:
    """Write mean, standard deviation and number of seeds, and what became of the others.

    >>> ours_text((1.5,)), ours_text(()), ours_text((1.0, 2.0), ("diverged",))
    ('1.5 (1 seed)', 'not run', '1.5 ± 0.707 (2 seeds, 1 diverged)')
    """
    ends = [f"{lost.count(end)} {end}" for end in dict.fromkeys(lost)]
    if not values:
        return ", ".join(ends) or "not run"
    spread = statistics.stdev(values) if len(values) > 1 else None
    seeds = [f"{len(values)} seed{'s' if len(values) > 1 else ''}", *ends]
    return f"{number_text(statistics.fmean(values), spread)} ({', '.join(seeds)})"


def number_text(value: float, spread: float | None) -> str:
    """Write a number, with its standard deviation if there is one.

    >>> number_text(80.7, 0.41)
    '80.7 ± 0.41'
    """
    return f"{value:.4g}" if spread is None else f"{value:.4g} ± {spread:.3g}"
