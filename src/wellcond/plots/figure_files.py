"""Matplotlib figures: begun, framed and written to files."""

from __future__ import annotations

import io
import os
from typing import TYPE_CHECKING, Any

from wellcond._core.atomic import write_bytes
from wellcond._core.file_names import check_path
from wellcond.errors import WellcondError

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def new_figure(width: float, height: float) -> Figure:
    """An empty figure, without pyplot's global state."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise WellcondError(f"matplotlib cannot be imported ({error}): pip install 'wellcond[plot]'") from error
    return Figure(figsize=(width, height), layout="constrained")


def frame_panel(axes: Any, title: str, below: str = "") -> None:
    """Give axes a small title and a label below, and no line above or on the right."""
    axes.set_title(title, fontsize=10)
    axes.set_xlabel(below)
    axes.spines[["top", "right"]].set_visible(False)


def save(figure: Figure, path: str | os.PathLike[str] | None) -> Figure:
    """Write a figure whole, in the format of the path's ending, if there is a path; return the figure."""
    if path is not None:
        target, file = check_path(path), io.BytesIO()
        try:
            figure.savefig(file, format=target.suffix.lstrip(".") or "png", dpi=150)
        except ValueError as error:
            raise WellcondError(f"'{target}' cannot be drawn: {error}") from error
        write_bytes(target, file.getvalue())
    return figure
