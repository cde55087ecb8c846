"""A response surface as a picture: results over β and g, where each arm starts, and what the theory rules out."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from wellcond.plots.figure_files import new_figure, save
from wellcond.plots.figure_text import shortened, write_notes

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from wellcond.lab.analysis.surface import Surface

X_NAME = "sharpness of attention at the start, β  (0: every token alike; large: one token only)"
Y_NAME = "gain of attention at the start, g  (what it adds ÷ what is there)"


def surface_figure(
    found: Surface, path: str | os.PathLike[str] | None = None, about: Mapping[str, Any] | None = None
) -> Figure:
    """Draw the response in colour, the grid as dots, arms as circles with their names, the best as a star.

    Args:
        found: the surface.
        path: to write to.
        about: what `comparison.json` says, for the predicted phases; without it there are none.
    """
    from wellcond.lab.page.surface_data import surface_data

    data = surface_data(found, about or {})
    figure = new_figure(8.0, 5.6)
    axes = figure.subplots()
    axes.set_xscale("log")
    axes.set_yscale("log")
    better = "viridis" if found.higher_is_better else "viridis_r"
    image = axes.pcolormesh(data["x"], data["y"], _numbers(data["response"]), cmap=better, shading="nearest")
    figure.colorbar(image, ax=axes).set_label(f"{found.metric} after training", parse_math=False)
    if data["cells"] is not None:
        _phases(axes, data)
    places = [[one[name] for one in data["grid"]] for name in ("beta", "branch")]
    axes.plot(*places, ".", color="#ffffff", markersize=3)
    for one in (one for one in data["arms"] if one["beta"] and one["branch"]):
        marker, face = ("o", "#d1495b") if one["control_of"] is None else ("D", "none")
        axes.plot(one["beta"], one["branch"], marker, mfc=face, mec="#ffffff", markersize=7)
    for one in data["labels"]:
        name = shortened(one["text"], 24) + (f" and {one['more']} more" if one["more"] else "")
        left = one["at"][0] > EDGE * max(data["x"])
        axes.annotate(
            name,
            one["at"],
            (-6 if left else 6, 5),
            textcoords="offset points",
            ha="right" if left else "left",
            parse_math=False,
            **BOX,
        )
    best = data["best"]
    axes.plot(best["first"], [best["place"][1]] * 2, color=INK, linewidth=1.2)
    axes.plot([best["place"][0]] * 2, best["second"], color=INK, linewidth=1.2)
    axes.plot(*best["place"], "*", color="#ffd166", mec=INK, markersize=15)
    axes.set_xlabel(X_NAME)
    axes.set_ylabel(Y_NAME)
    notes = ["★ best, with 95 % of where it may be; dots: trained starts; circles: schemes, diamonds: controls"]
    write_notes(figure, notes)
    return save(figure, path)


INK = "#222222"
LARGE = 0.05  # of the plane: smaller parts have no room for a word
EDGE = 0.6  # of the largest β: beyond it names stand on the left of their points
SMALL: dict[str, Any] = {"fontsize": 7.5, "style": "italic", "clip_on": True}
BOX: dict[str, Any] = {"fontsize": 8, "bbox": {"boxstyle": "round,pad=0.2", "fc": "#ffffffcc", "ec": "none"}}


def _phases(axes: Any, data: Mapping[str, Any]) -> None:
    """Outline what the theory rules out, with a word inside of each part that has room for one."""
    cells = _numbers(data["cells"])
    for number, phase in enumerate(data["phases"]):
        if phase["trainable"]:
            continue
        own = cells == number
        axes.contour(data["x"], data["y"], own, [0.5], colors=[INK], linewidths=0.9, linestyles="dashed")
        row, column = (int(np.median(places)) for places in own.nonzero())
        if own[row, column] and own.mean() > LARGE:
            at = data["x"][column], data["y"][row]
            axes.text(*at, f"predicted: {phase['words']}", ha="center", va="center", color=INK, **SMALL)


def _numbers(rows: list[list[float | None]]) -> Any:
    return np.array([[np.nan if value is None else value for value in row] for row in rows], dtype=np.float64)
