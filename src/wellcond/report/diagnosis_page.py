"""A diagnosis as one HTML file that needs no network: heat maps, spectra, a table, verdicts in words."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from typing import Any

from wellcond.errors import WellcondError
from wellcond.report.quantities import SYMBOLS, number, quantity_maps
from wellcond.report.scales import finite
from wellcond.tables import span

SEVERITIES = ("alarm", "warning", "note")  # gravest first
UNGRADED = "warning"  # what a verdict without a severity counts as


def diagnosis_page(data: dict[str, Any]) -> str:
    """One HTML file that shows a diagnosis, complete in itself.

    Text is escaped wherever it goes (HTML, JSON, plotly's labels), and a content security policy forbids what could
    slip through: the page runs only its own two scripts and requests nothing.

    Args:
        data: `schema`, `model`, `inputs`, `settings`, `versions`, `layers` (`dataclasses.asdict` of each `LayerRecord`;
            `severity` and `remedy` of a layer or a head, or `concerns` of a layer, are shown if they are there) and
            `skipped` (`name`, `cls`, `reason` of each layer that was left out).

    Returns:
        The page; write it as UTF-8.

    Raises:
        WellcondError: jinja2 or plotly is not installed.

    >>> page = diagnosis_page({"schema": 1, "model": "<b>", "inputs": "", "settings": {}, "versions": {}, "layers": [],
    ...                        "skipped": []})
    >>> "<title>&lt;b&gt; · wellcond diagnosis</title>" in page
    True
    """
    try:
        import jinja2
        from plotly.offline import get_plotlyjs
    except ImportError as error:
        raise WellcondError(f"The HTML page cannot be made ({error}): pip install 'wellcond[report]'") from error

    layers = data["layers"]
    payload = script_json({"layers": [_layer(layer) for layer in layers], "quantities": quantity_maps(layers)})
    loader = jinja2.PackageLoader("wellcond.report", ".")
    environment = jinja2.Environment(
        loader=loader, autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters["plain"] = plain_number
    environment.filters["number"] = number
    environment.filters["severity"] = _severity
    return environment.get_template("diagnosis.html.j2").render(
        data=data,
        payload=payload,
        # A digest of all that is shown, which can therefore not contain it; the same data give the same page.
        nonce=hashlib.sha256(json.dumps(data, default=str).encode()).hexdigest(),
        plotly=get_plotlyjs(),
        verdicts=_verdicts(layers),
        severities=[s for s in SEVERITIES if any(_severity(head) == s for layer in layers for head in layer["heads"])],
        judged_heads=sum(bool(_severity(head)) for layer in layers for head in layer["heads"]),
        judged_layers=sum(bool(_severity(layer)) for layer in layers),
        heads=sum(layer["shape"][0] for layer in layers),
        fused=[{w["role"]: w["raw"] for w in layer["weights"] if w["head"] is None} for layer in layers],
        symbols=SYMBOLS,
    )


def plain_number(value: Any) -> str:
    """A value as the page prints it: text as it is, numbers as JSON has them."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)


def script_json(value: Any) -> str:
    r"""JSON that neither ends a script element nor starts a comment in it; U+2028 and U+2029 are escaped as well.

    >>> script_json(["</script>", "&"])
    '["\\u003c/script\\u003e","\\u0026"]'
    """
    text = json.dumps(value, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


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
    """What is wrong in a layer: its concerns, or in records without them the verdicts of the layer and of its heads."""
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
    """What the places of a verdict have in common is said once."""
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
    """What the scripts need to know of a layer besides the quantities: names, verdicts, singular values."""
    spectra: dict[str, dict[int, list[float | None]]] = {}
    for record in layer["weights"]:
        for state in ("raw", "stored", "effective"):
            if record["head"] is not None and record[state] and record[state]["values"]:
                name = SYMBOLS[record["role"]] + ("" if state == "raw" else f" {state}")
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
    return [None if finite(value) is None else float(f"{value:.6g}") for value in values]
