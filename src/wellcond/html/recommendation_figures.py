"""The figures of a recommendation's page as plain data: differences with intervals, losses of rounds, the diagram."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from wellcond._core.numbers import average, finite_number

MOST_ROWS = 8  # of the losses of a round that chose


def page_figures(data: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the scripts of the page draw; each is None where there is nothing to draw.

    Finalists have a colour each, by number: 0 is the model's own weights, 1 the advice.
    """
    finalists = [one["name"] for one in data["ranking"] if one["outcome"] == "finalist"]
    advised = [one["name"] for one in data["ranking"] if one["outcome"] == "advised"]
    others = [name for name in finalists if name != data["own"]]
    colours = {data["own"]: 0} | dict(zip(advised, (1,), strict=False)) | {name: 2 + i for i, name in enumerate(others)}
    return {
        "own": data["own"],
        "advised": advised[0] if advised else None,
        "differences": _differences(data, colours),
        "losses": _losses(data, colours),
        "diagram": _diagram(data, colours),
    }


def _differences(data: Mapping[str, Any], colours: Mapping[str, int]) -> dict[str, Any] | None:
    """Every finalist's difference to the model's own weights."""
    last = data["probe"]["last"]
    tested = [one for one in data["ranking"] if one["difference"] is not None]
    if last is None or not tested:
        return None
    rows = []
    for one in tested:
        found = one["difference"]
        by_seed = [finite_number(value) for value in found["by_seed"]]
        lost = [str(value) for value, known in zip(found["by_seed"], by_seed, strict=True) if known is None]
        whose = data["own"] if lost and all(value.startswith("-") for value in lost) else "it"
        rows.append(
            {
                "name": one["name"],
                "colour": colours.get(one["name"]),
                "seeds": [value for value in by_seed if value is not None],
                "mean": finite_number(found["mean"]),
                "interval": found["interval"] and list(found["interval"]),
                "filled": found["better"],
                "note": f"{whose} diverged in {len(lost)} of {len(by_seed)} seeds" if lost else "",
            }
        )
    return {"steps": last["steps"], "seeds": len(last["seeds"]), "rows": rows}


def _losses(data: Mapping[str, Any], colours: Mapping[str, int]) -> dict[str, Any] | None:
    """Losses in the last round that chose, the lowest first, where no round could compare."""
    rungs = data["probe"]["rungs"]
    if data["probe"]["last"] is not None or not rungs:
        return None
    steps, rows = rungs[-1]["steps"], []
    for name, by_seed in rungs[-1]["losses"].items():
        means = [average([float(loss) for loss in _at(marks, steps)]) for marks in by_seed.values()]
        known = [mean for mean in map(finite_number, means) if mean is not None]
        mean = average(known) if known and len(known) == len(means) else None
        rows.append({"name": name, "colour": colours.get(name), "seeds": known, "mean": mean, "interval": None})
    ranked = sorted(rows, key=lambda row: (row["mean"] is None, row["mean"]))
    shown = [row for place, row in enumerate(ranked) if place < MOST_ROWS or row["name"] == data["own"]]
    described = [row | {"filled": False, "note": "" if row["mean"] is not None else "it diverged"} for row in shown]
    return {"steps": steps, "seeds": len(rungs[-1]["seeds"]), "of": len(ranked), "rows": described}


def _at(marks: Mapping[Any, Any], steps: int) -> Any:
    """The losses after some steps; keys of JSON are text."""
    return marks[steps] if steps in marks else marks[str(steps)]


def _diagram(data: Mapping[str, Any], colours: Mapping[str, int]) -> dict[str, Any] | None:
    """The diagram, whose points are the candidates' places; those without a colour were no finalists."""
    found = data["diagram"]
    if found is None:
        return None
    points = [point | {"colour": colours.get(point["candidate"])} for point in found["points"]]
    return {**found, "points": points}
