"""Hold what the library says of a strange model to the oracle: every attention is right, or refused with a reason."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

import wellcond as wc
from tests.attention.strange import oracle
from tests.attention.strange.cases import Case
from tests.attention.strange.claims import QKV, Attention, Match, Wrong, attentions, match
from tests.attention.strange.told import Told
from wellcond.attention.layers import AttentionLayers, Unclaimed
from wellcond.errors import NoAttentionError

CLOSE = 1e-6


@dataclass(frozen=True)
class Outcome:
    """What became of one attention: `"verified"`, `"refused"` or `"unclaimed"`, and why."""

    attention: Attention
    standing: str
    reason: str = ""


def layers_of(model: nn.Module, batch: Any) -> AttentionLayers:
    """What is found; where there is nothing, what the error says of each class counts as said of its modules."""
    try:
        return wc.attention_layers(model, batch)
    except NoAttentionError as error:
        said = _sentence(f"{error}")
        alike = said.partition("Looked alike: ")[2]
        modules = [(name, type(module).__name__) for name, module in model.named_modules()]
        return AttentionLayers((), [Unclaimed(name, cls, said) for name, cls in modules if f"({cls}): " in alike])


def matches(model: nn.Module, layers: Any) -> list[Match]:
    """The attention of each verified layer; raise `Wrong` where one is about none, or two are about one head."""
    among = attentions(model)
    found = [match(model, layer, among) for layer in layers if layer.standing == "verified"]
    heads = [head for one in found for head in _heads(one)]
    if len(set(heads)) < len(heads):
        raise Wrong(f"two layers are about one head: {heads}")
    return found


def _heads(found: Match) -> list[tuple[str, int, int]]:
    return [(found.attention.path, found.attention.site, head) for head in found.query]


def outcomes(model: nn.Module, batch: Any) -> list[Outcome]:
    """What became of each attention of a model; raise `Wrong` where a view is wrong or an attention is passed over."""
    layers = layers_of(model, batch)
    if unknown := {layer.standing for layer in layers} - {"verified", "refused"}:
        raise Wrong(f"a pass was made and a layer is {unknown}")
    right = {head for found in matches(model, layers) for head in _heads(found)}
    result = []
    for attention in attentions(model):
        if all((attention.path, attention.site, head) in right for head in range(len(attention.truth.query))):
            result.append(Outcome(attention, "verified"))
            continue
        refused = [layer.reason for layer in layers if layer.standing == "refused" and _about(layer.name, attention)]
        left = [item.reason for item in layers.unclaimed if _about(item.name, attention)]
        if not refused and not left:
            raise Wrong(f"nothing is said of attention {attention.site} of '{attention.path}'")
        result.append(Outcome(attention, "refused" if refused else "unclaimed", _sentence((refused or left)[0])))
    return result


def _about(name: str, attention: Attention) -> bool:
    name = name.partition("#")[0]
    return name == attention.path or name.startswith(attention.path + ".") or not name or not attention.path


def _sentence(reason: str) -> str:
    if len(reason.split()) < 3:
        raise Wrong(f"no sentence: {reason!r}")
    return reason


def check_writing(model: nn.Module, batch: Any) -> None:
    """Noise in one head of one role through the view moves that head of that role, and no other."""
    layers = [layer for layer in layers_of(model, batch) if layer.standing == "verified"]
    for layer, found in zip(layers, matches(model, layers), strict=True):
        before = oracle.told_by(model, batch, found.attention)[0]
        for role in QKV:
            view = getattr(layer, role)
            weight = view.read()
            for head in range(len(weight)):
                changed = weight.clone()
                changed[head] += torch.randn_like(changed[head])
                view.write_(changed)
                after = oracle.told_by(model, batch, found.attention)[0]
                view.write_(weight)
                _check_moved(layer.name, role, getattr(found, role)[head], before, after)


def _check_moved(name: str, role: str, head: int, before: Told, after: Told) -> None:
    for other in QKV:
        letter = other[0]
        moved = (getattr(after, letter) != getattr(before, letter)).transpose(0, 1).flatten(1).any(1)
        expected = [head] if other == role else []
        if moved.nonzero().flatten().tolist() != expected:
            raise Wrong(
                f"'{name}': writing {role} head {head} moves {other} heads {moved.nonzero().flatten().tolist()}"
            )


def check_numbers(case: Case, model: nn.Module, batch: Any, *, generic: bool = True) -> list[str]:
    """Hold every number of a diagnosis to the oracle; return what verified layers have no number for.

    `generic` says that weights and tokens are in general position, so that κ(J) is known to the last digit.
    """
    layers = layers_of(model, batch)
    if not len(layers):
        return []
    found = wc.diagnose(model, batch, jacobian="exact", progress=False)
    return compare(case, model, batch, layers, found, CLOSE, generic=generic)


def check_bfloat16(case: Case, close: float) -> list[str]:
    """Hold the diagnosis of a model in bfloat16 to the oracle in float64, with the same weights and tokens."""
    model, batch = case.model().bfloat16(), tuple(x.bfloat16() for x in case.batch())
    layers = layers_of(model, batch)
    if not len(layers):
        return []
    found = wc.diagnose(model, batch, jacobian=False, progress=False)
    return compare(case, model.double(), tuple(x.double() for x in batch), layers, found, close, generic=False)


def check_scale(model: nn.Module, batch: Any) -> None:
    """Where logits are a number times the scores and a layer says a scale, it is that number."""
    layers = layers_of(model, batch)
    for layer, found in zip((x for x in layers if x.standing == "verified"), matches(model, layers), strict=True):
        told = oracle.told_by(model, batch, found.attention)[0]
        if layer.scale is None or told.q.shape[-1] != told.k.shape[-1]:
            continue
        scores = told.q @ told.k[:, list(found.attention.truth.groups)].mT
        if scores.shape != told.logits.shape:
            continue
        ratio = (told.logits / scores)[oracle.seen(told)]
        if torch.allclose(ratio, ratio[0].expand_as(ratio)) and not math.isclose(
            layer.scale, float(ratio[0]), rel_tol=CLOSE
        ):
            raise Wrong(f"'{layer.name}' has scale {layer.scale}, in truth {ratio[0]}")


def compare(
    case: Case, model: nn.Module, batch: Any, layers: Any, diagnosis: Any, close: float, *, generic: bool
) -> list[str]:
    """Hold a diagnosis to the oracle, relative differences up to `close` allowed; return what has no number."""
    records = {record.name: record for record in diagnosis.layers}
    if set(records) != {layer.name for layer in layers}:
        raise Wrong(f"a diagnosis of {sorted(records)}, but layers {[layer.name for layer in layers]}")
    for layer in layers:
        if layer.standing == "refused":
            _check_refused(records[layer.name])
    missing = []
    verified = [layer for layer in layers if layer.standing == "verified"]
    for layer, found in zip(verified, matches(model, layers), strict=True):
        problems = []
        for call, told in enumerate(oracle.told_by(model, batch, found.attention)):  # if twice, one is diagnosed
            try:
                missing += _check_record(case, records[layer.name], found, told, close)
                _check_jacobians(model, batch, records[layer.name], found, call, generic=generic)
                break
            except Wrong as error:
                problems.append(f"call {call}: {error}")
        else:
            raise Wrong(f"'{layer.name}': " + "; ".join(problems))
    return missing


def _check_refused(record: Any) -> None:
    if len(record.note.split()) < 3:
        raise Wrong(f"'{record.name}' is refused and the diagnosis does not say why: {record.note!r}")
    numbers = [x for head in record.heads for x in (head.entropy, head.participation, head.max_logit, head.own)]
    if record.jacobian or any(x is not None for x in numbers):
        raise Wrong(f"'{record.name}' is refused and the diagnosis has numbers of its attention")
    if not record.weights:
        raise Wrong(f"'{record.name}' is refused and has no spectra of its weights either")


def _check_record(case: Case, record: Any, found: Match, told: Told, close: float) -> list[str]:
    missing = [] if record.jacobian else ["jacobian"]
    if len(record.heads) != len(found.query):
        raise Wrong(f"{len(record.heads)} records of {len(found.query)} heads")
    for one in record.heads:
        true = found.query[one.head]
        expected = {"participation": oracle.participation(told, true)}
        expected |= {"entropy": oracle.entropy(told, true)} if case.distribution else {}
        expected |= {"max_logit": oracle.largest_logit(told, true)} if case.logits else {}
        for key in ("entropy", "participation", "max_logit"):
            value = getattr(one, key)
            if value is None:
                missing.append(key)
            elif key not in expected:
                raise Wrong(f"{key} {value} where there is none")
            elif not math.isclose(value, expected[key], rel_tol=close, abs_tol=close * 1e-3):
                raise Wrong(f"head {one.head}: {key} is {value}, in truth {expected[key]}")
    return missing


def _check_jacobians(model: nn.Module, batch: Any, record: Any, found: Match, call: int, *, generic: bool) -> None:
    """κ of the first sequence; where sequences are no longer told apart, of all together."""
    told = oracle.told_by(model, batch, found.attention)[call]
    for one in record.jacobian:
        every = len(told.out) > 1 and one.total_rows == len(told.out) * told.out.shape[2]
        values = oracle.singular_values(model, batch, found, one.head, call=call, sequence=None if every else 0)
        kappa, rank = oracle.condition(values)
        got = one.condition
        if not math.isclose(got.sigma_max, float(values[0]), rel_tol=CLOSE, abs_tol=1e-12):
            raise Wrong(f"head {one.head}: σ_max of J is {got.sigma_max}, in truth {values[0]}")
        if got.status != "ok":
            if generic:
                raise Wrong(f"head {one.head}: κ(J) is {got}, in truth {kappa} at rank {rank}")
            continue
        if got.structural_rank != rank:
            raise Wrong(f"head {one.head}: rank {got.structural_rank} of J, in truth {rank}")
        if not math.isclose(got.value, kappa, rel_tol=CLOSE):
            raise Wrong(f"head {one.head}: κ(J) is {got.value}, in truth {kappa}")
