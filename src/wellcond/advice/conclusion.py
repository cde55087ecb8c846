"""Conclude: rank every candidate with its fate, and say what to do in a sentence that the evidence carries."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from wellcond.advice.candidates import OWN, Candidate, Refused
from wellcond.advice.model_state import ModelState
from wellcond.advice.prediction import Prediction
from wellcond.advice.probe import ProbeResult
from wellcond.advice.recommendation import Advice
from wellcond.advice.verdict import Difference, difference, differences, winner


def conclude(
    state: ModelState,
    candidates: Sequence[Candidate],
    refused: Sequence[Refused],
    predictions: Mapping[str, Prediction],
    probe: ProbeResult,
    inputs: Any,
) -> tuple[tuple[Advice, ...], str]:
    """Return all candidates, best first, and a summary."""
    last = probe.last
    control = None if probe.control is None else probe.control.name
    found = [] if last is None else differences(last, OWN, last.ranked())
    best = winner(found, control) or _mended(state, [one for one in found if one.candidate != control])
    if best is None and last is None and state.broken and not state.unknown:
        best = candidates[1].name  # the model's own weights, brought into line
    by_name = {one.candidate: one for one in found}
    refusals = {one.candidate.name: one for one in refused}
    every = {one.name: one for one in [*candidates, *(one.candidate for one in refused)]}
    if probe.control is not None:
        every[probe.control.name] = probe.control
    advice = [
        _advice(one, best, refusals, predictions.get(name), probe, by_name.get(name), inputs)
        for name, one in every.items()
    ]
    order = ["advised", "keep", "finalist", "probed", "failed", "not tried", "ruled out", "not applicable"]
    ranked = sorted(advice, key=lambda one: (order.index(one.outcome), -(one.steps or 0), _or_last(one.loss)))
    return tuple(ranked), _summary(state, probe, best, control, by_name)


def _advice(
    one: Candidate,
    best: str | None,
    refusals: Mapping[str, Refused],
    prediction: Prediction | None,
    probe: ProbeResult,
    found: Difference | None,
    inputs: Any,
) -> Advice:
    rungs = [*probe.rungs, *([probe.last] if probe.last else [])]
    rung = next((rung for rung in reversed(rungs) if one.name in rung.losses and rung.seeds), None)
    failed = next((rung.failed[one.name] for rung in rungs if one.name in rung.failed), None)
    loss = None if rung is None else rung.mean(one.name)
    finalist = probe.last is not None and rung is probe.last
    if one.name in refusals:
        outcome, reason = refusals[one.name].outcome, refusals[one.name].reason
    elif one.name == best:
        outcome, reason = "advised", _shown(found) or "sets what is out of line anew; it was not probed"
    elif one.is_own:
        outcome, reason = ("keep" if best is None else "finalist"), "the model as it is"
    elif failed is not None:
        outcome, reason = "failed", failed
    elif rung is None:
        outcome, reason = "not tried", probe.note or ("there was no time" if probe.seconds else "nothing was probed")
    elif finalist:
        outcome, reason = "finalist", _shown(found)
    else:
        outcome, reason = "probed", f"others had a lower loss after {rung.steps} steps"
    return Advice(one, outcome, reason, prediction, loss, None if rung is None else rung.steps, found, inputs)


def _mended(state: ModelState, found: Sequence[Difference]) -> str | None:
    """Where something is out of line, the finalist that sets it anew with the lowest loss, unless yours is better.

    That a short training does not show the harm is no reason to begin with it.
    """
    able = [one for one in found if one.interval is not None and one.interval[0] <= 0 and math.isfinite(one.mean)]
    return min(able, key=lambda one: one.mean).candidate if state.broken and able else None


def _shown(found: Difference | None) -> str:
    if found is None:
        return ""
    if found.better:
        return "its loss is lower than with the model's own weights"
    return "no difference to the model's own weights is shown" if found.p_holm is not None else "it diverged"


def _or_last(loss: float | None) -> float:
    return float("inf") if loss is None or loss != loss else loss


def _summary(
    state: ModelState, probe: ProbeResult, best: str | None, control: str | None, found: Mapping[str, Difference]
) -> str:
    """What to do, and what the evidence is."""
    last = probe.last
    if last is None and best is not None:
        why = "the probe had too little time to say" if probe.seconds else "nothing was probed to say"
        return f"Begin with {best}, which mends what is out of line; {why} what that is worth."
    if last is None:
        if not probe.seconds:
            return "Nothing was probed, so nothing is advised; the predictions are below."
        if probe.diverged:
            return "Nothing is advised: every candidate diverged, your own weights too."
        return "Nothing is advised: the probe had too little time to show a difference."
    seeds = f"{len(last.seeds)} seeds of {last.steps} steps"
    if best is None:
        mended = " What is out of line did no harm in them." if state.broken else ""
        return f"Keep your weights: no candidate was shown to have a lower loss after {seeds}.{mended}"
    if not found[best].better:
        return f"Begin with {best}, which mends what is out of line; {seeds} did not show that this lowers the loss."
    text = f"Begin with {best}: its loss after {seeds} is {_lower(found[best])}."
    if control is None or control not in found or best == control:
        return text
    beyond = difference(last, best, control)
    same = beyond.interval is None or beyond.interval[1] >= 0
    explained = same and found[control].better
    if explained:
        return f"{text} Its scale explains it: {control} do as well."
    return text if same else f"{text} More than its scale: {control} do worse."


def _lower(found: Difference) -> str:
    if found.interval is None:
        return "finite, and yours is not"
    return f"lower than with yours by {-found.mean:.2g} [{-found.interval[1]:.2g}, {-found.interval[0]:.2g}]"
