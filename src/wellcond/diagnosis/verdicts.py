"""Judge the numbers of a layer by the verdicts of their quantities; the limits are those of `wc.Thresholds`."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import groupby
from typing import Protocol, TypeVar

from wellcond.diagnosis.quantities import QUANTITIES
from wellcond.diagnosis.quantity import Quantity, VerdictRule
from wellcond.diagnosis.readings import NOT_FINITE, PRODUCTS, ROLES, SYMBOLS, LayerView, Reading, Record, Source
from wellcond.diagnosis.records import Concern, LayerRecord
from wellcond.diagnosis.remedies import Remedy
from wellcond.propagation.thresholds import ConcernKind, Severity, Thresholds

ORDER: tuple[Source, ...] = (
    "layer",
    "heads",
    "products",
    "weights",
    "jacobian",
)  # in which what is equally grave is told


@dataclass(frozen=True)
class _Finding:
    """One number that is wrong, of one head or (None) of the layer; `excess` is larger for the worse of two heads."""

    head: int | None
    kind: ConcernKind
    rule: VerdictRule
    text: str
    excess: float
    roles: tuple[str, ...]


def judge(record: LayerRecord, limits: Thresholds | None = None) -> LayerRecord:
    """Return a record with its verdicts: of each head, of the layer, and as concerns, gravest first."""
    layer = asdict(record)
    found = sorted(_findings(layer, limits or Thresholds()), key=lambda finding: -finding.kind.severity.rank)
    heads = []
    for head in record.heads:
        mine = [finding for finding in found if finding.head == head.head]
        verdict, line = _words(layer, mine)
        code, severity = (mine[0].kind, mine[0].kind.severity) if mine else ("", None)
        heads.append(replace(head, verdict=verdict, code=code, severity=severity, remedy=line))
    own = [finding for finding in found if finding.head is None]
    return replace(
        record,
        heads=tuple(heads),
        verdict=_words(layer, own)[0],
        code=own[0].kind if own else "",
        severity=found[0].kind.severity if found else None,
        concerns=tuple(_concerns(layer, found)),
    )


def _findings(layer: Record, limits: Thresholds) -> Iterator[_Finding]:
    """Everything that is wrong, of the layer, then head by head."""
    view = LayerView(layer)
    places = {name: index for index, name in enumerate([*ORDER, "", *PRODUCTS, *SYMBOLS])}
    judged = [one for one in QUANTITIES if one.verdicts]
    judged.sort(key=lambda one: (places[one.source], places[one.role]))
    subjects = [(source, list(own)) for (source, _), own in groupby(judged, lambda one: (one.source, one.role))]
    for head in (None, *(record["head"] for record in layer["heads"])):
        for source, quantities in subjects:
            if (source == "layer") == (head is None):
                yield from _wrong(view, head, quantities, limits)


def _wrong(view: LayerView, head: int | None, quantities: Sequence[Quantity], limits: Thresholds) -> Iterator[_Finding]:
    """Judge the attention, a weight or the Jacobian of a head; what is not finite is nothing else."""
    found: dict[str, _Finding] = {}
    for quantity in quantities:
        record = view.of_head(head or 0, quantity.source, quantity.role)
        reading = None if record is None else quantity.read(record, view.layer)
        if reading is None:
            continue
        for rule in quantity.verdicts:
            excess = rule.excess(reading, limits)
            if excess is not None and rule.unless not in found:
                roles = PRODUCTS.get(quantity.role) or ((quantity.role,) if quantity.role else ROLES)
                text = _text(rule, quantity, reading)
                found.setdefault(rule.code, _Finding(head, ConcernKind(rule.code), rule, text, excess, roles))
    yield from [found[NOT_FINITE]] if NOT_FINITE in found else found.values()


def _text(rule: VerdictRule, quantity: Quantity, found: Reading) -> str:
    names = {"label": quantity.label, "symbol": SYMBOLS.get(quantity.role, ""), "value": found.value}
    return rule.text.format(**found.facts, **names, percent=100 * (found.value or 0.0))


class Judged(Protocol):
    """A concern, or the record of a layer."""

    @property
    def severity(self) -> Severity | None:
        """Severity of the gravest; None where nothing is wrong."""


J = TypeVar("J", bound=Judged)


def gravest_first(found: Sequence[J]) -> list[J]:
    """Sort by severity: alarms, warnings, notes, then what is right; each in the order given."""
    return sorted(found, key=lambda each: 0 if each.severity is None else -1 - each.severity.rank)


def by_kind(concerns: Sequence[Concern]) -> list[list[Concern]]:
    """Put concerns of one code together, codes in the order of their first."""
    groups: dict[str, list[Concern]] = {}
    for concern in concerns:
        groups.setdefault(concern.code, []).append(concern)
    return list(groups.values())


def common_remedy(concerns: Sequence[Concern]) -> str:
    """Return the code against the first concern, for all layers whose own differs in the layer's name alone."""
    first = concerns[0]
    one = f"layers={json.dumps(first.layer)}"
    alike = [c.layer for c in concerns if c.remedy == first.remedy.replace(one, f"layers={json.dumps(c.layer)}")]
    return first.remedy if len(alike) == 1 else first.remedy.replace(one, f"layers={json.dumps(alike)}")


def _words(layer: Record, found: Sequence[_Finding]) -> tuple[str, str]:
    """All that is wrong with a head, or a layer as a whole, and the code against the gravest of it."""
    advice = [finding.rule.remedy(layer, finding.roles) for finding in found]
    texts = [f"{finding.text}; {words}" for finding, (words, _) in zip(found, advice, strict=True)]
    return "; ".join(texts), advice[0][1] if advice else ""


def _concerns(layer: Record, found: Sequence[_Finding]) -> Iterator[Concern]:
    """One concern for all heads that have it, with the worst one's number."""
    groups: dict[tuple[ConcernKind, Remedy], list[_Finding]] = {}
    for finding in found:
        groups.setdefault((finding.kind, finding.rule.remedy), []).append(finding)
    for (kind, remedy), group in groups.items():
        worst = max(group, key=lambda finding: finding.excess)
        heads = tuple(dict.fromkeys(finding.head for finding in group if finding.head is not None))
        text = worst.text if len(heads) < 2 else f"{worst.text} in head {worst.head}, the worst"
        words, line = remedy(layer, tuple(dict.fromkeys(role for finding in group for role in finding.roles)))
        yield Concern(layer["name"], heads, kind, kind.severity, f"{text}; {words}", line)
