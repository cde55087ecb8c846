"""Readers of numbers from a layer's record, in the plain form that JSON has: the value, and how it is written."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from wellcond._core.numbers import three_digits

Record = Mapping[str, Any]
Source = Literal["layer", "heads", "products", "weights", "jacobian"]  # which records of a layer have the number
Read = Callable[[Record, Record], "Reading | None"]  # from one of them and its layer's; None where it was not measured

SYMBOLS = {"query": "W_Q", "key": "W_K", "value": "W_V", "output": "W_O"}
ROLES = ("query", "key", "value")  # whose weights are measured
PRODUCTS = {"qk": ("query", "key"), "vo": ("value", "output")}  # and the roles of their factors
SHARED = ("key", "value")  # roles whose heads several query heads share in grouped-query attention
DEFICIENT, NOT_FINITE, UNMEASURED = "rank deficient", "not finite", "not measured"
BELOW_RANK = "↓"  # marks a rank deficient κ where there is no room for words
SIGNS = {"unresolved": "≥", "lower bound": "≥", "row sample": "~"}  # by the status of a condition number


@dataclass(frozen=True)
class Reading:
    """One number as it was measured."""

    value: float | None  # None where there is none
    text: str  # as a person reads it
    detail: str = ""  # what hovering adds
    mark: str = ""  # what is written where there is no room for the text
    status: str = ""  # why there is no number, or what it is in place of an exact one; empty or "ok" if it is exact
    facts: Mapping[str, Any] = field(default_factory=dict)  # other numbers that a verdict tells


class LayerView:
    """A layer's record as JSON has it, and which of its records belong to a query head."""

    def __init__(self, layer: Record) -> None:
        self.layer = layer
        self._by_head: dict[tuple[Source, str], dict[int | None, Record]] = {}

    def records(self, source: Source, role: str = "") -> list[Record]:
        """Return all records of a kind, those of all heads side by side left out."""
        if source == "layer":
            return [self.layer]
        found = self.layer.get(source) or ()
        if source == "products":
            return [record for record in found if record["pair"] == role]
        if source != "weights":
            return list(found)
        return [record for record in found if record["role"] == role and record["head"] is not None]

    def of_head(self, head: int, source: Source, role: str = "") -> Record | None:
        """Return the record of a query head, which for keys and values is that of its group, h ÷ (H/G) rounded down."""
        if source == "layer":
            return self.layer
        if (source, role) not in self._by_head:
            self._by_head[source, role] = {record["head"]: record for record in self.records(source, role)}
        total, groups = self.layer["shape"][:2]
        return self._by_head[source, role].get(head * groups // total if role in SHARED else head)


def plain_reading(value: Any, detail: str = "", **facts: Any) -> Reading:
    """Return the reading of a number that is what it is.

    >>> plain_reading("inf").mark, plain_reading(0.5).text
    ('inf', '0.5')
    """
    known = float(value)  # infinities are strings in JSON, which float reads
    text, finite = three_digits(known), math.isfinite(known)
    return Reading(known, text, detail, "" if finite else text, "" if finite else NOT_FINITE, facts)


def weight_reader(state: str, name: str) -> Read:
    """Read a number of the spectrum of a weight, `"trained"`, `"effective"` or `"scaled"`, or of a product."""

    def read(weight: Record, layer: Record) -> Reading | None:
        spectrum = weight[state] if state == "effective" else weight.get(state)
        if spectrum is None:
            return None
        if spectrum[name] is not None:
            return plain_reading(spectrum[name], _sharing(weight))
        ends = f"σ_min = {three_digits(spectrum['sigma_min'])}, σ_max = {three_digits(spectrum['sigma_max'])}"
        return Reading(None, DEFICIENT, f"{ends} {_sharing(weight)}".strip(), BELOW_RANK, DEFICIENT)

    return read


def training_reader(name: str) -> Read:
    """Read a number of what training does to a weight: of its gradient, or of its change since the last record."""
    return lambda weight, _: None if weight.get(name) is None else plain_reading(weight[name], _sharing(weight))


def _sharing(weight: Record) -> str:
    return f"(key/value head {weight['head']})" if weight.get("role") in SHARED else ""


def attention_reader(name: str) -> Read:
    """Read a number of how a head attends."""

    def read(head: Record, layer: Record) -> Reading | None:
        if head.get(name) is not None:
            return plain_reading(head[name])
        return Reading(None, UNMEASURED, layer.get("note") or "no softmax over tokens", status=UNMEASURED)

    return read


def layer_reader(name: str, detail: str) -> Read:
    """Read a number of a layer as a whole."""
    return lambda layer, _: None if layer.get(name) is None else plain_reading(layer[name], detail)


def similarity_of(layer: Record, _: Record) -> Reading | None:
    """Read how alike the tokens of a layer are."""
    rank = layer.get("stable_rank")
    if layer.get("cosine") is None:
        return None
    return plain_reading(layer["cosine"], f"of the layer’s tokens; stable rank {three_digits(rank)}", stable_rank=rank)


def condition_reading(found: Record, detail: str = "") -> Reading:
    """Return κ as `ConditionNumber` writes it: ≥ where it is only bounded from below, the rank where that is too low.

    >>> condition_reading({"value": 3e13, "status": "unresolved"}).text
    '≥ 3e+13 (unresolved)'
    """
    value, status, sign = found["value"], found["status"], SIGNS.get(found["status"], "")
    if value is None:
        return Reading(None, f"σ_max {three_digits(found['sigma_max'])} ({status})", detail, status=status)
    ranks = {name: found.get(name) for name in ("rank", "structural_rank")}
    text = f"{sign} {three_digits(value)}".strip()
    if status == DEFICIENT:
        text += f" (rank {ranks['rank']} of {ranks['structural_rank']})"
    elif status != "ok":
        text += f" ({status})"
    return Reading(float(value), text, detail, BELOW_RANK if status == DEFICIENT else sign, status, ranks)


def jacobian_condition(jacobian: Record, _: Record) -> Reading:
    """Read κ of a head's Jacobian, blocks side by side."""
    return condition_reading(jacobian["condition"], _measured(jacobian))


def equilibrated_condition(jacobian: Record, _: Record) -> Reading | None:
    """Read κ_eq of a head's Jacobian, each block divided by its norm."""
    found = jacobian["condition"].get("equilibrated")
    norms = jacobian["condition"].get("block_norms") or {}
    said = ", ".join(f"‖J_{role[0].upper()}‖ = {three_digits(norm)}" for role, norm in norms.items())
    return None if found is None else condition_reading(found, f"{_measured(jacobian)}; {said}")


def block_norm_reader(role: str) -> Read:
    """Read the spectral norm of one block of a head's Jacobian."""

    def read(jacobian: Record, _: Record) -> Reading | None:
        norm = (jacobian["condition"].get("block_norms") or {}).get(role)
        return None if norm is None else plain_reading(norm, _measured(jacobian))

    return read


def _measured(jacobian: Record) -> str:
    method = jacobian["condition"].get("method")
    return f"{jacobian.get('rows')} of {jacobian.get('total_rows')} query rows, method: {method}"


def jacobian_sigma_reader(name: str) -> Read:
    """Read an end of the spectrum of a head's Jacobian."""

    def read(jacobian: Record, _: Record) -> Reading:
        value = jacobian["condition"][name]
        if value is None:
            return Reading(None, UNMEASURED, "σ_max only", status=UNMEASURED)
        return plain_reading(value, _measured(jacobian))

    return read


def vertical_condition(jacobian: Record, _: Record) -> Reading | None:
    """Read κ of the blocks stacked vertically, which the papers' bound is about."""
    bound = jacobian.get("bound")
    if not bound or bound.get("vertical") is None:
        return None
    rank = {None: "", True: "full rank", False: "not of full rank, which the bound assumes"}[bound.get("full_rank")]
    return condition_reading(bound["vertical"], rank)


def bound_of(jacobian: Record, _: Record) -> Reading | None:
    """Read the papers' bound on κ of the vertical Jacobian, with its parts."""
    bound = jacobian.get("bound")
    if not bound:
        return None
    names = {"κ(X)": "tokens", "κ(P)": "probabilities", "κ(Λ)": "softmax"}
    parts = ", ".join(f"{name} = {three_digits(bound.get(part))}" for name, part in names.items())
    if bound["value"] is None:
        return Reading(None, "unresolved", parts, status="unresolved")
    return plain_reading(bound["value"], parts)


def ratio_of(jacobian: Record, _: Record) -> Reading | None:
    """Read how much of the bound a measured κ takes."""
    bound = jacobian.get("bound")
    if not bound:
        return None
    if jacobian.get("ratio") is None:
        return Reading(None, UNMEASURED, "κ or the bound is unresolved", status=UNMEASURED)
    vertical = bound.get("vertical")
    found = plain_reading(jacobian["ratio"], "" if vertical else "blocks side by side: a reference, not a bound")
    least = condition_reading(vertical or jacobian["condition"]).mark == "≥"  # then so is the ratio
    return replace(found, text=f"≥ {found.text}", mark="≥") if least else found
