"""A diagnosis as one HTML file that needs no network: heat maps, spectra, a table, verdicts in words."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from wellcond._core.colours import COLOURS
from wellcond._core.numbers import finite_number
from wellcond._core.text_tables import span
from wellcond.diagnosis.maps import quantity_maps
from wellcond.diagnosis.readings import SYMBOLS
from wellcond.diagnosis.schema import SCHEMA, current_layers
from wellcond.errors import WellcondError
from wellcond.html.render import render

SEVERITIES = tuple(COLOURS)  # gravest first
SCRIPTS = ("diagnosis_maps.js", "diagnosis_table.js")
UNGRADED = "warning"  # what a verdict without a severity counts as
STATES = {"effective": "", "trained": " trained", "scaled": " scaled"}  # of a weight, behind its symbol


def diagnosis_page(data: dict[str, Any]) -> str:
    """Return one HTML file that shows a diagnosis, complete in itself.

    Args:
        data: `schema`, `model`, `inputs`, `settings`, `versions`, `layers` (`dataclasses.asdict` of each `LayerRecord`;
            `severity` and `remedy` of a layer or a head, or `concerns` of a layer, are shown if they are there) and
            `skipped` (`name`, `cls`, `reason` of each layer that was left out).

    Raises:
        WellcondError: jinja2 or plotly is not installed; the data are of a newer schema.

    >>> page = diagnosis_page({"schema": 2, "model": "<b>", "inputs": "", "settings": {}, "versions": {}, "layers": [],
    ...                        "skipped": []})
    >>> "<title>&lt;b&gt; · wellcond diagnosis</title>" in page
    True
    """
    if data["schema"] > SCHEMA:
        raise WellcondError(
            f"the diagnosis has schema {data['schema']}, but this wellcond shows up to {SCHEMA}: upgrade"
        )
    layers = current_layers(data["layers"], data["schema"])
    found = [_severity(head) for layer in layers for head in layer["heads"]]
    shown = {
        "data": {**data, "layers": layers},
        "verdicts": _verdicts(layers),
        "severities": [severity for severity in SEVERITIES if severity in found],
        "judged_heads": sum(map(bool, found)),
        "judged_layers": sum(bool(_severity(layer)) for layer in layers),
        "heads": sum(layer["shape"][0] for layer in layers),
        "fused": [{w["role"]: w["effective"] for w in layer["weights"] if w["head"] is None} for layer in layers],
        "symbols": SYMBOLS,
    }
    payload = {
        "layers": [_layer(layer) for layer in layers],
        "quantities": quantity_maps(layers),
        "severities": SEVERITIES[::-1],
        "roles": {symbol: role for role, symbol in SYMBOLS.items()},
    }
    return render("diagnosis.html.j2", SCRIPTS, shown, payload, severity=_severity)


def _verdicts(layers: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Concerns of one code and severity together, gravest first."""
    groups: dict[tuple[str, str, bool], list[dict[str, Any]]] = {}
    for layer in layers:
        for concern in _concerns(layer):
            key = concern["severity"], concern["code"] or "other", bool(concern["heads"])
            groups.setdefault(key, []).append(concern)
    ordered = sorted(groups.items(), key=lambda group: SEVERITIES.index(group[0][0]))
    return [_group(severity, code, found) for (severity, code, _), found in ordered]


def _concerns(layer: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield all that is wrong in a layer: its concerns, or where there are none the verdicts of it and of its heads."""
    if layer.get("concerns"):
        yield from (concern | {"severity": _graded(concern.get("severity"))} for concern in layer["concerns"])
        return
    for record in (layer, *layer["heads"]):
        if severity := _severity(record):
            about = {
                "layer": layer["name"],
                "heads": [record["head"]] if "head" in record else [],
                "severity": severity,
            }
            yield about | {"code": record["code"], "text": record["verdict"], "remedy": record.get("remedy") or ""}


def _group(severity: str, code: str, concerns: list[dict[str, Any]]) -> dict[str, Any]:
    """Say once what the places of a verdict have in common."""
    texts, remedies = ({concern[name] for concern in concerns} for name in ("text", "remedy"))
    names = list(dict.fromkeys(concern["layer"] for concern in concerns))
    heads = sum(len(concern["heads"]) for concern in concerns)
    places = [{**concern, "where": _where(concern["layer"], concern["heads"])} for concern in concerns]
    many = f"{heads} heads of {span(names)}" if heads else f"{len(places)} layers of {span(names)}"
    return {
        "severity": severity,
        "code": code,
        "places": places,
        "where": places[0]["where"] if len(places) == 1 else many,
        "text": texts.pop() if len(texts) == 1 else "",
        "remedy": remedies.pop() if len(remedies) == 1 else "",
    }


def _where(layer: str, heads: Sequence[int]) -> str:
    if not heads:
        return layer
    return f"{layer}, head{'s' if len(heads) > 1 else ''} {', '.join(map(str, heads))}"


def _severity(record: dict[str, Any]) -> str:
    """The severity of the verdict of a head, or of a layer itself; empty without one."""
    if not (record["verdict"] or record["code"]):
        return ""
    own = (
        c["severity"] for c in record.get("concerns", ()) if not c["heads"]
    )  # a layer's own says that of its heads too
    return _graded(next(own, record.get("severity")))


def _graded(severity: str | None) -> str:
    return severity if severity in SEVERITIES else UNGRADED


def _layer(layer: dict[str, Any]) -> dict[str, Any]:
    """Return all that the scripts need to know of a layer besides the quantities: names, verdicts, singular values."""
    spectra: dict[str, dict[int, list[float | None]]] = {}
    for record in layer["weights"]:
        for state, words in STATES.items():
            if record["head"] is not None and record[state] and record[state]["values"]:
                name = SYMBOLS[record["role"]] + words
                spectra.setdefault(name, {})[record["head"]] = _short(record[state]["values"])
    for record in layer["jacobian"]:
        if record["spectrum"]:
            spectra.setdefault("J", {})[record["head"]] = _short(record["spectrum"])
    verdicts = {
        record["head"]: [record["code"], record["verdict"], _severity(record), record.get("remedy") or ""]
        for record in layer["heads"]
    }
    total, groups = layer["shape"][:2]
    return {
        "name": layer["name"],
        "heads": total,
        "groups": groups,
        "verdicts": [verdicts.get(head, ["", "", "", ""]) for head in range(total)],
        "spectra": spectra,
    }


def _short(values: list[float]) -> list[float | None]:
    """Six digits: no screen shows more, and spectra are most of the page."""
    return [None if finite_number(value) is None else float(f"{value:.6g}") for value in values]
