"""A record in a few numbers, for a tracker or a line on the screen."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from wellcond.diagnose.records import ROLES


class Scalars(dict[str, float]):
    """Averages by name; prints as one line."""

    def __init__(self, head: str, values: Mapping[str, float]) -> None:
        super().__init__(values)
        self.head = head

    def __str__(self) -> str:
        named = (f"{name.removeprefix('wellcond/')} {value:.3g}" for name, value in self.items())
        return "  ".join([self.head, *named])


def scalars(record: Mapping[str, Any]) -> Scalars:
    """Means over the layers and heads of a monitor's record, and the extremes that matter.

    >>> head = {"head": 0, "entropy": 0.5, "max_logit": 3.0}
    >>> print(scalars({"step": 7, "tier": "attention", "layers": [{"heads": [head], "cosine": 0.25}]}))
    step 7 attention  entropy 0.5  entropy_min 0.5  max_logit 3  cosine 0.25
    """
    layers, tier = record["layers"], record["tier"]
    found: dict[str, float | None] = {}
    if tier == "weights":
        heads = [w for layer in layers for w in layer["weights"] if w["head"] is not None]
        for role in ROLES:
            own = [w["raw"] for w in heads if w["role"] == role]
            found[f"kappa_{role}"] = _mean(w["condition"] for w in own)
            found[f"sigma_min_{role}"] = _mean(w["sigma_min"] for w in own)
            found[f"sigma_max_{role}"] = _mean(w["sigma_max"] for w in own)
    elif tier == "attention":
        entropy = [h["entropy"] for layer in layers for h in layer["heads"] if h["entropy"] is not None]
        logits = [h["max_logit"] for layer in layers for h in layer["heads"] if h["max_logit"] is not None]
        found |= {"entropy": _mean(entropy), "entropy_min": min(entropy, default=None)}
        found |= {"max_logit": max(logits, default=None), "cosine": _mean(layer["cosine"] for layer in layers)}
    else:
        records = [j for layer in layers for j in layer["jacobian"]]
        found["kappa_jacobian"] = _mean(j["condition"]["value"] for j in records)
        found["bound"] = _mean(j["bound"]["value"] for j in records if j["bound"] is not None)
    values = {f"wellcond/{name}": value for name, value in found.items() if value is not None}
    return Scalars(f"step {record['step']} {tier}", values)


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None
