"""The trainability diagram of a comparison: phases, and where each arm starts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import TYPE_CHECKING, Any

from wellcond._core.numbers import finite_number
from wellcond.plots.diagram_cells import AXES, diagram_cells

if TYPE_CHECKING:
    from wellcond.lab.analysis.outcome import Outcome


def diagram_data(parameters: Mapping[str, Any], outcomes: Sequence[Outcome], arms: Sequence[str]) -> dict[str, Any]:
    """Phases by cell, with the arms' starts on them.

    `parameters` are those of `wc.trainability`; values of the axes' own are ignored. Names of arms are in the page's
    order.
    """
    starts = _starts(outcomes, arms)
    given = {name: tuple(value) if isinstance(value, list) else value for name, value in parameters.items()}
    found = diagram_cells(given, starts)  # JSON has no tuples
    for start, place in zip(starts, found.pop("places"), strict=True):
        start.update(place)
    together = found.pop("together")
    labels = [{"at": at, "arms": [starts[member]["arm"] for member in members]} for at, members in together]
    return {**found, "starts": starts, "labels": labels}


def _starts(outcomes: Sequence[Outcome], arms: Sequence[str]) -> list[dict[str, Any]]:
    """Means over the seeds that could be located."""
    found = []
    for index, arm in enumerate(arms):
        own = [[finite_number(run.start.get(name)) for name in AXES] for run in outcomes if run.arm == arm]
        located = [[value for value in values if value is not None] for values in own]
        located = [values for values in located if len(values) == len(AXES) and min(values) >= 0]
        if located:
            means = [fmean(values) for values in zip(*located, strict=True)]
            found.append({"arm": index, "seeds": len(located), **dict(zip(AXES, means, strict=True))})
    return found
