"""Try a task and a model of the user's own on a few batches before anything is trained; the model stays as it is."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

import wellcond as wc
from wellcond._core.global_generators import restored_generators
from wellcond._core.safe_text import briefly
from wellcond.errors import DataError, WellcondError
from wellcond.lab.models import output_of
from wellcond.lab.recipe.arms import Shown
from wellcond.lab.recipe.recipe import Recipe
from wellcond.lab.shown_layers import first_inputs
from wellcond.lab.tasks.base import Batch, Task
from wellcond.lab.training.batches import Batches
from wellcond.lab.training.data_order import seed_global_
from wellcond.lab.training.evaluate import EvaluationParts
from wellcond.lab.training.optimize import optimizer_for


def check_own(recipe: Recipe, task: Task, model: nn.Module, shown: Shown) -> None:
    """Refuse what would fail in the first step, a test, or a look of the monitor, in one line that names the task."""
    if recipe.train.smoothing:
        raise WellcondError(
            f"smoothing is of labels, and {task.name} has a loss of its own: leave it out, or put it there"
        )
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise WellcondError(f"{type(model).__name__} has no parameter to train")
    with restored_generators(), torch.enable_grad():
        trial = _copied(model).to(getattr(torch, recipe.train.dtype))
        with _named(task):
            _check_training(recipe, task, trial)
            _check_test(recipe, task, trial)
        for settings in {repr(found): found for found in map(recipe.training, recipe.arms.values())}.values():
            optimizer_for(trial, settings.lr, settings, shown)
        if recipe.monitor is not None:
            _check_monitor(recipe, task, trial)


def _check_training(recipe: Recipe, task: Task, trial: nn.Module) -> None:
    """One batch as the first step has it: a loss that is finite, with gradients."""
    trial.train()
    batch = _placed(Batches(recipe, task, recipe.seeds[0])[0][0][0], trial)
    seed_global_(batch_device(trial), 0)
    found = task.loss(output_of(trial, task, batch), batch)
    value = float(found.detach())
    if not math.isfinite(value):
        raise DataError(f"the loss of the first batch is {value:g}: look at its inputs and targets")
    if not found.requires_grad:
        raise DataError("the loss has no gradient: it must follow from the model's output by operations of torch")
    found.backward()  # type: ignore[no-untyped-call]
    trial.zero_grad()


@torch.no_grad()
def _check_test(recipe: Recipe, task: Task, trial: nn.Module) -> None:
    """The first and the last part of the test set, which may be smaller."""
    trial.eval()
    parts = EvaluationParts.of(task, recipe.train)
    for number in sorted({0, len(parts) - 1}):
        batch = _placed(parts[number], trial)
        seed_global_(batch_device(trial), 0)
        value = task.metric_of(task.score(output_of(trial, task, batch), batch))
        if math.isnan(value) and callable(getattr(task.own, "metric", None)):  # a known one may be, of few examples
            raise DataError(f"{task.metric} is nan for a batch of the test data: look at the function and its batches")


def _check_monitor(recipe: Recipe, task: Task, trial: nn.Module) -> None:
    settings = recipe.monitor
    assert settings is not None
    try:
        inputs = first_inputs(trial, task, settings.examples)
        wc.Monitor(trial, inputs, every=1, heads=settings.heads, tiers=settings.tiers, alarms=False).step(0)
    except WellcondError as error:
        raise WellcondError(f"{error}. Without the monitor: monitor = false") from None


@contextmanager
def _named(task: Task) -> Iterator[None]:
    """Begin a refusal with the task that it is of."""
    try:
        yield
    except torch.OutOfMemoryError:
        raise
    except WellcondError as error:
        raise (
            error if str(error).startswith(f"{task.name}:") else DataError(f"{task.name}: {error}")
        ) from error.__cause__
    except Exception as error:  # of autograd
        raise DataError(f"{task.name}: the first step raised {briefly(error, 200)}") from error


def _copied(model: nn.Module) -> nn.Module:
    try:
        return copy.deepcopy(model)
    except Exception as error:
        raise WellcondError(
            f"{type(model).__name__} cannot be copied ({briefly(error, 200)}), and it is tried on a copy: give a model "
            "that copy.deepcopy takes"
        ) from error


def _placed(batch: Batch, model: nn.Module) -> Batch:
    first: Tensor = next(model.parameters())
    return batch.to(first.device, first.dtype)


def batch_device(model: nn.Module) -> torch.device:
    """Return where a model's batches go."""
    return next(model.parameters()).device
