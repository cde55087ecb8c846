"""Similarity, attention and gradients against depth: as predicted, and beside it what a model and a batch measure."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from wellcond.plots.figure_files import frame_panel, new_figure, save

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from wellcond.placement.check import PropagationCheck
    from wellcond.propagation.stack import Propagation

CHECKED = {
    "cosine": "similarity of tokens (mean cosine)",
    "entropy": "entropy of attention ÷ log T",
    "participation": "participation of attention, Σ p²",
}


def propagation_figure(found: Propagation, path: str | os.PathLike[str] | None = None) -> Figure:
    """Draw three panels: how alike the tokens are, how sharply they attend, how gradients grow on their way back."""
    figure = new_figure(10, 3.2)
    panels = figure.subplots(1, 3)
    layers, streams = range(1, len(found.entropy) + 1), range(len(found.cosine))
    _lines(panels[0], CHECKED["cosine"], {"": (streams, found.cosine)}, limits=(0, 1.02))
    sharpness = {"entropy ÷ log T": (layers, found.entropy), "participation Σ p²": (layers, found.participation)}
    if max(found.own) > 2 / 100:
        sharpness["weight of the own token"] = (layers, found.own)
    _lines(panels[1], "attention", sharpness, limits=(0, 1.02))
    squares = {
        "stream": (streams, found.stream_gradient),
        "W_Q, W_K": (layers, found.query_gradient),
        "W_V": (layers, found.value_gradient),
    }
    _lines(panels[2], "mean square of gradients", squares)
    if any(value > 0 for value in found.query_gradient):
        panels[2].set_yscale("log")
    figure.suptitle(str(found.verdict))
    return save(figure, path)


def propagation_check_figure(check: PropagationCheck, path: str | os.PathLike[str] | None = None) -> Figure:
    """Draw three panels against the block, lines predicted and dots measured: similarity, entropy and participation."""
    figure = new_figure(10, 3.2)
    for axes, (name, title) in zip(figure.subplots(1, 3), CHECKED.items(), strict=True):
        first = 0 if name == "cosine" else 1  # the stream lies between blocks: before the first, and behind each
        for stretch in check.stretches:
            predicted, measured = getattr(stretch.predicted, name), getattr(stretch.measured, name)
            blocks = range(first, first + len(predicted))
            (line,) = axes.plot(blocks, predicted, color="C0", linewidth=1.5)
            (dots,) = axes.plot(blocks, measured, "o", color="C1", markersize=4)
            first += len(stretch.layers)
        frame_panel(axes, title, "block")
        axes.xaxis.get_major_locator().set_params(integer=True)
        axes.set_ylim(min(0.0, axes.get_ylim()[0]), 1.02)
        if name == "cosine":
            axes.legend([line, dots], ["predicted from weights", "measured"], frameon=False, fontsize=8)
    figure.suptitle("the theory against this model and batch")
    return save(figure, path)


def _lines(axes: Any, title: str, lines: dict[str, Any], limits: tuple[float, float] | None = None) -> None:
    for label, (x, y) in lines.items():
        axes.plot(x, y, marker="o", markersize=2.5, linewidth=1.3, label=label)
    frame_panel(axes, title, "block")
    if limits:
        axes.set_ylim(*limits)
    if len(lines) > 1:
        axes.legend(frameon=False, fontsize=8)
