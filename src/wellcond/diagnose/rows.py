"""A diagnosis as flat rows, one per layer and query head: what a data frame is made of."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from typing import Any

from wellcond.diagnose.records import JacobianRecord, LayerRecord, WeightRecord


def head_rows(layers: Iterable[LayerRecord]) -> list[dict[str, Any]]:
    """One row per layer and query head; a grouped-query head has the numbers of the key/value head that it reads.

    >>> from wellcond.diagnose.records import HeadRecord, Spectrum
    >>> key = WeightRecord("key", 0, Spectrum(2.0, 1.0, 0.5))
    >>> heads = tuple(HeadRecord(head, 0.5, 0.1, 3.0) for head in range(2))
    >>> rows = head_rows([LayerRecord("a", "softmax", (2, 1, 4, 8), 6, 2.0, 0.1, (key,), heads)])
    >>> [(row["layer"], row["head"], row["entropy"], row["kappa_key"]) for row in rows]
    [('a', 0, 0.5, 2.0), ('a', 1, 0.5, 2.0)]
    """
    return [row for layer in layers for row in _layer_rows(layer)]


def _layer_rows(layer: LayerRecord) -> Iterable[dict[str, Any]]:
    roles: dict[str, list[WeightRecord]] = {}
    for weight in layer.weights:
        if weight.head is not None:
            roles.setdefault(weight.role, []).append(weight)
    jacobians = {record.head: record for record in layer.jacobian}
    about = {"layer": layer.name, "kind": layer.kind, "tokens": layer.tokens}
    similarity = {"cosine": layer.cosine, "stable_rank": layer.stable_rank}
    for head in layer.heads:
        row = about | asdict(head) | similarity
        for role, own in roles.items():
            row |= _weight(role, own[head.head * len(own) // layer.shape[0]])
        yield row | _jacobian(jacobians.get(head.head))


def _weight(role: str, weight: WeightRecord) -> dict[str, Any]:
    return {
        f"kappa_{role}": weight.raw.condition,
        f"sigma_max_{role}": weight.raw.sigma_max,
        f"sigma_min_{role}": weight.raw.sigma_min,
        f"gradient_{role}": weight.gradient,
    }


def _jacobian(record: JacobianRecord | None) -> dict[str, Any]:
    bound = None if record is None or record.bound is None else record.bound.value
    return {
        "kappa_jacobian": None if record is None else record.condition.value,
        "status_jacobian": None if record is None else record.condition.status,
        "bound_jacobian": bound,
    }
