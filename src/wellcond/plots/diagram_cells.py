"""A trainability diagram as plain numbers for a page: axes that hold some points, phases cell by cell."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from wellcond.plots.diagram import LABELS, NAMES, criteria, phase_colours, phase_places
from wellcond.propagation.diagram import Diagram
from wellcond.propagation.thresholds import PHASE_WORDS, phase_words
from wellcond.propagation.trainability import trainability

AXES = {"beta": (0.05, 10.0), "value_gain": (0.02, 5.0)}  # what a diagram shows at least
AXIS_LIMITS = (1e-4, 30.0)  # and at most: beyond, nothing changes but the time that it takes
RESOLUTION = 80
SAME_PLACE = 0.04  # share of an axis within which two points have one label


def diagram_cells(
    parameters: Mapping[str, Any], points: Sequence[Mapping[str, float]], resolution: int = RESOLUTION
) -> dict[str, Any]:
    """Return the phases of a plane of β and the branch's gain that holds all points, and where on it these are.

    Args:
        parameters: those of `wc.trainability`; values of the axes' own are ignored.
        points: each with `beta` and `value_gain`, not negative.
        resolution: cells along each axis.

    >>> found = diagram_cells({"depth": 6, "tokens": 16}, [{"beta": 0.5, "value_gain": 0.3}], 9)
    >>> found["places"], len(found["cells"]), found["phases"][0]["words"]
    ([{'shown': [0.5, 0.3], 'beyond': False, 'verdict': 'trainable'}], 9, 'can be trained')
    """
    x, y = (_axis(name, [point[name] for point in points]) for name in AXES)
    given: dict[str, Any] = {name: value for name, value in parameters.items() if name not in AXES}
    found = trainability(x, y, resolution=resolution, **given)
    places = [_place(found, [point[name] for name in AXES]) for point in points]
    return {
        "x": [_short(value) for value in found.x.tolist()],
        "y": [_short(value) for value in found.y.tolist()],
        "names": [NAMES[name] for name in AXES],
        **_phases(found),
        "cosine": [[_short(value) for value in row] for row in found.cosine.tolist()],
        "criteria": criteria(found.thresholds, given.get("depth")).replace("\n", " "),
        "places": places,
        "together": together([place["shown"] for place in places], [math.log(axis[2] / axis[1]) for axis in (x, y)]),
    }


def _place(found: Diagram, at: list[float]) -> dict[str, Any]:
    """Where a point is shown, a zero at the end of its axis, and the verdict of the nearest cell."""
    ends = [(_rounded(float(along[0])), _rounded(float(along[-1]))) for along in (found.x, found.y)]  # as drawn
    shown = [min(max(value, low), high) for value, (low, high) in zip(at, ends, strict=True)]
    cells = zip((found.x, found.y), shown, strict=True)  # the nearest by ratios, as the axis is
    column, row = (int((along / value).log().abs().argmin()) for along, value in cells)
    return {"shown": shown, "beyond": shown != at, "verdict": phase_words(int(found.phase[row, column]))}


def _phases(found: Diagram) -> dict[str, Any]:
    """Cells as numbers of a list of phases, each with its name, its colour and where to write the name."""
    masks, places = sorted(set(found.phase.flatten().tolist())), dict(phase_places(found.phase))
    phases = []
    for mask in masks:
        place = places.get(mask)
        at = None if place is None else [float(found.x[place[1]]), float(found.y[place[0]])]
        phases.append(phase_look(mask) | {"at": at})
    return {"phases": phases, "cells": [[masks.index(mask) for mask in row] for row in found.phase.tolist()]}


def phase_look(mask: int) -> dict[str, Any]:
    """Return the words and the colour of a phase.

    >>> phase_look(0)
    {'words': 'can be trained', 'colour': '#f2f7f2'}
    """
    words = ", ".join(LABELS[bit] for bit in PHASE_WORDS if mask & bit) or LABELS[0]
    parts = phase_colours(torch.tensor([mask]))[0].tolist()
    return {"words": words.replace("\n", " "), "colour": "#" + "".join(f"{round(255 * part):02x}" for part in parts)}


def _axis(name: str, values: Sequence[float]) -> tuple[str, float, float, str]:
    """Even ratios over the usual range and what the points add to it."""
    low, high = AXES[name]
    known = [min(max(value, AXIS_LIMITS[0]), AXIS_LIMITS[1]) for value in values]
    return name, min([low, *(value / 1.5 for value in known)]), max([high, *(1.5 * value for value in known)]), "log"


def together(shown: Sequence[list[Any]], sizes: Sequence[float]) -> list[tuple[list[Any], list[int]]]:
    """Return where labels belong, and the numbers of the points that share each.

    Args:
        shown: the points, by their axes' values.
        sizes: of the axes, in logarithms.

    >>> together([[1.0, 1.0], [1.01, 1.0], [2.0, 1.0]], [1.0, 1.0])
    [([1.0, 1.0], [0, 1]), ([2.0, 1.0], [2])]
    """
    labels: list[tuple[list[float], list[int]]] = []
    for index, own in enumerate(shown):
        for at, members in labels:
            pairs = zip(own, at, sizes, strict=True)
            if all(abs(math.log(value / other)) < SAME_PLACE * size for value, other, size in pairs):
                members.append(index)
                break
        else:
            labels.append((own, [index]))
    return labels


def _short(value: float) -> float | None:
    return _rounded(value) if math.isfinite(value) else None


def _rounded(value: float) -> float:
    return float(f"{value:.4g}")
