"""A prediction as a picture: similarity, attention and gradients against depth."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from wellcond.plots.figure_files import new_figure, save

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from wellcond.propagation.stack import Propagation


def propagation_figure(found: Propagation, path: str | os.PathLike[str] | None = None) -> Figure:
    """Draw three panels: how alike the tokens are, how sharply they attend, how gradients grow on their way back."""
    figure = new_figure(10, 3.2)
    panels = figure.subplots(1, 3)
    layers, streams = range(1, len(found.entropy) + 1), range(len(found.cosine))
    _lines(panels[0], "similarity of tokens (mean cosine)", {"": (streams, found.cosine)}, limits=(0, 1.02))
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


def _lines(axes: Any, title: str, lines: dict[str, Any], limits: tuple[float, float] | None = None) -> None:
    for label, (x, y) in lines.items():
        axes.plot(x, y, marker="o", markersize=2.5, linewidth=1.3, label=label)
    axes.set_title(title, fontsize=10)
    axes.set_xlabel("block")
    axes.spines[["top", "right"]].set_visible(False)
    if limits:
        axes.set_ylim(*limits)
    if len(lines) > 1:
        axes.legend(frameon=False, fontsize=8)
