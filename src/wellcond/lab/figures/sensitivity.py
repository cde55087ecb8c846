"""Learning-rate sensitivity as a picture: the metric of each arm against the learning rate, and the areas."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from wellcond.plots.figure_files import frame_panel, new_figure, save
from wellcond.plots.figure_text import label_colours, shortened, write_notes

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from wellcond.lab.analysis.sensitivity import ArmSensitivity, Sensitivity


def sensitivity_figure(found: Sensitivity, path: str | os.PathLike[str] | None = None) -> Figure:
    """Draw curves with their seeds on the left, areas with their intervals on the right.

    Where a seed is lost at a learning rate, the curve has a gap, and a cross stands at what untrained models have.
    """
    figure = new_figure(9.5, 3.8)
    curves, areas = figure.subplots(1, 2, width_ratios=(2, 1))
    colours = label_colours([one.arm for one in found.arms])
    for row, one in enumerate(found.arms):
        _curve(curves, one, colours[one.arm], found.untrained)
        if one.mean is not None:
            ends = one.interval or (one.mean, one.mean)
            areas.plot(ends, [row, row], color=colours[one.arm], linewidth=1.5)
            areas.plot(one.mean, row, "o", color=colours[one.arm], markersize=5)
    frame_panel(curves, f"{found.metric} after training", "learning rate")
    rates = sorted({lr for one in found.arms for lr in one.rates})
    curves.set_xscale("log")
    curves.set_xticks(rates, [f"{lr:g}" for lr in rates])
    curves.minorticks_off()
    if found.in_logarithm:
        curves.set_yscale("log")
    if found.untrained is not None:
        curves.axhline(found.untrained, color="#999999", linewidth=0.8, linestyle="dotted")
    frame_panel(areas, "sensitivity: area to the best", "log" * found.in_logarithm + f" {found.metric}")
    areas.set_yticks(range(len(found.arms)), [shortened(one.arm, 24) for one in found.arms], parse_math=False)
    areas.invert_yaxis()
    areas.set_xlim(left=0)
    write_notes(figure, ["dots: seeds; ×: a seed was lost; dotted: untrained; bars: 95 % intervals over seeds"])
    return save(figure, path)


def _curve(axes: Any, one: ArmSensitivity, colour: Any, untrained: float | None) -> None:
    rates = sorted(one.rates)
    means = [one.rates[lr].mean for lr in rates]
    known = [float("nan") if mean is None else mean for mean in means]
    axes.plot(rates, known, color=colour, linewidth=1.5)
    for lr in rates:
        results = list(one.rates[lr].results.values())
        axes.plot([lr] * len(results), results, ".", color=colour, markersize=4)
        if one.rates[lr].lost and untrained is not None:
            axes.plot(lr, untrained, "x", color=colour, markersize=6)
