"""A model on its own diagram: each layer where its weights put it, and where the batch does."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from wellcond.plots.diagram import criteria, draw_diagram, unplaced
from wellcond.plots.figure_files import frame_panel, new_figure, save

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from wellcond.placement.result import Placement

WEIGHTS, BATCH = "#222222", "#c2185b"


def located_figure(placement: Placement, path: str | os.PathLike[str] | None = None) -> Figure:
    """Draw the diagram with the layers on it; beside it, sharpness and entropy layer by layer."""
    found = placement.diagram()
    figure = new_figure(11, 5.6)
    grid = figure.add_gridspec(3, 2, width_ratios=(1.8, 1), height_ratios=(1, 1, 0.45))
    plane = figure.add_subplot(grid[:, 0])
    labels = draw_diagram(plane, found)
    handles = _mark(plane, placement)
    blocks = [layer.block for layer in placement.layers]
    betas = [s.beta_weights for s in placement.layers], [s.beta_batch for s in placement.layers]
    entropies = [s.entropy_predicted for s in placement.layers], [s.entropy_batch for s in placement.layers]
    upper, lower = figure.add_subplot(grid[0, 1]), figure.add_subplot(grid[1, 1])
    _course(upper, "sharpness of attention β", blocks, *betas)
    _course(lower, "entropy of attention ÷ log T", blocks, *entropies)
    lower.set_ylim(0, 1.05)
    lower.set_xlabel("block")
    figure.supxlabel(criteria(found.thresholds, len(blocks)), fontsize=7.5, color="#555555")
    key = figure.add_subplot(grid[2, 1])
    key.axis("off")
    handles += unplaced(figure, plane, found, labels)
    key.legend(handles=handles, fontsize=8, loc="upper left", frameon=False, borderaxespad=0)
    return save(figure, path)


def _mark(axes: Any, placement: Placement) -> list[Any]:
    """Dots where weights put the layers, rings where the batch does, the way between; return what a legend explains."""
    absent = 0
    for layer in placement.layers:
        y = layer.value_gain[0]
        if not y or not (layer.beta_weights or layer.beta_batch):
            absent += 1
            continue
        if layer.beta_weights and layer.beta_batch:
            axes.plot([layer.beta_weights, layer.beta_batch], [y, y], color=BATCH, linewidth=0.8, zorder=3)
        if layer.beta_weights:
            axes.plot(layer.beta_weights, y, "o", color=WEIGHTS, markersize=4.5, zorder=4)
        if layer.beta_batch:
            axes.plot(layer.beta_batch, y, "o", color=BATCH, fillstyle="none", markersize=6.5, zorder=4)
    (dot,) = axes.plot([], [], "o-", color=WEIGHTS, markersize=4.5, linewidth=1.3, label="a layer, from its weights")
    (ring,) = axes.plot([], [], "o", color=BATCH, fillstyle="none", markersize=6.5, label="a layer, on the batch")
    (none,) = axes.plot([], [], " ", label=f"{absent} of {len(placement.layers)} layers left out: β or gain is 0")
    return [dot, ring, *([none] if absent else [])]


def _course(
    axes: Any, title: str, blocks: list[int], predicted: Sequence[float | None], measured: Sequence[float | None]
) -> None:
    known = [value for value in (*predicted, *measured) if value is not None and math.isfinite(value)]
    # a point at the very edge of the axes stays whole
    axes.plot(blocks, _numbers(predicted), "o-", color=WEIGHTS, linewidth=1.3, markersize=3, clip_on=False)
    rings = {"color": BATCH, "fillstyle": "none", "markersize": 5.5}
    axes.plot(blocks, _numbers(measured), "o", clip_on=False, zorder=3, **rings)
    frame_panel(axes, title)
    axes.set_ylim(0, 1.1 * max([*known, 1e-9]))
    axes.xaxis.get_major_locator().set_params(integer=True)


def _numbers(values: Sequence[float | None]) -> list[float]:
    return [float("nan") if value is None else value for value in values]
