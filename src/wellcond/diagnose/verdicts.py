"""From numbers to words a person can act on; the thresholds are here and nowhere else."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from wellcond.diagnose.records import HeadRecord, JacobianRecord, LayerRecord, WeightRecord
from wellcond.jacobian.result import DEFICIENT
from wellcond.visible import visible

COLLAPSED_ENTROPY = 0.1  # ÷ log N: fewer than about N^0.1 keys get the weight
UNIFORM_ENTROPY = 0.999
COLLAPSED_COSINE = 0.95  # mean over pairs of tokens
SATURATED_LOGIT = 100.0  # e^-100 is nothing in any floating-point format
ILL_WEIGHT = 1e4
ILL_JACOBIAN = 1e8


@dataclass(frozen=True)
class Concern:
    """One thing that is wrong.

    Args:
        layer: name of the layer.
        head: its index; None for the whole layer.
        code: in a word.
        text: with the number, and what to do.
        severity: 3 (training will hardly work), 2 (it will suffer), 1 (worth knowing).
    """

    layer: str
    head: int | None
    code: str
    text: str
    severity: int

    def __str__(self) -> str:
        return f"{visible(self.layer)}{'' if self.head is None else f' head {self.head}'}: {self.text}"


def judge(record: LayerRecord) -> tuple[LayerRecord, list[Concern]]:
    """The same record with its verdicts, and the concerns they come from, gravest first."""
    weights = _by_head(record)
    jacobians = {jacobian.head: jacobian for jacobian in record.jacobian}
    concerns: list[Concern] = []
    heads = []
    for head in record.heads:
        found = [
            Concern(record.name, head.head, *what)
            for what in (*_attention(head), *_weights(weights[head.head]), *_jacobian(jacobians.get(head.head)))
        ]
        found.sort(key=lambda concern: -concern.severity)
        concerns += found
        heads.append(replace(head, verdict=_words(found), code=found[0].code if found else ""))
    own = [Concern(record.name, None, *what) for what in _tokens(record)]
    concerns = sorted(own + concerns, key=lambda concern: -concern.severity)
    return replace(record, heads=tuple(heads), verdict=_words(own), code=own[0].code if own else ""), concerns


def _words(concerns: Sequence[Concern]) -> str:
    return "; ".join(concern.text for concern in concerns)


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


What = tuple[str, str, int]


def _attention(head: HeadRecord) -> Iterator[What]:
    values = (head.entropy, head.max_logit)
    if any(value is not None and not math.isfinite(value) for value in values):
        yield "not finite", "attention is not finite; look for an overflow upstream, or lower the learning rate", 3
        return
    if head.entropy is not None and head.entropy < COLLAPSED_ENTROPY:
        yield (
            "entropy collapse",
            f"entropy collapse ({head.entropy:.2f}); lower the strength or the logit scale",
            3,
        )
    elif head.max_logit is not None and head.max_logit > SATURATED_LOGIT:
        text = f"logits up to {head.max_logit:.3g} saturate the softmax; lower the logit scale, or add a QK-norm"
        yield "saturated", text, 2
    if head.entropy is not None and head.entropy > UNIFORM_ENTROPY:
        text = "attends uniformly, so queries and keys hardly matter; a larger W_Q and W_K (conditioned) would help"
        yield "uniform", text, 1


def _weights(weights: Sequence[WeightRecord]) -> Iterator[What]:
    for weight in weights:
        name = f"W_{weight.role[0].upper()}"
        if not math.isfinite(weight.raw.sigma_max):
            yield "not finite", f"{name} is not finite; go back to an earlier checkpoint", 3
        elif weight.raw.condition is None:
            yield "rank deficient", f"{name} is rank deficient; initialise it anew, or condition it (polar)", 2
        elif weight.raw.condition > ILL_WEIGHT:
            yield "ill conditioned", f"κ({name}) is {weight.raw.condition:.1e}; condition it (polar, or shift)", 2


def _jacobian(record: JacobianRecord | None) -> Iterator[What]:
    if record is None:
        return
    kappa = record.condition
    if kappa.status == DEFICIENT:
        text = f"the Jacobian has rank {kappa.rank} of {kappa.structural_rank}: some directions of the weights are dead"
        yield "rank deficient", text, 2
    elif kappa.value is not None and kappa.value > ILL_JACOBIAN:
        text = f"κ(J) is {kappa.value:.1e}; a conditioned initialisation, or a shift of about 1, lowers it"
        yield "ill conditioned", text, 1


def _tokens(record: LayerRecord) -> Iterator[What]:
    if record.cosine is not None and record.cosine > COLLAPSED_COSINE:
        text = f"rank collapse: tokens are nearly equal (mean cosine {record.cosine:.2f}, stable rank "
        text += f"{record.stable_rank:.1f}); weaken attention against the skip, or start from centring"
        yield "rank collapse", text, 3
