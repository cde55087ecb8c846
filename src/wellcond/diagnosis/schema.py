"""The version of the JSON that a diagnosis and a monitor write, and how older records are read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

SCHEMA = 2  # raised when a field changes its meaning or goes away
RENAMED = {"effective": "raw", "trained": "stored", "scaled": "effective"}  # in schema 2, and what it was in schema 1


def current_layers(layers: Sequence[Mapping[str, Any]], schema: int) -> list[dict[str, Any]]:
    """Return the records of layers in the words of this schema.

    >>> weight = {"role": "key", "head": 0, "raw": {"condition": 2.0}, "stored": None, "effective": None}
    >>> current_layers([{"weights": [weight]}], schema=1)[0]["weights"][0]["effective"]
    {'condition': 2.0}
    """
    if schema == SCHEMA:
        return [dict(layer) for layer in layers]
    return [dict(layer) | {"weights": [_renamed(weight) for weight in layer.get("weights") or ()]} for layer in layers]


def _renamed(weight: Mapping[str, Any]) -> dict[str, Any]:
    kept = {name: value for name, value in weight.items() if name not in RENAMED.values()}
    return kept | {new: weight[old] if new == "effective" else weight.get(old) for new, old in RENAMED.items()}
