"""Every quantity of a diagnosis, layer × head: what is coloured on which scale, what is written, what hovering adds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from wellcond._core.numbers import finite_number
from wellcond.diagnosis.quantities import QUANTITIES
from wellcond.diagnosis.quantity import Quantity
from wellcond.diagnosis.readings import UNMEASURED, LayerView, Reading, Record

SHOWN = ("key", "group", "label", "column", "overview", "picture", "meaning")


def quantity_maps(layers: Sequence[Record]) -> list[dict[str, Any]]:
    """Return layer × head of every quantity that was measured anywhere."""
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
