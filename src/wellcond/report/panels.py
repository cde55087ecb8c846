"""Panels of lines through training, with a key above and what the averages leave out below."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from wellcond.diagnose.records import ROLES
from wellcond.report.runs import STORED, USED, Series

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Style = Literal["solid", "dashed", "dashdot", "dotted"]
Key = tuple[str, Any, Style]  # what a legend says, of which colour and line
Grid = list[list[list[Series]]]  # rows of panels of lines

NAMES = {
    "sigma_min": "σ_min",
    "sigma_max": "σ_max",
    "condition": "κ",
    "jacobian": "κ(J)",
    "jacobian_at_least": "κ(J) is at least",
    "jacobian_vertical": "κ(J), blocks stacked vertically",
    "bound": "bound (vertical convention)",
    "entropy": "entropy ÷ log of visible keys",
}
STYLES: dict[str, Style] = {"jacobian_at_least": "dotted", "jacobian_vertical": "dashdot", "bound": "dashed"}
COLOURS = ("#c44e52", "#2a6f97", "#55a868", "#dd8452", "#8172b3", "#937860", "#da8bc3", "#8c8c8c", "#ccb974", "#64b5cd")
MOST = 8  # lines below a picture
LONGEST = 60  # characters of a label in a picture; figures.json has all of them
TINY, HUGE = 1e-300, 1e300  # how far logarithmic axes go


def panel_figure(grid: Grid, colours: Mapping[str, Any], *, log: bool | None) -> Figure:
    """Panels whose rows share their axis, a line per series, its key above and what it leaves out below.

    Args:
        grid: rows of panels of series.
        colours: of the labels.
        log: whether the axes are logarithmic; None if the numbers decide.
    """
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    series = [one for row in grid for panel in row for one in panel]
    notes = _notes(series)
    width, height = (10.0, 7.0) if len(grid) > 1 else (6.5, 3.6)
    keys = _keys(series, colours, letters=int(13 * width))
    height += 0.2 * (len(keys) + len(notes))
    figure = Figure(figsize=(width, height), layout="constrained")
    panels = figure.subplots(len(grid), len(grid[0]), sharex=True, sharey="row", squeeze=False)
    for row, axes_row in zip(grid, panels, strict=True):
        members = [one for panel in row for one in panel]
        limits = None if log is False else _log_limits(members, always=log is True)
        axes_row[0].set_ylabel(NAMES[members[0].quantity.name])
        for panel, axes in zip(row, axes_row, strict=True):
            if limits is not None:  # before there are lines, whose own limits may overflow
                _log_axis(axes, *limits)
            for one in panel:
                _line(axes, one, colours[one.label], _style(one, series))
            axes.spines[["top", "right"]].set_visible(False)
    for axes, role in zip(panels[0], ROLES, strict=False):
        axes.set_title(role if len(grid) > 1 else "")
    for axes in panels[-1]:
        axes.set_xlabel("step")
        axes.xaxis.set_major_locator(MaxNLocator("auto", integer=True, min_n_ticks=1, steps=[1, 2, 5, 10]))
    _write_texts(figure, keys, notes)
    return figure


def _write_texts(figure: Figure, keys: Sequence[Sequence[Key]], notes: Sequence[str]) -> None:
    """Labels are the user's: a `$` starts no formula, a leading underscore hides nothing."""
    from matplotlib.lines import Line2D

    by_column = [key for column in zip(*keys, strict=True) for key in column]  # the order of matplotlib's legends
    handles = [Line2D([], [], color=colour, linestyle=style) for _, colour, style in by_column]
    names = ["-"] * len(handles)
    legend = figure.legend(handles, names, loc="outside upper center", ncols=len(keys[0]), frameon=False)
    below = figure.supxlabel("-", fontsize=7, color="dimgrey")
    contents = [*[text for text, _, _ in by_column], "\n".join(notes)]
    for text, content in zip([*legend.get_texts(), below], contents, strict=True):
        text.set_parse_math(False)
        text.set_text(content)


def label_colours(labels: Sequence[str]) -> dict[str, Any]:
    """A colour for each label."""
    from matplotlib import colormaps

    many = colormaps["turbo"](np.linspace(0.05, 0.95, len(labels)))
    return dict(zip(labels, COLOURS if len(labels) <= len(COLOURS) else many, strict=False))


def _keys(series: Sequence[Series], colours: Mapping[str, Any], letters: int) -> list[list[Key]]:
    """Rows of the legend: a colour for each label; then a style for each kind of line, if there are several."""
    labels: list[Key] = [
        (_short(label), colours[label], "solid") for label in dict.fromkeys(one.label for one in series)
    ]
    kinds: dict[str, Style] = {}
    for one in series:
        style = _style(one, series)
        weight = "W alone" if style == "dashed" else "what the layer uses: W, or W + C"
        kinds[weight if one.quantity.role else NAMES[one.quantity.name]] = style
    styles: list[Key] = [(kind, "black", style) for kind, style in kinds.items()] if len(kinds) > 1 else []
    columns = letters // (7 + max(len(text) for text, _, _ in labels + styles))
    columns = max(1, min(columns, max(len(labels), len(styles))))
    rows = [part[i : i + columns] for part in (labels, styles) for i in range(0, len(part), columns)]
    return [row + [("", "none", "solid")] * (columns - len(row)) for row in rows]


def _style(one: Series, series: Sequence[Series]) -> Style:
    name, role, weight = one.quantity
    both = any(other.label == one.label and other.quantity == (name, role, USED) for other in series)
    return "dashed" if weight == STORED and both else STYLES.get(name, "solid")


def _line(axes: Axes, one: Series, colour: Any, style: Style) -> None:
    mean = _numbers(one.mean)
    marker = "o" if len(one.steps) <= 30 else ""
    axes.plot(one.steps, mean, color=colour, linestyle=style, linewidth=1.3, marker=marker, markersize=2.5)
    if one.deviation is not None:
        low, high = mean - _numbers(one.deviation), np.minimum(mean + _numbers(one.deviation), HUGE)
        if axes.get_yscale() == "log":  # a band that reaches zero ends where the axis does
            low = np.maximum(low, axes.get_ylim()[0])
        axes.fill_between(one.steps, low, high, color=colour, alpha=0.15, linewidth=0)


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

    A band may leave the axis below: to show all of one that comes near zero would flatten every line.
    """
    mean = np.concatenate([_numbers(one.mean) for one in series])
    spread = np.concatenate([_numbers(one.deviation or [0.0] * len(one.mean)) for one in series])
    mean, spread = mean[np.isfinite(mean)], spread[np.isfinite(mean)]
    if not len(mean) or mean.min() <= 0 or not (always or mean.max() > 10 * mean.min()):
        return None
    low, high = np.maximum(mean - spread, mean / 3).min(), (mean + spread).max()
    bottom, top = np.log10(np.clip([low, high], TINY, HUGE))
    margin = min(max(0.05 * (top - bottom), 0.05), 5)
    return float(10 ** (bottom - margin)), float(10 ** (top + margin))


def _notes(series: Sequence[Series]) -> list[str]:
    """What the averages leave out, a line per label and quantity."""
    totals: dict[tuple[str, str], Counter[str]] = {}
    for one in series:
        reasons = totals.setdefault((one.label, NAMES[one.quantity.name]), Counter())
        reasons.update(one.reasons if one.steps else {"everything, since its seeds share no step": 0})
    lines = []
    for (label, name), reasons in totals.items():
        if reasons:
            parts = ", ".join(f"{count or ''} {reason}".strip() for reason, count in reasons.items())
            lines.append(_printable(f"{_short(label)}: {name} leaves out {parts}"))
    return lines if len(lines) <= MOST else [*lines[: MOST - 1], f"and {len(lines) - MOST + 1} more: see figures.json"]


def _short(label: str) -> str:
    """A label that fits in a legend, on one line.

    >>> _short("a label " + "x" * 100 + " of many words")
    'a label xxxxxxxxxxxxxxxxxxxxxx…xxxxxxxxxxxxxxx of many words'
    """
    half = LONGEST // 2
    return (
        "(blank)"
        if not label.strip()
        else _printable(label if len(label) <= LONGEST else f"{label[:half]}…{label[1 - half :]}")
    )


def _printable(text: str) -> str:
    return "".join(character if character.isprintable() else "\N{REPLACEMENT CHARACTER}" for character in text)
