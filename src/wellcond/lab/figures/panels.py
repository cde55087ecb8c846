"""Panels of lines through training, with a key above and what the averages leave out below."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from wellcond.diagnosis.quantities import BY_KEY
from wellcond.diagnosis.readings import ROLES
from wellcond.lab.figures.runs import Series
from wellcond.plots.figure_text import IN_STEPS, Unit, label_steps, limited_notes, printable, shortened, write_notes

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Style = Literal["solid", "dashed", "dashdot", "dotted"]
Key = tuple[str, Any, Style, bool]  # what a legend says, of which colour and line, and whether it is a control
Grid = list[list[list[Series]]]  # rows of panels of lines

TRAINING = {"loss": "training loss", "test": "test metric"}  # what a comparison draws besides quantities
HOLLOW: dict[str, Any] = {"marker": "o", "markersize": 4.5, "markerfacecolor": "white"}  # of controls
MARKED = 30  # points of a line up to which each has a marker; of longer ones, only controls have some
TINY, HUGE = 1e-300, 1e300  # how far logarithmic axes go
UPPER_HALF_NOTE = "a standard deviation that exceeds its mean is drawn above the line only"
HIGHEST_SHOWN = 1e30  # how far they go where there is something to see below


def panel_figure(
    grid: Grid,
    colours: Mapping[str, Any],
    *,
    log: bool | None,
    unit: Unit = IN_STEPS,
    name: str = "",
    more: Sequence[str] = (),
) -> Figure:
    """Panels whose rows share their axis, a line per series, its key above and what it leaves out below.

    Rows of the grid are not empty. `log` is None where the numbers decide; `name` is of what is drawn, where the
    quantity's own does not say it; `more` lines are written below, before those.
    """
    from matplotlib.figure import Figure

    series = [one for row in grid for panel in row for one in panel]
    rows = [[one for panel in row for one in panel] for row in grid]
    limits = [None if log is False else _log_limits(row, always=log is True) for row in rows]
    notes = limited_notes([*more, *_not_drawn(rows, limits), *_notes(series)])
    width, height = (10.0, 7.0 / 3 * len(grid)) if len(grid[0]) > 1 else (6.5, 2.0 + 1.6 * len(grid))
    keys = _keys(series, colours, letters=int(13 * width))
    height += 0.2 * (len(keys) + len(notes))
    figure = Figure(figsize=(width, height), layout="constrained")
    panels = figure.subplots(len(grid), len(grid[0]), sharex=True, sharey="row", squeeze=False)
    for row, ends, axes_row in zip(grid, limits, panels, strict=True):
        drawn = next(one for panel in row for one in panel)
        axes_row[0].set_ylabel(printable(name) or _name(drawn), parse_math=False)
        for panel, axes in zip(row, axes_row, strict=True):
            if ends is not None:  # before there are lines, whose own limits may overflow
                _log_axis(axes, *ends)
            for one in panel:
                _line(axes, one, colours[one.label], _style(one), unit[1])
            axes.spines[["top", "right"]].set_visible(False)
    for axes, role in zip(panels[0], ROLES, strict=False):
        axes.set_title(role if len(grid[0]) > 1 else "")
    for axes in panels[-1]:
        label_steps(axes, unit[0])
    _write_keys(figure, keys)
    write_notes(figure, notes)
    return figure


def _write_keys(figure: Figure, keys: Sequence[Sequence[Key]]) -> None:
    """Labels are the user's: a `$` starts no formula, a leading underscore hides nothing."""
    from matplotlib.lines import Line2D

    by_column = [key for column in zip(*keys, strict=True) for key in column]  # the order of matplotlib's legends
    handles = [
        Line2D([], [], color=colour, linestyle=style, **(HOLLOW if control else {}))
        for _, colour, style, control in by_column
    ]
    names = ["-"] * len(handles)
    legend = figure.legend(handles, names, loc="outside upper center", ncols=len(keys[0]), frameon=False)
    for text, (content, *_) in zip(legend.get_texts(), by_column, strict=True):
        text.set_parse_math(False)
        text.set_text(content)


def _keys(series: Sequence[Series], colours: Mapping[str, Any], letters: int) -> list[list[Key]]:
    """Rows of the legend: a colour for each label; then a style for each kind of line, if there are several."""
    controls = {one.label: one.control_of is not None for one in series}
    labels: list[Key] = [(shortened(label), colours[label], "solid", control) for label, control in controls.items()]
    kinds: dict[str, Style] = {}
    for one in series:
        style, weight = _style(one), one.quantity in BY_KEY and BY_KEY[one.quantity].role
        own = "W alone" if style == "dashed" else "what the layer uses: W, or W + C"
        kinds[own if weight else _name(one)] = style
    styles: list[Key] = [(kind, "black", style, False) for kind, style in kinds.items()] if len(kinds) > 1 else []
    columns = letters // (7 + max(len(text) for text, *_ in labels + styles))
    columns = max(1, min(columns, max(len(labels), len(styles))))
    rows = [part[i : i + columns] for part in (labels, styles) for i in range(0, len(part), columns)]
    return [row + [("", "none", "solid", False)] * (columns - len(row)) for row in rows]


def _style(one: Series) -> Style:
    return BY_KEY[one.quantity].line if one.quantity in BY_KEY else "solid"


def _name(one: Series) -> str:
    """Return what an axis or a note calls a quantity."""
    quantity = BY_KEY.get(one.quantity)
    return TRAINING[one.quantity] if quantity is None else quantity.axis or quantity.title


def _line(axes: Axes, one: Series, colour: Any, style: Style, length: float) -> None:
    mean, at = _numbers(one.mean), _numbers(one.steps) / length
    few = len(one.steps) <= MARKED
    markers: dict[str, Any] = {"marker": "o" if few else "", "markersize": 2.5}
    if one.control_of is not None:
        markers = HOLLOW | {"markevery": 1 if few else len(one.steps) // (MARKED // 2)}
    axes.plot(at, mean, color=colour, linestyle=style, linewidth=1.3, **markers)
    if one.deviation is not None:
        low, high = mean - _numbers(one.deviation), np.minimum(mean + _numbers(one.deviation), HUGE)
        if axes.get_yscale() == "log":  # the lower half of a band that reaches zero would cover all that is below it
            low = np.maximum(np.where(low > 0, low, mean), axes.get_ylim()[0])
        axes.fill_between(at, low, high, color=colour, alpha=0.15, linewidth=0)


def _numbers(values: Sequence[float | None]) -> np.ndarray[Any, np.dtype[np.float64]]:
    """None becomes NaN, which is a gap in a line."""
    return np.array(values, dtype=np.float64)


def _log_axis(axes: Axes, bottom: float, top: float) -> None:
    from matplotlib.ticker import FixedLocator, NullLocator

    axes.set(yscale="log", ylim=(bottom, top))
    low, high = math.ceil(math.log10(bottom)), math.floor(math.log10(top))
    if high - low > 100 or max(-low, high) > 200:  # matplotlib's own ticks go beyond the axis, where they overflow
        stride = max(1, (high - low) // 6)
        powers = [power for power in range(low, high + 1) if power % stride == 0]
        axes.yaxis.set_major_locator(FixedLocator([10.0**power for power in powers]))
        axes.yaxis.set_minor_locator(NullLocator())


def _log_limits(series: Sequence[Series], *, always: bool) -> tuple[float, float] | None:
    """Limits of a logarithmic axis; None where a linear one serves: less than a decade, or a value that is zero.

    A band may leave the axis below: to show all of one that comes near zero would flatten every line. So would the
    bound of nearly one-hot attention, which may leave it above.
    """
    mean = np.concatenate([_numbers(one.mean) for one in series])
    spread = np.concatenate([_numbers(one.deviation or [0.0] * len(one.mean)) for one in series])
    mean, spread = mean[np.isfinite(mean)], spread[np.isfinite(mean)]
    if not len(mean) or mean.min() <= 0 or not (always or mean.max() > 10 * mean.min()):
        return None
    if mean.min() <= HIGHEST_SHOWN:
        mean, spread = mean[mean <= HIGHEST_SHOWN], spread[mean <= HIGHEST_SHOWN]
    low, high = np.maximum(mean - spread, mean / 3).min(), (mean + spread).max()
    bottom, top = np.log10(np.clip([low, high], TINY, HUGE))
    margin = min(max(0.05 * (top - bottom), 0.05), 5)
    return float(10 ** (bottom - margin)), float(10 ** (top + margin))


def _not_drawn(rows: Sequence[Sequence[Series]], limits: Sequence[tuple[float, float] | None]) -> list[str]:
    """Tell what a logarithmic axis does not show."""
    lines = []
    half = False
    for one, (_, top) in [(one, ends) for row, ends in zip(rows, limits, strict=True) if ends for one in row]:
        most = max((value for value in one.mean if value is not None), default=0.0)
        if most > top:
            lines.append(f"{shortened(one.label)}: {_name(one)} leaves the axis, up to {most:.0e}")
        half |= one.deviation is not None and bool((_numbers(one.deviation) >= _numbers(one.mean)).any())
    return lines + [UPPER_HALF_NOTE] * half


def _notes(series: Sequence[Series]) -> list[str]:
    """Tell what the averages leave out, a line per label and quantity."""
    totals: dict[tuple[str, str], Counter[str]] = {}
    for one in series:
        reasons = totals.setdefault((one.label, _name(one)), Counter())
        reasons.update(one.reasons if one.steps else {"everything, since its seeds share no step": 0})
    lines = []
    for (label, name), reasons in totals.items():
        if reasons:
            parts = ", ".join(f"{count or ''} {reason}".strip() for reason, count in reasons.items())
            lines.append(printable(f"{shortened(label)}: {name} leaves out {parts}"))
    return lines
