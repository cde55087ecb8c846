"""Words and colours of a picture: labels, which are the user's and never a formula, notes, and what an axis counts."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLOURS = ("#c44e52", "#2a6f97", "#55a868", "#dd8452", "#8172b3", "#937860", "#da8bc3", "#8c8c8c", "#ccb974", "#64b5cd")
MOST = 8  # lines below a picture
LONGEST = 60  # characters of a label in a picture; figures.json has all of them
Unit = tuple[str, float]  # what an axis counts, and how many steps that is
STEP: Unit = ("step", 1.0)


def label_colours(labels: Sequence[str]) -> dict[str, Any]:
    """A colour for each label."""
    from matplotlib import colormaps

    many = colormaps["turbo"](np.linspace(0.05, 0.95, len(labels)))
    return dict(zip(labels, COLOURS if len(labels) <= len(COLOURS) else many, strict=False))


def unit_of(epochs: Collection[float | None], last: int) -> Unit:
    """What an axis counts: epochs, where there is but one length of them and at least one was trained; else steps.

    >>> unit_of({50.0}, last=300), unit_of({50.0}, last=20), unit_of({50.0, None}, last=300)
    (('epoch', 50.0), ('step', 1.0), ('step', 1.0))
    """
    known = next(iter(epochs)) if len(epochs) == 1 else None
    return STEP if known is None or known > last else ("epoch", known)


def label_steps(axes: Axes, unit: str, text: str = "") -> None:
    """Name the horizontal axis, by its unit if there is nothing else to say; there is no half step."""
    from matplotlib.ticker import MaxNLocator

    axes.set_xlabel(printable(text or unit), parse_math=False)
    axes.xaxis.set_major_locator(MaxNLocator("auto", integer=unit == "step", min_n_ticks=1, steps=[1, 2, 5, 10]))


def write_notes(figure: Figure, notes: Sequence[str]) -> None:
    """What there is to know of a picture, below it."""
    figure.supxlabel("\n".join(notes), fontsize=7, color="dimgrey", parse_math=False)


def limited(notes: Sequence[str]) -> list[str]:
    """As many lines as fit below a picture."""
    if len(notes) <= MOST:
        return [*notes]
    return [*notes[: MOST - 1], f"and {len(notes) - MOST + 1} more: see figures.json"]


def short(label: str, longest: int = LONGEST) -> str:
    """A label that fits in a legend, on one line.

    >>> short("a label " + "x" * 100 + " of many words")
    'a label xxxxxxxxxxxxxxxxxxxxxx…xxxxxxxxxxxxxxx of many words'
    """
    half = longest // 2
    return (
        "(blank)"
        if not label.strip()
        else printable(label if len(label) <= longest else f"{label[:half]}…{label[1 - half :]}")
    )


def printable(text: str) -> str:
    """A text without line breaks, control characters and halves of characters."""
    return "".join(character if character.isprintable() else "\N{REPLACEMENT CHARACTER}" for character in text)
