"""The five stages of a recommendation: measure, predict, rule out, probe, conclude."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch import nn
from torch.optim import Optimizer

from wellcond.advice.candidates import Candidate, candidates_for
from wellcond.advice.checks import check_model, check_training
from wellcond.advice.conclusion import conclude
from wellcond.advice.exclusion import rule_out
from wellcond.advice.memory import probe_memory
from wellcond.advice.model_state import measure_state
from wellcond.advice.prediction import predict
from wellcond.advice.probe import Probe, ProbeResult
from wellcond.advice.recommendation import Recommendation
from wellcond.advice.trial import TrialSettings, copied, generators_kept
from wellcond.advice.trial_records import TrialRecords, check_folder, fingerprint
from wellcond.attention.find import from_structure
from wellcond.attention.layers import AttentionLayers
from wellcond.errors import BatchError, NoAttentionError, WellcondError
from wellcond.inputs.objective import moved
from wellcond.scale.measure_scales import measure_scales
from wellcond.scale.views_on_batch import views_on_batch


def advise(
    root: nn.Module, settings: TrialSettings, loss: str, seconds: float, schemes: Sequence[str] | None, out: Any
) -> Recommendation:
    """Say which initialisation a model should begin with, given how it is trained; `wc.recommend` is the door.

    Args:
        root: the model, without wrappers; it stays as it is, and so do the generators.
        settings: the loss, the optimizer and the batches.
        loss: the loss in words, for the record.
        seconds: that the probe may take; 0 for none.
        schemes: names of those to consider; None for all that apply.
        out: a folder that keeps every trial; None to keep nothing.
    """
    check_model(root)
    folder = None if out is None else Path(out)
    if folder is not None:
        check_folder(folder)
    own = settings.batches
    with generators_kept(root):
        check_training(root, settings, seconds)
        trial = copied(root)
        batch = moved(own.judging[0], next(trial.parameters()))
        inputs = settings.objective.inputs(trial, batch)
        layers = _layers(trial, inputs)
        state = measure_state(trial, inputs, layers)
        names = None if schemes is None else tuple(schemes)
        candidates, refused = candidates_for(trial, layers, names, state)
        predictions, unpredicted, stack = predict(trial, inputs, candidates, state.smaller)
        left, excluded = rule_out(candidates, predictions)
        memory = probe_memory(trial, settings, batch)
        del trial
        probe = _probed(root, left, settings, seconds, folder)
    asked = {"loss": loss, "optimizer": named(settings.optimizer), "lr": settings.lr, "seconds": seconds}
    asked |= {"batches": len(own.training) + len(own.judging) * (not own.shared), "judging": len(own.judging)}
    ranking, summary = conclude(state, candidates, [*refused, *excluded], predictions, probe, inputs)
    return Recommendation(type(root).__name__, state, ranking, summary, unpredicted, probe, memory, asked, stack)


def _layers(trial: nn.Module, inputs: Any) -> AttentionLayers:
    try:
        return views_on_batch(trial, inputs, None)
    except (BatchError, NoAttentionError):
        raise
    except WellcondError:
        return from_structure(trial)


def _probed(
    root: nn.Module,
    candidates: Sequence[Candidate],
    settings: TrialSettings,
    seconds: float,
    folder: Path | None,
) -> ProbeResult:
    if not seconds:
        return ProbeResult((), None, 0.0, untried=tuple(one.name for one in candidates))
    about = ""
    if folder is not None:  # it reads every weight and every batch
        batches = [settings.batches.judging, settings.batches.training]
        names = [one.name for one in candidates]
        about = fingerprint(root, batches, seconds, settings.lr, settings.optimizer, settings.objective, names)
    with TrialRecords(folder, about) as records:
        return Probe(root, candidates, settings, seconds, records, lambda one: scale_control(root, one, settings)).run()


def scale_control(root: nn.Module, one: Candidate, settings: TrialSettings) -> Candidate | None:
    """Return the model's own weights at the sharpness and gains that a candidate has; None where that says nothing."""
    if one.scheme is None:
        return None
    trial = copied(root)
    inputs = moved(settings.objective.inputs(trial, settings.batches.judging[0]), next(trial.parameters()))
    try:
        one.apply_(trial, inputs)
        scales = measure_scales(trial, inputs)
        betas = {name: list(s.beta) for name, s in scales.items() if s.beta and None not in s.beta}
        gains = {name: s.branch for name, s in scales.items() if s.branch}
        both = " and ".join(word for word, values in (("β", betas), ("g", gains)) if values)
        if not both:
            return None
        name = f"yours at the {both} of {one.name}"
        found = Candidate(calibrated=True, beta=betas, branch=gains, embedding=one.embedding, named=name)
        found.apply_(copied(root), inputs)
    except WellcondError:
        return None
    return found


def named(given: Any) -> str:
    """Return what a function or an optimizer is called in the record of a recommendation.

    >>> named("adamw"), named(nn.functional.mse_loss)
    ('adamw', 'mse_loss')
    """
    if isinstance(given, str):
        return given
    return getattr(given, "__name__", None) or (repr(given) if isinstance(given, Optimizer) else type(given).__name__)
