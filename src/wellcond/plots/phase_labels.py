"""Names of phases on a diagram: written where they fit inside their phase, else in a legend."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from matplotlib.text import Text
    from matplotlib.transforms import Bbox

    from wellcond.propagation.diagram import Diagram

ROOM = 4.0  # pixels between a label and the border of its phase
MARKER = 7.0  # pixels between a label and the middle of a point
PLACES = 15  # places tried along each axis


def misfits(figure: Figure, axes: Any, found: Diagram, labels: Mapping[int, Text]) -> list[int]:
    """Move each label to where it lies inside its phase and covers no point; list the phases that have no such place.

    The figure has everything drawn that takes up room. Labels are by bit mask of the phase; upright ones are turned
    where only that fits.
    """
    figure.draw_without_rendering()  # lays out, so that sizes are final
    points = _points(axes)
    return [mask for mask, label in labels.items() if not _placed(axes, found, mask, label, points)]


def _placed(axes: Any, found: Diagram, mask: int, label: Text, points: np.ndarray[Any, Any]) -> bool:
    start = label.get_position()
    for angle in (0, 90):
        label.set_rotation(angle)
        for x, y in _candidates(axes, found, mask, start):
            label.set_position((x, y))
            if _fits(axes, found, mask, label.get_window_extent().padded(ROOM), points):
                return True
    return False


def _candidates(axes: Any, found: Diagram, mask: int, start: tuple[float, float]) -> Iterator[tuple[float, float]]:
    """Cells of a phase, a lattice of them, those first that are close to the start."""
    rows, columns = (torch.linspace(0, len(v) - 1, min(PLACES, len(v))).long().tolist() for v in (found.y, found.x))
    inside = [(float(found.x[c]), float(found.y[r])) for r in rows for c in columns if int(found.phase[r, c]) == mask]
    places = [start, *inside]
    seen = axes.transData.transform(places)
    yield from (places[k] for k in np.argsort(((seen - seen[0]) ** 2).sum(1), kind="stable"))


def _fits(axes: Any, found: Diagram, mask: int, box: Bbox, points: np.ndarray[Any, Any]) -> bool:
    frame = axes.get_window_extent()
    if not (frame.x0 <= box.x0 and box.x1 <= frame.x1 and frame.y0 <= box.y0 and box.y1 <= frame.y1):
        return False
    near = box.padded(MARKER)
    if len(points) and ((points > near.min) & (points < near.max)).all(1).any():
        return False
    (left, low), (right, high) = axes.transData.inverted().transform([box.min, box.max])
    columns = _between(found.x, left, right)
    rows = _between(found.y, low, high)
    return bool((found.phase[rows][:, columns] == mask).all())


def _between(values: torch.Tensor, low: float, high: float) -> slice:
    """The cells that an interval touches; values increase."""
    middles = (values[1:] + values[:-1]) / 2
    first, last = torch.searchsorted(middles, torch.tensor([low, high], dtype=values.dtype)).tolist()
    return slice(first, last + 1)


def _points(axes: Any) -> np.ndarray[Any, Any]:
    """Pixels of every point that is drawn with a marker."""
    drawn = [line.get_xydata() for line in axes.lines if line.get_marker() not in (None, "None", "", " ")]
    pixels: np.ndarray[Any, Any] = axes.transData.transform(np.concatenate([np.empty((0, 2)), *drawn]))
    return pixels
