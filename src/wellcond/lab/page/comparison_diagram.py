"""The trainability diagram of a comparison: phases, and where each arm starts."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import TYPE_CHECKING, Any

from wellcond._core.numbers import finite_number
from wellcond.plots.diagram import LABELS, NAMES, criteria, phase_colours, phase_places
from wellcond.propagation.diagram import Diagram
from wellcond.propagation.thresholds import PHASE_WORDS, phase_words
from wellcond.propagation.trainability import trainability

if TYPE_CHECKING:
    from wellcond.lab.analysis.outcome import Outcome

AXES = {"beta": (0.05, 10.0), "value_gain": (0.02, 5.0)}  # what a diagram shows at least
AXIS_LIMITS = (1e-4, 30.0)  # and at most: beyond, nothing changes but the time that it takes
RESOLUTION = 80
SAME_PLACE = 0.04  # share of an axis within which two starts have one label


def diagram_data(parameters: Mapping[str, Any], outcomes: Sequence[Outcome], arms: Sequence[str]) -> dict[str, Any]:
    """Phases by cell, with the arms' starts on them.

    `parameters` are those of `wc.trainability`; values of the axes' own are ignored. Names of arms are in the page's
    order.
    """
    starts = _starts(outcomes, arms)
    x, y = (_axis(name, [start[name] for start in starts]) for name in AXES)
    given: dict[str, Any] = {name: value for name, value in parameters.items() if name not in AXES}
    given |= {name: tuple(value) for name, value in given.items() if isinstance(value, list)}  # JSON has no tuples
    found = trainability(x, y, resolution=RESOLUTION, **given)
    for start in starts:
        start["shown"] = [min(max(start[name], low), high) for name, low, high, _ in (x, y)]  # a zero at the end
        start["beyond"] = start["shown"] != [start[name] for name in AXES]
        cells = zip((found.x, found.y), start["shown"], strict=True)  # the nearest by ratios, as the axis is
        column, row = (int((along / at).log().abs().argmin()) for along, at in cells)
        start["verdict"] = phase_words(int(found.phase[row, column]))
    return {
        "x": [_short(value) for value in found.x.tolist()],
        "y": [_short(value) for value in found.y.tolist()],
        "names": [NAMES[name] for name in AXES],
        **_phases(found),
        "cosine": [[_short(value) for value in row] for row in found.cosine.tolist()],
        "criteria": criteria(found.thresholds, given.get("depth")).replace("\n", " "),
        "starts": starts,
        "labels": _labels(starts, (x, y)),
    }


def _phases(found: Diagram) -> dict[str, Any]:
    """Cells as numbers of a list of phases, each with its name, its colour and where to write the name."""
    masks = sorted({int(mask) for mask in found.phase.flatten().tolist()})
    image, places = phase_colours(found.phase), dict(phase_places(found.phase))
    phases = []
    for mask in masks:
        row, column = (found.phase == mask).nonzero()[0].tolist()
        colour = "#" + "".join(f"{round(255 * part):02x}" for part in image[row, column].tolist())
        named = ", ".join(LABELS[bit] for bit in PHASE_WORDS if mask & bit) or LABELS[0]
        place = places.get(mask)
        at = None if place is None else [float(found.x[place[1]]), float(found.y[place[0]])]
        phases.append({"words": named.replace("\n", " "), "colour": colour, "at": at})
    return {"phases": phases, "cells": [[masks.index(int(mask)) for mask in row] for row in found.phase.tolist()]}


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


def _axis(name: str, values: Sequence[float]) -> tuple[str, float, float, str]:
    """Even ratios over the usual range and what the arms add to it."""
    low, high = AXES[name]
    known = [min(max(value, AXIS_LIMITS[0]), AXIS_LIMITS[1]) for value in values]
    return name, min([low, *(value / 1.5 for value in known)]), max([high, *(1.5 * value for value in known)]), "log"


def _labels(starts: Sequence[Mapping[str, Any]], axes: Sequence[tuple[str, float, float, str]]) -> list[dict[str, Any]]:
    """One label for arms that start at the same place."""
    sizes = [math.log(axis[2] / axis[1]) for axis in axes]
    labels: list[dict[str, Any]] = []
    for start in starts:
        for label in labels:
            pairs = zip(start["shown"], label["at"], sizes, strict=True)
            if all(abs(math.log(own / other)) < SAME_PLACE * size for own, other, size in pairs):
                label["arms"].append(start["arm"])
                break
        else:
            labels.append({"at": start["shown"], "arms": [start["arm"]]})
    return labels


def _short(value: float) -> float | None:
    return float(f"{value:.4g}") if math.isfinite(value) else None
