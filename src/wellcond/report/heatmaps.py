"""A diagnosis as a picture: one heat map layer × head for each quantity."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from wellcond.report.pictures import new_figure, save
from wellcond.visible import visible

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Layer = Mapping[str, Any]
MOST = 40  # layer names that fit beside a picture


def diagnosis_figure(data: Mapping[str, Any], path: str | os.PathLike[str] | None = None) -> Figure:
    """Draw κ of the weights, κ(J) and entropy; κ on a logarithmic scale, what was not measured left blank.

    Args:
        data: `Diagnosis.to_dict()` as JSON gives it.
        path: where to write it, by its ending (.png, .svg, .pdf).
    """
    layers = data["layers"]
    panels = {
        title: [[cell(layer, h) for h in range(_widest(layers))] for layer in layers] for title, cell in _CELLS.items()
    }
    shown = {title: rows for title, rows in panels.items() if any(math.isfinite(v) for row in rows for v in row)}
    figure = new_figure(1.5 + 2.2 * len(shown), 1.6 + 0.16 * len(layers))
    from matplotlib.colors import LogNorm

    for index, (title, rows) in enumerate(shown.items()):
        axes = figure.add_subplot(1, len(shown), index + 1)
        known = [value for row in rows for value in row if math.isfinite(value) and value > 0]
        scale: Any = (
            {"vmin": 0.0, "vmax": 1.0} if title == "entropy" else {"norm": LogNorm(min(known), max(known) * 1.001)}
        )
        image = axes.imshow(rows, aspect="auto", interpolation="nearest", cmap="viridis", **scale)
        bar = figure.colorbar(image, ax=axes, location="bottom", shrink=0.9, ticks=image.get_clim(), format="{x:.2g}")
        bar.ax.minorticks_off()
        axes.set_title(title)
        axes.set_xlabel("head")
        names = [visible(layer["name"]).replace("$", r"\$") for layer in layers]  # a pair would be read as mathematics
        axes.set_yticks(range(len(layers)) if len(layers) <= MOST and not index else [])
        if len(layers) <= MOST and not index:
            axes.set_yticklabels(names, fontsize=7)
    return save(figure, path)


def _widest(layers: list[Layer]) -> int:
    return max(int(layer["shape"][0]) for layer in layers)


def _weight(role: str) -> Callable[[Layer, int], float]:
    def cell(layer: Layer, head: int) -> float:
        own = [w for w in layer["weights"] if w["role"] == role and w["head"] is not None]
        if not own or head >= layer["shape"][0]:
            return math.nan
        return _number(own[head * len(own) // layer["shape"][0]]["raw"]["condition"])

    return cell


def _jacobian(layer: Layer, head: int) -> float:
    return next((_number(j["condition"]["value"]) for j in layer["jacobian"] if j["head"] == head), math.nan)


def _entropy(layer: Layer, head: int) -> float:
    return next((_number(h["entropy"]) for h in layer["heads"] if h["head"] == head), math.nan)


def _number(value: Any) -> float:
    return float(value) if isinstance(value, (int, float)) else math.nan


_CELLS: dict[str, Callable[[Layer, int], float]] = {
    "κ(W_Q)": _weight("query"),
    "κ(W_K)": _weight("key"),
    "κ(W_V)": _weight("value"),
    "κ(J)": _jacobian,
    "entropy": _entropy,
}
