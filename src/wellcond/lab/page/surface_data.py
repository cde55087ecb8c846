"""The plain data of a surface's page and figure: the response cell by cell, the grid, the arms, predicted phases."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from statistics import fmean
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.interpolate import RegularGridInterpolator

from wellcond._core.json_safe import plain
from wellcond.plots.diagram_cells import AXES, AXIS_LIMITS, RESOLUTION, phase_look, together
from wellcond.propagation.trainability import trainability

if TYPE_CHECKING:
    from wellcond.lab.analysis.surface import ArmPlace, GridPlace, Surface

CELLS = 40  # along each axis
EVEN = 1e-6  # so that an axis along which nothing changes has two ends
BEYOND = 1.25  # times the outermost place, as far as the plane is shown


def surface_data(found: Surface, about: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the page of a surface draws and says.

    Args:
        found: the surface.
        about: what `comparison.json` says of its runs.
    """
    betas, branches = ([getattr(one, name) for one in found.grid] for name in ("beta", "branch"))
    placed = [one for one in found.arms if one.beta and one.branch]
    across = _along([*betas, *(one.beta for one in placed if one.beta)])
    up = _along([*branches, *(one.branch for one in placed if one.branch)])
    response, sign = found.response, 1 if found.higher_is_better else -1
    inside = [[_within(b, betas) and _within(g, branches) for b in across] for g in up]
    mean, deviation = response.at([(b, g) for g in up for b in across])
    shape = (len(up), len(across))
    phases = _phases(found.grid, across, up, about.get("diagram"))
    shown: dict[str, Any] = plain(
        {
            "title": about.get("title", ""),
            "command": about.get("command", ""),
            "task": {"name": "", "description": "", **about.get("task", {})},
            "metric": found.metric,
            "higher": found.higher_is_better,
            "untrained": found.untrained,
            "x": across,
            "y": up,
            "response": np.where(inside, sign * mean.reshape(shape), np.nan).tolist(),
            "deviation": np.where(inside, deviation.reshape(shape), np.nan).tolist(),
            "grid": [_place(one) for one in found.grid],
            "arms": [_place(one) | {"name": one.arm, "uneven": one.uneven} for one in found.arms],
            "labels": _labels(placed, across, up),
            "best": asdict(found.best) | {"edge": found.edge},
            "noise": found.noise,
            "shares": [asdict(one) for one in found.shares],
            "noise_share": found.noise_share,
            "seeds": len(found.grid[0].results),
            "left_out": list(found.left_out),
            **phases,
        }
    )
    return shown


def _labels(arms: Sequence[ArmPlace], across: Sequence[float], up: Sequence[float]) -> list[dict[str, Any]]:
    """Names of schemes, those of one place under the first of them."""
    schemes = [one for one in arms if one.control_of is None]
    sizes = [math.log(axis[-1] / axis[0]) for axis in (across, up)]
    return [
        {"at": at, "text": schemes[members[0]].arm, "more": len(members) - 1}
        for at, members in together([[one.beta, one.branch] for one in schemes], sizes)
    ]


def _along(values: Sequence[float]) -> list[float]:
    return [float(value) for value in np.geomspace(min(values) / BEYOND, max(values) * BEYOND, CELLS)]


def _place(one: GridPlace | ArmPlace) -> dict[str, Any]:
    about = asdict(one)
    results = list(about.pop("results").values())
    return about | {"mean": fmean(results), "results": results}


def _phases(
    grid: Sequence[GridPlace], across: Sequence[float], up: Sequence[float], parameters: Mapping[str, Any] | None
) -> dict[str, Any]:
    """The predicted phase of each cell inside the grid, or in `no_phases` why there is none.

    Where a start of the grid is on the diagram was measured; between starts it is interpolated. Beyond the diagram's
    axes phases go on as they end.
    """
    betas, branches = (sorted({getattr(one, name) for one in grid}) for name in ("beta", "branch"))
    located = {(one.beta, one.branch): one.on_diagram for one in grid if one.on_diagram is not None}
    if parameters is None or not located:
        return {"phases": [], "cells": None, "no_phases": "the theory does not cover this model"}
    if len(located) < len(betas) * len(branches):
        return {"phases": [], "cells": None, "no_phases": "some starts have no place on the diagram"}
    places = np.log([[located[b, g] for g in branches] for b in betas])
    between = RegularGridInterpolator((np.log(betas), np.log(branches)), places, bounds_error=False, fill_value=np.nan)
    wanted = np.clip(between(tuple(np.meshgrid(np.log(across), np.log(up)))), *np.log(AXIS_LIMITS))
    known = np.isfinite(wanted).all(-1)
    given: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in parameters.items() if k not in AXES}
    ends = [(math.exp(own.min()), math.exp(own.max()) * (1 + EVEN)) for own in wanted[known].T]
    x, y = ((name, *own, "log") for name, own in zip(AXES, ends, strict=True))
    diagram = trainability(x, y, resolution=RESOLUTION, **given)
    aims = np.nan_to_num(wanted)
    columns, rows = (
        np.abs(np.log(axis.numpy())[:, None, None] - aims[None, ..., i]).argmin(0)
        for i, axis in enumerate((diagram.x, diagram.y))
    )
    phase = diagram.phase.numpy()[rows, columns]
    masks = sorted({int(mask) for mask in phase[known]})
    return {
        "phases": [phase_look(mask) | {"trainable": not mask} for mask in masks],
        "cells": [
            [masks.index(int(mask)) if inside else None for mask, inside in zip(*row, strict=True)]
            for row in zip(phase, known, strict=True)
        ],
        "no_phases": "",
    }


def _within(value: float, along: Sequence[float]) -> bool:
    return min(along) <= value <= max(along)
