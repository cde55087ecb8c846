"""A diagnosis as flat rows, one per layer and query head: what a data frame is made of."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from typing import Any

from wellcond.diagnosis.maps import head_readings
from wellcond.diagnosis.quantities import QUANTITIES
from wellcond.diagnosis.readings import LayerView
from wellcond.diagnosis.records import LayerRecord

VERDICT = ("verdict", "code", "severity", "remedy")


def head_rows(layers: Iterable[LayerRecord]) -> list[dict[str, Any]]:
    """Return one row per layer and query head; a grouped-query head has the numbers of the key/value head it reads.

    >>> from wellcond.diagnosis.records import HeadRecord, Spectrum, WeightRecord
    >>> key = WeightRecord("key", 0, Spectrum(2.0, 1.0, 0.5))
    >>> heads = tuple(HeadRecord(head, 0.5, 0.1, 3.0) for head in range(2))
    >>> rows = head_rows([LayerRecord("a", "softmax", (2, 1, 4, 8), 6, 2.0, 0.1, (key,), heads)])
    >>> [(row["layer"], row["head"], row["entropy"], row["kappa_key"]) for row in rows]
    [('a', 0, 0.5, 2.0), ('a', 1, 0.5, 2.0)]
    """
    rows = [row for layer in layers for row in _layer_rows(LayerView(asdict(layer)))]
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
