"""Refuse what cannot be recommended for, in a line and before anything takes long: the model, its loss, each batch."""

from __future__ import annotations

import time

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from wellcond._core.deferred_torch import is_dtensor
from wellcond.advice.trial import TrialSettings, copied, judged_loss, train_step
from wellcond.advice.trial_optimizer import make_optimizer
from wellcond.errors import BatchError, NotFiniteError, WeightError, WellcondError

SHARE = 0.05  # of the probe's seconds, that looking at every batch beforehand may take


def check_model(root: nn.Module) -> None:
    """Raise unless a model has weights that can be copied and trained.

    >>> check_model(nn.ReLU())
    Traceback (most recent call last):
    wellcond.errors.WeightError: ReLU has no parameters, so there is nothing to initialise
    """
    parameters = list(root.named_parameters())
    if not parameters:
        raise WeightError(f"{type(root).__name__} has no parameters, so there is nothing to initialise")
    if any(map(is_dtensor, root.parameters())):
        raise WeightError(f"{type(root).__name__} is sharded: ask before it is, and initialise then")
    for name, parameter in parameters:
        if is_lazy(parameter):
            raise WeightError(f"'{name}' has no shape yet: run the model once on a batch first")
        if parameter.is_meta:
            raise WeightError(f"'{name}' is on the meta device: materialise the model first")
        if not bool(torch.isfinite(parameter).all()):
            raise NotFiniteError(f"'{name}' holds numbers that are not finite")


def check_training(root: nn.Module, settings: TrialSettings, seconds: float) -> None:
    """See that every batch has a finite loss, and that a step of training can be made on the first.

    All of it on a copy that is thrown away. Batches are run one after the other as long as that takes little of the
    probe's time, and those that judge in any case; what is wrong with a later one is said by the trial that meets it.
    Without a probe nothing is trained, and the first batch alone is run.
    """
    trial, batches = copied(root), settings.batches
    optimizer = make_optimizer(settings.optimizer, settings.lr, root, trial)
    like, started = next(trial.parameters()), time.perf_counter()
    for batch in batches.every:
        with batches.naming(batch):
            settings.objective.inputs(trial, batch)
    for number, batch in enumerate(batches.every):
        if number >= (len(batches.judging) if seconds else 1) and time.perf_counter() - started > SHARE * seconds:
            break
        found = judged_loss(trial, settings, batch, like)
        _check_finite(settings, batch, found, "in evaluation")
    if not seconds:
        return
    first = batches.judging[0]
    own = [(p, p.grad) for p in root.parameters()]
    try:
        for p, _ in own:
            p.grad = None
        trial.train()
        found = train_step(trial, settings, optimizer, first, like)
        if any(p.grad is not None for p, _ in own):
            raise WellcondError(
                f"a copy of {type(root).__name__} computes with weights of the model itself, so it cannot be tried: "
                "reach them through self in forward, not through a function that keeps them"
            )
        if all(p.grad is None for p in trial.parameters()):
            raise BatchError(
                "the loss does not depend on the model's parameters: it must follow from the model's output"
            )
    finally:
        for p, grad in own:
            p.grad = grad
    _check_finite(settings, first, found, "in training")
    make_optimizer(settings.optimizer, settings.lr, root, copied(root))  # a function must make a new one every time


def _check_finite(settings: TrialSettings, batch: object, found: float, when: str) -> None:
    with settings.batches.naming(batch):
        if not torch.isfinite(torch.tensor(found)):
            raise NotFiniteError(f"its loss {when} is {found:g}: look at its inputs and targets")
