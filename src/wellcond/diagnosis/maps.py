"""Every quantity of a diagnosis, layer × head: as maps for pages and pictures, as flat rows for data frames."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from wellcond._core.numbers import finite_number
from wellcond.diagnosis.quantities import QUANTITIES
from wellcond.diagnosis.quantity import Quantity
from wellcond.diagnosis.readings import UNMEASURED, LayerView, Reading, Record

SHOWN = ("key", "group", "label", "column", "overview", "picture", "meaning")
VERDICT = ("verdict", "code", "severity", "remedy")


def quantity_maps(layers: Sequence[Record]) -> list[dict[str, Any]]:
    """Return layer × head of every quantity that was measured anywhere: colour, scale, text and what hovering adds."""
    views = [LayerView(layer) for layer in layers]
    maps = []
    for quantity in QUANTITIES if layers else ():
        read = [head_readings(view, quantity) for view in views]
        if not quantity.group or not any(one and one.status != UNMEASURED for row in read for one in row):
            continue
        cells = [
            [one or Reading(None, UNMEASURED, str(view.layer["note"])) for one in row]
            for row, view in zip(read, views, strict=True)
        ]
        values = [[finite_number(cell.value) for cell in row] for row in cells]
        known = [value for row in values for value in row if value is not None]
        maps.append(
            {name: getattr(quantity, name) for name in SHOWN}
            | {name: getattr(quantity.scale, name) for name in ("log", "diverging")}
            | {"limits": quantity.scale.limits(known), "values": values}
            | {
                f"{name}s": [[getattr(cell, name) for cell in row] for row in cells]
                for name in ("text", "detail", "mark")
            }
        )
    return maps


def head_readings(view: LayerView, quantity: Quantity) -> list[Reading | None]:
    """Return the reading of each query head of a layer; None where the quantity was not measured."""
    found = (view.of_head(head, quantity.source, quantity.role) for head in range(view.layer["shape"][0]))
    return [None if record is None else quantity.read(record, view.layer) for record in found]


def head_rows(layers: Iterable[Record]) -> list[dict[str, Any]]:
    """Return one row per layer and query head; a grouped-query head has the numbers of the key/value head it reads.

    >>> from dataclasses import asdict
    >>> from wellcond.diagnosis.records import HeadRecord, LayerRecord, Spectrum, WeightRecord
    >>> key = WeightRecord("key", 0, Spectrum(2.0, 1.0, 0.5))
    >>> heads = tuple(HeadRecord(head, 0.5, 0.1, 3.0) for head in range(2))
    >>> rows = head_rows([asdict(LayerRecord("a", "softmax", (2, 1, 4, 8), 6, 2.0, 0.1, (key,), heads))])
    >>> [(row["layer"], row["head"], row["entropy"], row["kappa_key"]) for row in rows]
    [('a', 0, 0.5, 2.0), ('a', 1, 0.5, 2.0)]
    """
    rows = [row for layer in layers for row in _layer_rows(LayerView(layer))]
    measured = {name for row in rows for name, value in row.items() if value is not None}
    missing = {one.key for one in QUANTITIES if not one.column or one.role == "output"} - measured
    return [{name: value for name, value in row.items() if name not in missing} for row in rows]


def _layer_rows(view: LayerView) -> Iterable[dict[str, Any]]:
    layer = view.layer
    numbers = {one.key: head_readings(view, one) for one in QUANTITIES if one.group}
    statuses = {record["head"]: record["condition"]["status"] for record in layer["jacobian"]}
    for head in layer["heads"]:
        index = head["head"]
        row = {"layer": layer["name"], "kind": layer["kind"], "tokens": layer["tokens"], "head": index}
        row |= {key: None if found[index] is None else found[index].value for key, found in numbers.items()}
        yield row | {"status_jacobian": statuses.get(index)} | {name: head[name] for name in VERDICT}
