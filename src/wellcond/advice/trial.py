"""Train a copy of a model for a few steps from one initialisation, and follow the loss on batches it is not given."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from wellcond._core.global_generators import restored_generators, seed_generators
from wellcond._core.keyed_random import key
from wellcond._core.safe_text import briefly
from wellcond.advice.candidates import Candidate
from wellcond.advice.own_batches import OwnBatches
from wellcond.advice.trial_optimizer import make_optimizer
from wellcond.attention.capture import evaluating
from wellcond.attention.paths import unwrap
from wellcond.errors import BatchError, OptimizerError, WellcondError
from wellcond.inputs.objective import BatchLoss, moved

WARMUP = 0.1  # part of the steps in which the learning rate rises, as most training begins
DIVERGED = 1e3  # times the first loss, above which the rest is not worth its time


@dataclass(frozen=True)
class TrialSettings:
    """How trials train: the loss, the optimizer and its rate, the batches.

    Args:
        objective: what is to become small.
        optimizer: `"adamw"`, `"sgd"`, `"muon"`, an optimizer whose settings are taken, or a function of parameters (or
            of a model) that makes one.
        lr: peak of the learning rate; of an optimizer that is given, its own.
        batches: to judge by and to train on.
    """

    objective: BatchLoss
    optimizer: Any
    lr: float
    batches: OwnBatches


class OutOfTime(Exception):
    """Raised inside a trial whose time is up."""


def run_trial(
    model: nn.Module,
    candidate: Candidate,
    settings: TrialSettings,
    seed: int,
    steps: int,
    marks: Sequence[int],
    tick: Callable[[], None] = lambda: None,
) -> dict[int, list[float]]:
    """Train a copy from a candidate's weights; return the loss of each judging batch after each of some steps.

    Equal seeds mean the same order of batches and the same random numbers of dropout, whatever the candidate.

    Args:
        model: the user's, which stays as it is.
        candidate: what the copy begins with.
        settings: how it is trained.
        seed: of draws, order and dropout.
        steps: of the optimizer.
        marks: numbers of steps after which to judge; 0 is before the first.
        tick: called before each step; what it raises ends the trial.
    """
    with generators_kept(model):
        trial = copied(model)
        first = next(trial.parameters())
        candidate.apply_(trial, moved(settings.objective.inputs(trial, settings.batches.judging[0]), first), seed)
        optimizer = make_optimizer(settings.optimizer, settings.lr, unwrap(model), trial)
        peaks = [group["lr"] for group in optimizer.param_groups]
        order, losses = settings.batches.order(key("order", seed)), dict[int, list[float]]()
        trial.train()
        for step in range(steps + 1):
            if step in marks:
                losses[step] = judge(trial, settings, first)
                if not _going_on(losses):
                    return losses | {mark: [float("inf")] * len(losses[step]) for mark in marks if mark > step}
            if step == steps:
                break
            tick()
            seed_generators("probe", seed, step)
            if first.is_cuda:
                torch.cuda.manual_seed(key("probe", seed, step))
            rise = min(1.0, (step + 1) / max(1, round(WARMUP * steps)))
            for group, peak in zip(optimizer.param_groups, peaks, strict=True):
                group["lr"] = peak * rise
            train_step(trial, settings, optimizer, next(order), first)
        return losses


def train_step(model: nn.Module, settings: TrialSettings, optimizer: Optimizer, batch: Any, like: Tensor) -> float:
    """Make one step of an optimizer on a batch, and return the loss before it."""
    optimizer.zero_grad()
    with settings.batches.naming(batch), torch.enable_grad():
        loss = settings.objective(model, moved(batch, like))
        if not loss.requires_grad:
            raise BatchError("the loss has no gradient: it must follow from the model's output by operations of torch")
        try:
            torch.autograd.backward(loss)
        except (WellcondError, torch.OutOfMemoryError):
            raise
        except Exception as error:
            raise BatchError(f"the gradient of the loss cannot be computed: {briefly(error, 200)}") from error
    try:
        optimizer.step()
    except (WellcondError, torch.OutOfMemoryError):
        raise
    except Exception as error:
        raise OptimizerError(f"a step of {type(optimizer).__name__} raised {briefly(error, 200)}") from error
    return float(loss.detach())


@torch.no_grad()
def judge(model: nn.Module, settings: TrialSettings, like: Tensor) -> list[float]:
    """Return the loss of each judging batch, in evaluation mode."""
    seed_generators("judge")
    return [judged_loss(model, settings, batch, like) for batch in settings.batches.judging]


@torch.no_grad()
def judged_loss(model: nn.Module, settings: TrialSettings, batch: Any, like: Tensor) -> float:
    """Return the loss of a batch in evaluation mode."""
    with evaluating(model), settings.batches.naming(batch):
        return float(settings.objective(model, moved(batch, like)))


def _going_on(losses: dict[int, list[float]]) -> bool:
    """Whether the last losses are numbers, and not far beyond the first."""
    first, last = (sum(losses[mark]) / len(losses[mark]) for mark in (min(losses), max(losses)))
    return last == last and last <= DIVERGED * max(abs(first), 1.0)


def copied(model: nn.Module) -> nn.Module:
    """Return a copy of a model without its wrappers, all of it in new memory."""
    root = unwrap(model)
    kept = [(p, p.grad) for p in root.parameters()]
    for p, _ in kept:
        p.grad = None  # what the user has accumulated is not copied
    try:
        found = copy.deepcopy(root)
    except Exception as error:
        raise WellcondError(
            f"{type(root).__name__} cannot be copied ({briefly(error, 200)}), and a probe trains copies: give a model "
            "that copy.deepcopy takes"
        ) from error
    finally:
        for p, grad in kept:
            p.grad = grad
    shared = {id(p) for p, _ in kept}
    if not isinstance(found, nn.Module) or any(id(p) in shared for p in found.parameters()):
        raise WellcondError(
            f"copy.deepcopy of {type(root).__name__} gives no model with weights of its own, and a probe trains "
            "copies: mend its __deepcopy__"
        )
    return found


@contextmanager
def generators_kept(model: nn.Module) -> Iterator[None]:
    """Leave the generators of Python, NumPy and torch as they were, those of the model's GPUs too."""
    devices = sorted({p.device.index or 0 for p in model.parameters() if p.device.type == "cuda"})
    with restored_generators(), torch.random.fork_rng(devices=devices):
        yield
