"""Numbers of a comparison's figures, by the position of each arm on the page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from wellcond.errors import WellcondError
from wellcond.lab.page.comparison_curves import monitor_curves, test_curve, training_curve
from wellcond.lab.page.comparison_diagram import diagram_data

if TYPE_CHECKING:
    from wellcond.lab.analysis.outcome import Outcome


def page_order(comparison: Mapping[str, Any]) -> list[str]:
    """Return the arms as the page lists them: the baseline first, every control behind its own.

    >>> arms = [{"arm": "a"}, {"arm": "a'", "control_of": "b"}, {"arm": "b"}, {"arm": "default"}]
    >>> page_order({"baseline": "default", "arms": [{"control_of": None, **one} for one in arms]})
    ['default', 'a', 'b', "a'"]
    """
    names = [record["arm"] for record in comparison["arms"]]
    own = {record["arm"]: record["control_of"] for record in comparison["arms"]}
    heads = [name for name in names if own[name] not in names or own[name] == name]
    heads.sort(key=lambda name: name != comparison["baseline"])
    order = [name for head in heads for name in (head, *(n for n in names if own[n] == head != n))]
    return order + [name for name in names if name not in order]  # controls of controls, if anybody makes them


def figure_data(
    comparison: Mapping[str, Any], outcomes: Sequence[Outcome], diagram: Mapping[str, Any] | None
) -> dict[str, Any]:
    """Return all that the page draws of a `Comparison.to_dict()`; `diagram` has the parameters of `wc.trainability`."""
    names = page_order(comparison)
    records = {record["arm"]: record for record in comparison["arms"]}
    curves = {
        "train": training_curve(outcomes, names),
        "test": test_curve(outcomes, names, comparison["metric"]),
    }
    plane, reason = _diagram(diagram, outcomes, names)
    return {
        "arms": [{"name": name, "control": records[name]["control_of"] is not None} for name in names],
        "metric": comparison["metric"],
        "higher": comparison["higher_is_better"],
        "steps": max((run.steps for run in outcomes), default=0),
        "differences": [
            {"arm": index, **_difference(records[name]["to_baseline"])}
            for index, name in enumerate(names)
            if records[name]["to_baseline"] and records[name]["to_baseline"]["mean"] is not None
        ],
        "reaching": [{"arm": index, **_reaching(records[name])} for index, name in enumerate(names)],
        "curves": {name: curve for name, curve in curves.items() if curve["bands"] or curve["lines"]},
        "monitored": monitor_curves(outcomes, names),
        "diagram": plane,
        "no_diagram": reason,
    }


def _difference(paired: Mapping[str, Any]) -> dict[str, Any]:
    return {"mean": paired["mean"], "interval": paired["interval"], "seeds": list(paired["differences"].values())}


def _reaching(record: Mapping[str, Any]) -> dict[str, Any]:
    steps = list(record["steps_to_reach"].values())
    return {"median": record["median_steps"], "reached": [s for s in steps if s is not None], "of": len(steps)}


def _diagram(
    parameters: Mapping[str, Any] | None, outcomes: Sequence[Outcome], names: Sequence[str]
) -> tuple[dict[str, Any] | None, str]:
    """Return the diagram, or why there is none."""
    if not parameters:
        return None, "This model has no place on a trainability diagram, or it was not looked for."
    try:
        return diagram_data(parameters, outcomes, names), ""
    except (WellcondError, TypeError) as error:  # parameters that another version wrote
        return None, f"The trainability diagram could not be computed: {error}"
