"""The trainability diagram of a recommendation's model, with the places of its candidates, as plain data for a page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from wellcond.errors import WellcondError
from wellcond.plots.diagram_cells import diagram_cells

if TYPE_CHECKING:
    from wellcond.advice.recommendation import Advice

RESOLUTION = 60  # cells along each axis, on a figure of a few hundred pixels


def advice_diagram(stack: Mapping[str, Any], ranking: Sequence[Advice]) -> tuple[dict[str, Any] | None, str]:
    """Return the diagram of a model's mean block with all candidates that are predicted, or why there is none.

    Args:
        stack: arguments of `wc.trainability`, as `predict` returns them; empty where the theory does not cover the
            model.
        ranking: candidates in the order of the page.

    >>> advice_diagram({}, [])
    (None, 'No candidate could be predicted.')
    """
    located = [one.prediction for one in ranking if one.prediction is not None]
    if not stack or not located:
        return None, "No candidate could be predicted."
    points = [{"beta": one.heat, "value_gain": one.value_gain} for one in located]
    try:
        found = diagram_cells(stack, points, RESOLUTION)
    except WellcondError as error:
        return None, f"The trainability diagram could not be computed: {error}"
    del found["together"]
    places = zip(located, points, found.pop("places"), strict=True)
    verdicts = [(one, point | place | {"verdict": one.verdict}) for one, point, place in places]
    return found | {"points": [{"candidate": one.candidate, **place} for one, place in verdicts]}, ""
