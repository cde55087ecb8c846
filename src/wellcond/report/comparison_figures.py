"""What the figures of a comparison draw: numbers only, by the position of each scheme on the page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from wellcond.errors import WellcondError
from wellcond.report.comparison_curves import monitor_curves, test_curve, training_curve
from wellcond.report.comparison_diagram import diagram_data

if TYPE_CHECKING:
    from wellcond.lab.outcome import Outcome


def page_order(comparison: Mapping[str, Any]) -> list[str]:
    """The schemes as the page lists them: the baseline first, every control behind its own.

    >>> schemes = [{"scheme": "a"}, {"scheme": "a'", "control_of": "b"}, {"scheme": "b"}, {"scheme": "default"}]
    >>> page_order({"baseline": "default", "schemes": [{"control_of": None, **one} for one in schemes]})
    ['default', 'a', 'b', "a'"]
    """
    names = [record["scheme"] for record in comparison["schemes"]]
    own = {record["scheme"]: record["control_of"] for record in comparison["schemes"]}
    heads = [name for name in names if own[name] not in names or own[name] == name]
    heads.sort(key=lambda name: name != comparison["baseline"])
    order = [name for head in heads for name in (head, *(n for n in names if own[n] == head != n))]
    return order + [name for name in names if name not in order]  # controls of controls, if anybody makes them


def figures(
    comparison: Mapping[str, Any], outcomes: Sequence[Outcome], diagram: Mapping[str, Any] | None
) -> dict[str, Any]:
    """Everything that is drawn.

    Args:
        comparison: `Comparison.to_dict()`.
        outcomes: of all runs.
        diagram: parameters of `wc.trainability`, if the model has one.
    """
    names = page_order(comparison)
    records = {record["scheme"]: record for record in comparison["schemes"]}
    curves = {
        "train": training_curve(outcomes, names),
        "test": test_curve(outcomes, names, comparison["metric"]),
    }
    plane, reason = _diagram(diagram, outcomes, names)
    return {
        "schemes": [{"name": name, "control": records[name]["control_of"] is not None} for name in names],
        "metric": comparison["metric"],
        "higher": comparison["higher_is_better"],
        "steps": max((run.steps for run in outcomes), default=0),
        "differences": [
            {"scheme": index, **_difference(records[name]["to_baseline"])}
            for index, name in enumerate(names)
            if records[name]["to_baseline"] and records[name]["to_baseline"]["mean"] is not None
        ],
        "reaching": [{"scheme": index, **_reaching(records[name])} for index, name in enumerate(names)],
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
    """The diagram, or why there is none."""
    if not parameters:
        return None, "This model has no place on a trainability diagram, or it was not looked for."
    try:
        return diagram_data(parameters, outcomes, names), ""
    except (WellcondError, TypeError) as error:  # parameters that another version wrote
        return None, f"The trainability diagram could not be computed: {error}"
