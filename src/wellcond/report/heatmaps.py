"""A diagnosis as a picture: one heat map layer × head for each quantity that matters."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from wellcond.report.captions import short
from wellcond.report.pictures import new_figure, save
from wellcond.report.quantities import quantity_maps
from wellcond.visible import visible

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MOST = 40  # layer names that fit beside a picture
LONGEST = 32  # characters of one
SHOWN = ("entropy", "sharpness Σ p²", "similarity of tokens", "κ(J)", "κ(W_Q)", "κ(W_K)", "κ(W_V)")


def diagnosis_figure(data: Mapping[str, Any], path: str | os.PathLike[str] | None = None) -> Figure:
    """Draw attention, similarity of tokens, κ(J) and κ of the weights, on the colour scales of the HTML page.

    What was not measured is left blank.

    Args:
        data: `Diagnosis.to_dict()`, also as JSON gives it.
        path: where to write it, by its ending (.png, .svg, .pdf).
    """
    layers = data["layers"]
    found = {one["label"]: one for one in quantity_maps(layers)}
    maps = [found[label] for label in SHOWN if label in found]
    figure = new_figure(1.5 + 1.9 * len(maps), 1.6 + 0.16 * len(layers))
    from matplotlib.colors import LogNorm, Normalize
    from matplotlib.ticker import MaxNLocator

    heads = max((int(layer["shape"][0]) for layer in layers), default=0)
    for index, one in enumerate(maps):
        axes = figure.add_subplot(1, len(maps), index + 1)
        norm = (LogNorm if one["log"] else Normalize)(*one["limits"])
        cells = [[math.nan if v is None else v for v in row] + [math.nan] * (heads - len(row)) for row in one["values"]]
        image = axes.imshow(cells, aspect="auto", interpolation="nearest", cmap="viridis", norm=norm)
        bar = figure.colorbar(image, ax=axes, location="bottom", shrink=0.8, ticks=one["limits"], format="{x:.3g}")
        bar.ax.minorticks_off()
        axes.set_title(one["label"], fontsize=10)
        axes.set_xlabel("head")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        named = len(layers) <= MOST and not index
        axes.set_yticks(range(len(layers)) if named else [])
        if named:
            labels = axes.set_yticklabels([short(visible(layer["name"]), LONGEST) for layer in layers], fontsize=7)
            for label in labels:
                label.set_parse_math(False)  # a pair of $ would be read as mathematics
    return save(figure, path)
