"""A diagnosis as a matplotlib figure: one heat map layer × head for each quantity that matters."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from wellcond._core.safe_text import visible
from wellcond.diagnosis.maps import quantity_maps
from wellcond.diagnosis.schema import current_layers
from wellcond.plots.figure_files import new_figure, save
from wellcond.plots.figure_text import shortened

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MAX_LAYERS_NAMED = 40  # whose names fit beside a picture
WIDEST_LAYER_NAME = 32  # characters


def diagnosis_figure(data: Mapping[str, Any], path: str | os.PathLike[str] | None = None) -> Figure:
    """Draw attention, similarity of tokens, κ(J) and κ of the weights, on the colour scales of the HTML page.

    What was not measured is left blank.

    Args:
        data: `Diagnosis.to_dict()`, also as JSON gives it.
        path: where to write it, by its ending (.png, .svg, .pdf).
    """
    layers = current_layers(data["layers"], data["schema"])
    maps = [one for one in quantity_maps(layers) if one["picture"]]
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
        named = len(layers) <= MAX_LAYERS_NAMED and not index
        axes.set_yticks(range(len(layers)) if named else [])
        if named:
            names = [shortened(visible(layer["name"]), WIDEST_LAYER_NAME) for layer in layers]
            labels = axes.set_yticklabels(names, fontsize=7)
            for label in labels:
                label.set_parse_math(False)  # a pair of $ would be read as mathematics
    return save(figure, path)
