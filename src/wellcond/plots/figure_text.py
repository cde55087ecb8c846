"""Text and colours of a figure: labels, which are the user's and never a formula, notes, and what an axis counts."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PALETTE = ("#c44e52", "#2a6f97", "#55a868", "#dd8452", "#8172b3", "#937860", "#da8bc3", "#8c8c8c", "#ccb974", "#64b5cd")
MAX_NOTES = 8  # lines below a picture
WIDEST_LABEL = 60  # characters of a label in a picture; figures.json has all of them
Unit = tuple[str, float]  # what an axis counts, and how many steps that is
IN_STEPS: Unit = ("step", 1.0)


def label_colours(labels: Sequence[str]) -> dict[str, Any]:
    """Return a colour for each label."""
    from matplotlib import colormaps

    many = colormaps["turbo"](np.linspace(0.05, 0.95, len(labels)))
    return dict(zip(labels, PALETTE if len(labels) <= len(PALETTE) else many, strict=False))


def unit_of(epochs: Collection[float | None], last: int) -> Unit:
    """Choose the unit of an axis: epochs, where all are of one length and at least one was trained; else steps.

    >>> unit_of({50.0}, last=300), unit_of({50.0}, last=20), unit_of({50.0, None}, last=300)
    (('epoch', 50.0), ('step', 1.0), ('step', 1.0))
    """
    known = next(iter(epochs)) if len(epochs) == 1 else None
    return IN_STEPS if known is None or known > last else ("epoch", known)


def label_steps(axes: Axes, unit: str, text: str = "") -> None:
    """Name the horizontal axis, by its unit if there is nothing else to say; there is no half step."""
    from matplotlib.ticker import MaxNLocator

    axes.set_xlabel(printable(text or unit), parse_math=False)
    axes.xaxis.set_major_locator(MaxNLocator("auto", integer=unit == "step", min_n_ticks=1, steps=[1, 2, 5, 10]))


def write_notes(figure: Figure, notes: Sequence[str]) -> None:
    """Write what there is to know of a figure below it."""
    figure.supxlabel("\n".join(notes), fontsize=7, color="dimgrey", parse_math=False)


def limited_notes(notes: Sequence[str]) -> list[str]:
    """Keep as many lines as fit below a figure, and say how many there are besides."""
    if len(notes) <= MAX_NOTES:
        return [*notes]
    return [*notes[: MAX_NOTES - 1], f"and {len(notes) - MAX_NOTES + 1} more: see figures.json"]


def shortened(label: str, longest: int = WIDEST_LABEL) -> str:
    """Cut a label in the middle, so that it fits in a legend, on one line.

    >>> shortened("a label " + "x" * 100 + " of many words")
    'a label xxxxxxxxxxxxxxxxxxxxxx…xxxxxxxxxxxxxxx of many words'
    """
    half = longest // 2
    return (
        "(blank)"
        if not label.strip()
        else printable(label if len(label) <= longest else f"{label[:half]}…{label[1 - half :]}")
    )


def printable(text: str) -> str:
    """Return a text without line breaks, control characters and halves of characters."""
    return "".join(character if character.isprintable() else "\N{REPLACEMENT CHARACTER}" for character in text)
