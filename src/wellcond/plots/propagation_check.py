"""A check of the theory as a picture: lines are predicted, dots measured."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from wellcond.plots.figure_files import new_figure, save

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from wellcond.placement.check import PropagationCheck

PANELS = {
    "cosine": "similarity of tokens (mean cosine)",
    "entropy": "entropy of attention ÷ log T",
    "participation": "participation of attention, Σ p²",
}


def propagation_check_figure(check: PropagationCheck, path: str | os.PathLike[str] | None = None) -> Figure:
    """Draw three panels against the block: how alike the tokens are, how evenly and how sharply they attend."""
    figure = new_figure(10, 3.2)
    for axes, (name, title) in zip(figure.subplots(1, 3), PANELS.items(), strict=True):
        first = 0 if name == "cosine" else 1  # the stream lies between blocks: before the first, and behind each
        for stretch in check.stretches:
            predicted, measured = getattr(stretch.predicted, name), getattr(stretch.measured, name)
            blocks = range(first, first + len(predicted))
            (line,) = axes.plot(blocks, predicted, color="C0", linewidth=1.5)
            (dots,) = axes.plot(blocks, measured, "o", color="C1", markersize=4)
            first += len(stretch.layers)
        _finish(axes, title)
        if name == "cosine":
            axes.legend([line, dots], ["predicted from weights", "measured"], frameon=False, fontsize=8)
    figure.suptitle("the theory against this model and batch")
    return save(figure, path)


def _finish(axes: Any, title: str) -> None:
    axes.set_title(title, fontsize=10)
    axes.set_xlabel("block")
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.set_ylim(min(0.0, axes.get_ylim()[0]), 1.02)
    axes.spines[["top", "right"]].set_visible(False)
