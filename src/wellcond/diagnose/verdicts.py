"""From the numbers of a layer to concerns that a person can act on; the limits are those of `wc.Thresholds`."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Protocol, TypeVar

from wellcond.diagnose.records import Concern, HeadRecord, JacobianRecord, LayerRecord, WeightRecord
from wellcond.diagnose.remedies import remedy
from wellcond.jacobian.result import DEFICIENT
from wellcond.propagation.verdict import SEVERITIES, Severity, Thresholds


@dataclass(frozen=True)
class _Finding:
    """One number that is wrong, of one head or (None) of the layer; `excess` is larger for the worse of two heads."""

    head: int | None
    code: str
    text: str
    excess: float = 0.0
    roles: tuple[str, ...] = ("query", "key", "value")

    @property
    def severity(self) -> Severity:
        return SEVERITIES[self.code]


def judge(record: LayerRecord, limits: Thresholds | None = None) -> LayerRecord:
    """The same record with its verdicts: of each head, of the layer, and as concerns, gravest first."""
    limits = limits or Thresholds()
    weights = _by_head(record)
    jacobians = {jacobian.head: jacobian for jacobian in record.jacobian}
    found = list(_tokens(record, limits))
    for head in record.heads:
        found += _attention(head, limits)
        found += _weights(head.head, weights[head.head], limits)
        found += _jacobian(jacobians.get(head.head), limits)
    found.sort(key=lambda finding: -finding.severity.rank)
    heads = []
    for head in record.heads:
        mine = [finding for finding in found if finding.head == head.head]
        verdict, line = _words(record, mine)
        code, severity = (mine[0].code, mine[0].severity) if mine else ("", None)
        heads.append(replace(head, verdict=verdict, code=code, severity=severity, remedy=line))
    own = [finding for finding in found if finding.head is None]
    return replace(
        record,
        heads=tuple(heads),
        verdict=_words(record, own)[0],
        code=own[0].code if own else "",
        severity=found[0].severity if found else None,
        concerns=tuple(_concerns(record, found)),
    )


class Judged(Protocol):
    """A concern, or the record of a layer."""

    @property
    def severity(self) -> Severity | None:
        """How grave it is; None where nothing is wrong."""


J = TypeVar("J", bound=Judged)


def gravest_first(found: Sequence[J]) -> list[J]:
    """Alarms, then warnings, then notes, then what is right; each in the order given."""
    return sorted(found, key=lambda each: 0 if each.severity is None else -1 - each.severity.rank)


def by_kind(concerns: Sequence[Concern]) -> list[list[Concern]]:
    """Concerns of one code together, codes in the order of their first."""
    groups: dict[str, list[Concern]] = {}
    for concern in concerns:
        groups.setdefault(concern.code, []).append(concern)
    return list(groups.values())


def common_remedy(concerns: Sequence[Concern]) -> str:
    """The code against the first of several concerns, for all layers where it differs in the layer's name alone."""
    first = concerns[0]
    one = f"layers={json.dumps(first.layer)}"
    alike = [c.layer for c in concerns if c.remedy == first.remedy.replace(one, f"layers={json.dumps(c.layer)}")]
    return first.remedy if len(alike) == 1 else first.remedy.replace(one, f"layers={json.dumps(alike)}")


def _words(record: LayerRecord, found: Sequence[_Finding]) -> tuple[str, str]:
    """All that is wrong with a head, or a layer as a whole, and the code against the gravest of it."""
    advice = [remedy(finding.code, record, finding.roles) for finding in found]
    texts = [f"{finding.text}; {words}" for finding, (words, _) in zip(found, advice, strict=True)]
    return "; ".join(texts), advice[0][1] if advice else ""


def _concerns(record: LayerRecord, found: Sequence[_Finding]) -> Iterator[Concern]:
    """One concern for all heads that have it, with the worst one's number."""
    groups: dict[tuple[str, bool], list[_Finding]] = {}
    for finding in found:
        groups.setdefault((finding.code, bool(finding.roles)), []).append(finding)
    for (code, _), group in groups.items():
        worst = max(group, key=lambda finding: finding.excess)
        heads = tuple(dict.fromkeys(finding.head for finding in group if finding.head is not None))
        text = worst.text if len(heads) < 2 else f"{worst.text} in head {worst.head}, the worst"
        roles = tuple(dict.fromkeys(role for finding in group for role in finding.roles))
        words, line = remedy(code, record, roles)
        yield Concern(record.name, heads, code, SEVERITIES[code], f"{text}; {words}", line)


def _by_head(record: LayerRecord) -> dict[int, list[WeightRecord]]:
    """The weights of each query head; a grouped-query head has its group's."""
    queries = record.shape[0]
    found: dict[int, list[WeightRecord]] = {head: [] for head in range(queries)}
    counts = {role: sum(w.role == role and w.head is not None for w in record.weights) for role in _roles(record)}
    for weight in record.weights:
        if weight.head is not None:
            shared = max(1, queries // counts[weight.role])
            for head in range(weight.head * shared, (weight.head + 1) * shared):
                found[head].append(weight)
    return found


def _roles(record: LayerRecord) -> set[str]:
    return {weight.role for weight in record.weights}


def _attention(head: HeadRecord, limits: Thresholds) -> Iterator[_Finding]:
    entropy, logit, own = head.entropy, head.max_logit, head.own
    if any(value is not None and not math.isfinite(value) for value in (entropy, logit)):
        yield _Finding(head.head, "not finite", "attention is not finite", roles=())
        return
    if entropy is not None and limits.entropy_collapsed(entropy):
        yield _Finding(head.head, "entropy collapse", f"entropy collapse ({entropy:.2f})", -entropy)
    elif logit is not None and logit > limits.logit:
        yield _Finding(head.head, "saturated", f"logits up to {logit:.3g} saturate the softmax", logit)
    if own is not None and limits.self_attending(own):
        text = f"tokens attend to themselves ({100 * own:.0f} % of the weight)"
        yield _Finding(head.head, "self-attending", text, own)
    if entropy is not None and entropy > limits.uniform:
        yield _Finding(head.head, "uniform", "attends uniformly, so queries and keys hardly matter", entropy)


def _weights(head: int, weights: Sequence[WeightRecord], limits: Thresholds) -> Iterator[_Finding]:
    for weight in weights:
        name, kappa = f"W_{weight.role[0].upper()}", weight.raw.condition
        if not math.isfinite(weight.raw.sigma_max):
            yield _Finding(head, "not finite", f"{name} is not finite", roles=(weight.role,))
        elif kappa is None:
            yield _Finding(head, "rank deficient", f"{name} is rank deficient", roles=(weight.role,))
        elif kappa > limits.weight:
            yield _Finding(head, "ill conditioned", f"κ({name}) is {kappa:.1e}", kappa, (weight.role,))


def _jacobian(record: JacobianRecord | None, limits: Thresholds) -> Iterator[_Finding]:
    if record is None:
        return
    kappa = record.condition
    if kappa.status == DEFICIENT:
        text = f"the Jacobian has rank {kappa.rank} of {kappa.structural_rank}: some directions of the weights are dead"
        yield _Finding(record.head, "rank-deficient Jacobian", text, -(kappa.rank or 0))
    elif kappa.value is not None and kappa.value > limits.jacobian:
        yield _Finding(record.head, "ill-conditioned Jacobian", f"κ(J) is {kappa.value:.1e}", kappa.value)


def _tokens(record: LayerRecord, limits: Thresholds) -> Iterator[_Finding]:
    if record.cosine is not None and limits.rank_collapsed(record.cosine):
        text = f"rank collapse: tokens are nearly equal (mean cosine {record.cosine:.2f}, stable rank "
        yield _Finding(None, "rank collapse", f"{text}{record.stable_rank:.1f})")
