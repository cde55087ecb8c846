"""A model on its own diagram: each layer where its weights put it, and where the batch does."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from wellcond.report.diagram import criteria, draw
from wellcond.report.pictures import new_figure, save

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from wellcond.mapping.locate import Placement

WEIGHTS, BATCH = "#222222", "#c2185b"


def located_figure(placement: Placement, path: str | os.PathLike[str] | None = None) -> Figure:
    """Draw the diagram with the layers on it; beside it, sharpness and entropy layer by layer."""
    found = placement.diagram()
    figure = new_figure(11, 5.6)
    grid = figure.add_gridspec(2, 2, width_ratios=(1.8, 1))
    plane = figure.add_subplot(grid[:, 0])
    draw(plane, found)
    _mark(plane, placement)
    blocks = [layer.block for layer in placement.layers]
    betas = [s.beta_weights for s in placement.layers], [s.beta_batch for s in placement.layers]
    entropies = [s.entropy_predicted for s in placement.layers], [s.entropy_batch for s in placement.layers]
    upper, lower = figure.add_subplot(grid[0, 1]), figure.add_subplot(grid[1, 1])
    _course(upper, "sharpness of attention β", blocks, *betas)
    _course(lower, "entropy of attention ÷ log T", blocks, *entropies)
    upper.legend(frameon=False, fontsize=8)
    lower.set_ylim(0, 1.05)
    lower.set_xlabel("block")
    figure.supxlabel(criteria(found.thresholds, len(blocks)), fontsize=7.5, color="#555555")
    return save(figure, path)


def _mark(axes: Any, placement: Placement) -> None:
    """Dots where weights put the layers, rings where the batch does, and the way between."""
    for layer in placement.layers:
        y = layer.value_gain[0]
        if layer.beta_weights and layer.beta_batch:
            axes.plot([layer.beta_weights, layer.beta_batch], [y, y], color=BATCH, linewidth=0.8, zorder=3)
        if layer.beta_weights:
            axes.plot(layer.beta_weights, y, "o", color=WEIGHTS, markersize=4.5, zorder=4)
        if layer.beta_batch:
            axes.plot(layer.beta_batch, y, "o", color=BATCH, fillstyle="none", markersize=6.5, zorder=4)
    (dot,) = axes.plot([], [], "o", color=WEIGHTS, markersize=4.5)
    (ring,) = axes.plot([], [], "o", color=BATCH, fillstyle="none", markersize=6.5)
    axes.legend([dot, ring], ["a layer, from its weights", "a layer, on the batch"], fontsize=8, loc="lower right")


def _course(
    axes: Any, title: str, blocks: list[int], predicted: Sequence[float | None], measured: Sequence[float | None]
) -> None:
    axes.plot(blocks, _numbers(predicted), color=WEIGHTS, linewidth=1.3, label="from weights alone")
    axes.plot(blocks, _numbers(measured), "o", color=BATCH, markersize=4, label="on the batch")
    axes.set_title(title, fontsize=10)
    axes.set_ylim(bottom=0)
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.spines[["top", "right"]].set_visible(False)


def _numbers(values: Sequence[float | None]) -> list[float]:
    return [float("nan") if value is None else value for value in values]
