"""Bars of how soon each arm of a comparison is as good as the baseline is in the end, with a dot for each seed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from wellcond.plots.figure_text import label_steps, limited_notes, shortened, unit_of, write_notes

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from wellcond.lab.figures.compared_runs import Compared

WIDEST_LABEL_BESIDE = 36  # characters of a label beside a bar
LEGEND = "bars: medians over seeds; dots: seeds"


def reaching(compared: Compared) -> list[dict[str, Any]]:
    """Return a row of `figures.json` for each arm against the baseline's last test; none where it has no result.

    Conditioned Initialization, Figures 2, 3 and 4. The steps are those of an `ArmRecord`.
    """
    if compared.statistics is None:
        return []
    return [
        {
            "comparison": compared.name,
            "label": record.arm,
            "control_of": record.control_of,
            "baseline": compared.statistics.baseline,
            "metric": compared.metric,
            "steps_to_reach": record.steps_to_reach,
            "median_steps": record.median_steps,
            "reached": record.reached,
            "last": compared.last,
            "epoch": compared.epoch,
        }
        for record in compared.statistics.arms
    ]


def reaching_figure(
    panels: Sequence[Sequence[Mapping[str, Any]]], colours: Mapping[str, Any], more: Sequence[str] = ()
) -> Figure:
    """Draw horizontal bars, a panel for the rows of each comparison, with `more` lines below."""
    from matplotlib.figure import Figure

    controls = any(row["control_of"] is not None for rows in panels for row in rows)
    notes = limited_notes([f"{LEGEND}; hollow: controls" if controls else LEGEND, *more])
    height = sum(0.32 * len(rows) + 0.9 for rows in panels) + 0.15 * len(notes)
    figure = Figure(figsize=(7.5, height), layout="constrained")
    axes = figure.subplots(len(panels), squeeze=False, height_ratios=[len(rows) + 1 for rows in panels])[:, 0]
    for rows, one in zip(panels, axes, strict=True):
        if len(panels) > 1:
            one.set_title(shortened(rows[0]["comparison"]), loc="left", parse_math=False)
        _panel(one, rows, colours)
    write_notes(figure, notes)
    return figure


def _panel(axes: Axes, rows: Sequence[Mapping[str, Any]], colours: Mapping[str, Any]) -> None:
    first = rows[0]
    unit, length = unit_of({first["epoch"]}, first["last"])
    outside: Any = {"transform": axes.get_yaxis_transform(), "va": "center", "parse_math": False}
    for place, row in enumerate(rows):
        colour = colours[row["label"]]
        if row["median_steps"] is not None:
            face = "none" if row["control_of"] is not None else (colour, 0.45)
            look: Any = {"color": face, "edgecolor": colour, "linewidth": 1.2, "clip_on": False}
            axes.barh(place, row["median_steps"] / length, height=0.7, **look)
        seeds = len(row["steps_to_reach"])
        asides = np.linspace(-0.22, 0.22, seeds) if seeds > 1 else [0.0] * seeds  # several may get there at one test
        for step, aside in zip(row["steps_to_reach"].values(), asides, strict=True):
            if step is not None:
                axes.plot(step / length, place + aside, "o", color=colour, markersize=3.5, clip_on=False)
        axes.text(-0.015, place, shortened(row["label"], WIDEST_LABEL_BESIDE), ha="right", **outside)
        axes.text(1.025, place, _beside(row, length), ha="left", color="dimgrey", **outside)
    axes.set(xlim=(0, max(first["last"], 1) / length), ylim=(len(rows) - 0.4, -0.6), yticks=[])
    axes.spines[["top", "right"]].set_visible(False)
    baseline, metric = (shortened(first[name], WIDEST_LABEL_BESIDE) for name in ("baseline", "metric"))
    label_steps(axes, unit, f"{unit} of the first test as good as {baseline}'s last {metric}")


def _beside(row: Mapping[str, Any], length: float) -> str:
    """Write the median, and how many seeds there are to it where some never got there.

    >>> _beside({"steps_to_reach": {0: 100, 1: None, 2: 150}, "median_steps": 150.0, "reached": 2}, length=50.0)
    '3, 2 of 3 seeds'
    """
    median = [] if row["median_steps"] is None else [_number(row["median_steps"] / length)]
    seeds, reached = len(row["steps_to_reach"]), row["reached"]
    some = [] if reached == seeds > 0 else [f"{reached} of {seeds} seeds" if seeds else "no seed to compare"]
    return ", ".join(median + some)


def _number(value: float) -> str:
    """Write three digits, and all of a larger number.

    >>> _number(1000.0), _number(6.6815)
    ('1000', '6.68')
    """
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"
