"""Every quantity of a diagnosis, head by head: what is coloured on which scale, what is written, what hovering adds."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from wellcond.jacobian.result import DEFICIENT, ConditionNumber
from wellcond.report.scales import GAIN, GRADIENT, KAPPA, KAPPA_JACOBIAN, LOGIT, RATIO, SHARE, Scale, finite

SYMBOLS = {"query": "W_Q", "key": "W_K", "value": "W_V", "output": "W_O"}
SHARED = ("key", "value")  # roles whose heads several query heads share in grouped-query attention
BELOW_RANK = "↓"  # marks a rank deficient κ where there is no room for words
UNMEASURED = "not measured"


@dataclass(frozen=True)
class _Cell:
    """One quantity of one head: what is coloured (None leaves a gap), what is written, and what hovering adds."""

    value: float | None
    text: str
    detail: str = ""
    mark: str = ""


@dataclass(frozen=True)
class _Head:
    """The records of one query head; a role that was not measured is missing from `weights`."""

    layer: dict[str, Any]
    weights: dict[str, dict[str, Any]]
    attention: dict[str, Any] | None
    jacobian: dict[str, Any] | None

    @property
    def note(self) -> str:
        return str(self.layer["note"])


@dataclass(frozen=True)
class _Quantity:
    """One heat map and one column of the table.

    Args:
        group: of the menu.
        label: its symbol or name.
        read: from a head's records.
        scale: of its colours.
        column: whether the table has it without being asked.
        overview: whether the page opens on it, and the picture shows it.
        meaning: of the ends of the scale, in words.
    """

    group: str
    label: str
    read: Callable[[_Head], _Cell | None]
    scale: Scale
    column: bool = True
    overview: bool = False
    meaning: str = ""


def quantity_maps(layers: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Layer × head of every quantity that was measured anywhere."""
    heads = [list(_heads(layer)) for layer in layers]
    maps = []
    for quantity in _quantities():
        read = [[quantity.read(head) for head in row] for row in heads]
        if not any(cell and cell.text != UNMEASURED for row in read for cell in row):
            continue
        cells = [
            [cell or _Cell(None, UNMEASURED, head.note) for cell, head in zip(row, own, strict=True)]
            for row, own in zip(read, heads, strict=True)
        ]
        shown = {name: getattr(quantity, name) for name in ("group", "label", "column", "overview", "meaning")}
        values = [cell.value for row in cells for cell in row if cell.value is not None]
        shown |= {
            "log": quantity.scale.log,
            "diverging": quantity.scale.diverging,
            "limits": quantity.scale.limits(values),
        }
        for field in ("value", "text", "detail", "mark"):
            shown[f"{field}s"] = [[getattr(cell, field) for cell in row] for row in cells]
        maps.append(shown)
    return maps


def _quantities() -> Iterator[_Quantity]:
    """What matters first: how heads attend and how alike their tokens are, then how well conditioned they are."""
    roles = list(SYMBOLS.items())
    attention = "Attention on this batch"
    entropy = "0: a query sees one key only; 1: all keys alike"
    yield _Quantity(attention, "entropy", _attention("entropy"), SHARE, overview=True, meaning=entropy)
    sharp = "near 0: many keys share the weight; 1: one key has it all"
    yield _Quantity(attention, "sharpness Σ p²", _attention("participation"), SHARE, overview=True, meaning=sharp)
    alike = "mean cosine of the layer’s tokens; 0: unrelated; 1: all alike"
    yield _Quantity(attention, "similarity of tokens", _similarity, SHARE, overview=True, meaning=alike)
    yield _Quantity(attention, "max |logit|", _attention("max_logit"), LOGIT)
    jacobian = "Jacobian of the head"
    yield _Quantity(jacobian, "κ(J)", _jacobian_condition, KAPPA_JACOBIAN)
    yield _Quantity(jacobian, "σ_max(J)", _jacobian_sigma("sigma_max"), GAIN, column=False)
    yield _Quantity(jacobian, "σ_min(J)", _jacobian_sigma("sigma_min"), GAIN, column=False)
    yield from (_Quantity("Weights: κ", f"κ({name})", _weight(role, "raw", "condition"), KAPPA) for role, name in roles)
    yield from (_Quantity("Gradient norms", f"‖∇{name}‖", _gradient(role), GRADIENT) for role, name in roles)
    for bound in ("max", "min"):
        for role, name in roles:
            read = _weight(role, "raw", f"sigma_{bound}")
            yield _Quantity(f"Weights: σ_{bound}", f"σ_{bound}({name})", read, GAIN, column=False)
    for state, group in (("effective", "With the gains of the norms"), ("stored", "Stored, before conditioning")):
        for role, name in roles:
            yield _Quantity(group, f"κ({name}) {state}", _weight(role, state, "condition"), KAPPA, column=False)
    papers = "The papers’ bound"
    yield _Quantity(papers, "κ(J) stacked vertically", _vertical_condition, KAPPA_JACOBIAN, column=False)
    yield _Quantity(papers, "papers’ bound", _bound, KAPPA_JACOBIAN, column=False)
    within = "below 1: less than the bound allows"
    yield _Quantity(papers, "measured ÷ bound", _ratio, RATIO, column=False, meaning=within)


def _weight(role: str, state: str, field: str) -> Callable[[_Head], _Cell | None]:
    def read(head: _Head) -> _Cell | None:
        spectrum = head.weights.get(role, {}).get(state)
        if spectrum is None:
            return None
        detail = _sharing(head, role)
        if spectrum[field] is None:
            reason = f"σ_min = {number(spectrum['sigma_min'])}, σ_max = {number(spectrum['sigma_max'])}"
            return _Cell(None, "rank deficient", f"{reason} {detail}".strip(), BELOW_RANK)
        return _cell(spectrum[field], detail)

    return read


def _gradient(role: str) -> Callable[[_Head], _Cell | None]:
    def read(head: _Head) -> _Cell | None:
        value = head.weights.get(role, {}).get("gradient")
        return None if value is None else _cell(value, _sharing(head, role))

    return read


def _sharing(head: _Head, role: str) -> str:
    return f"(key/value head {head.weights[role]['head']})" if role in SHARED else ""


def _attention(field: str) -> Callable[[_Head], _Cell | None]:
    def read(head: _Head) -> _Cell | None:
        if head.attention is None:
            return None
        value = head.attention[field]
        return _Cell(None, UNMEASURED, head.note or "no softmax over tokens") if value is None else _cell(value)

    return read


def _similarity(head: _Head) -> _Cell | None:
    cosine, rank = head.layer["cosine"], head.layer["stable_rank"]
    return None if cosine is None else _cell(cosine, f"of the layer’s tokens; stable rank {number(rank)}")


def _cell(value: float, detail: str = "") -> _Cell:
    return _Cell(finite(value), number(value), detail, "" if finite(value) is not None else number(value))


def _condition(fields: dict[str, Any], detail: str) -> _Cell:
    """κ as `ConditionNumber` writes it: ≥ where it is only bounded from below, the rank where that is too low."""
    condition = ConditionNumber(**fields)
    mark = BELOW_RANK if condition.status == DEFICIENT else condition.sign
    return _Cell(finite(condition.value), str(condition), detail, mark)


def _measured(record: dict[str, Any]) -> str:
    return f"{record['rows']} of {record['total_rows']} query rows, method: {record['condition']['method']}"


def _jacobian_condition(head: _Head) -> _Cell | None:
    return None if head.jacobian is None else _condition(head.jacobian["condition"], _measured(head.jacobian))


def _jacobian_sigma(field: str) -> Callable[[_Head], _Cell | None]:
    def read(head: _Head) -> _Cell | None:
        if head.jacobian is None:
            return None
        value = head.jacobian["condition"][field]
        return _Cell(None, UNMEASURED, "σ_max only") if value is None else _cell(value, _measured(head.jacobian))

    return read


def _vertical_condition(head: _Head) -> _Cell | None:
    bound = head.jacobian and head.jacobian["bound"]
    if not bound or bound["vertical"] is None:
        return None
    rank = {None: "", True: "full rank", False: "not of full rank, which the bound assumes"}[bound["full_rank"]]
    return _condition(bound["vertical"], rank)


def _bound(head: _Head) -> _Cell | None:
    bound = head.jacobian and head.jacobian["bound"]
    if not bound:
        return None
    names = {"κ(X)": "tokens", "κ(P)": "probabilities", "κ(Λ)": "softmax"}
    parts = ", ".join(f"{name} = {number(bound[field])}" for name, field in names.items())
    return _Cell(None, "unresolved", parts) if bound["value"] is None else _cell(bound["value"], parts)


def _ratio(head: _Head) -> _Cell | None:
    if head.jacobian is None or head.jacobian["bound"] is None:
        return None
    if head.jacobian["ratio"] is None:
        return _Cell(None, UNMEASURED, "κ or the bound is unresolved")
    vertical = head.jacobian["bound"]["vertical"]
    least = _condition(vertical or head.jacobian["condition"], "").mark == "≥"  # then so is the ratio
    cell = _cell(head.jacobian["ratio"], "" if vertical else "blocks side by side: a reference, not a bound")
    return replace(cell, text=f"≥ {cell.text}", mark="≥") if least else cell


def _heads(layer: dict[str, Any]) -> Iterator[_Head]:
    """The layer's query heads, each with the key/value head that it reads: h ÷ (H/G), rounded down."""
    total, groups = layer["shape"][:2]
    weights = {(record["role"], record["head"]): record for record in layer["weights"]}
    attention = {record["head"]: record for record in layer["heads"]}
    jacobian = {record["head"]: record for record in layer["jacobian"]}
    for head in range(total):
        places = {role: (role, head * groups // total if role in SHARED else head) for role in SYMBOLS}
        own = {role: weights[place] for role, place in places.items() if place in weights}
        yield _Head(layer, own, attention.get(head), jacobian.get(head))


def number(value: float | None) -> str:
    """Three digits, for people."""
    return "–" if value is None else f"{float(value):.3g}"
