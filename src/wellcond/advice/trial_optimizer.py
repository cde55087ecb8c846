"""The optimizer of a trial: made anew for each copy, by name, with the settings of the user's, or by a function."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from wellcond._core.safe_text import briefly
from wellcond._core.short_repr import short_repr
from wellcond.errors import ArgumentError, OptimizerError, WellcondError
from wellcond.optim.muon import Muon

OPTIMIZERS = ("adamw", "sgd", "muon")


def make_optimizer(given: Any, lr: float, model: nn.Module, trial: nn.Module) -> Optimizer:
    """Return a new optimizer for a copy: by name, with the settings of the user's, or by a function.

    >>> import copy
    >>> model = nn.Linear(2, 2)
    >>> own = torch.optim.SGD([{"params": [model.weight], "lr": 0.5}, {"params": [model.bias]}], lr=0.1, momentum=0.9)
    >>> found = make_optimizer(own, 1.0, model, copy.deepcopy(model))
    >>> type(found).__name__, [(group["lr"], group["momentum"]) for group in found.param_groups]
    ('SGD', [(0.5, 0.9), (0.1, 0.9)])
    """
    trained = [p for p in trial.parameters() if p.requires_grad]
    if not trained:
        raise OptimizerError("no parameter of the model is trained (requires_grad), so no initialisation matters")
    if given == "adamw":
        return torch.optim.AdamW(trained, lr=lr)
    if given == "sgd":
        return torch.optim.SGD(trained, lr=lr, momentum=0.9)
    if given == "muon":
        return Muon(trial, lr=lr, adjust_lr_fn="match_rms_adamw", adamw_lr=lr)
    if isinstance(given, Optimizer):
        return _like(given, model, trial)
    if not callable(given):
        raise ArgumentError(
            f"optimizer is one of {', '.join(OPTIMIZERS)}, an optimizer, or a function; got {short_repr(given)}"
        )
    return _by_function(given, trial, trained)


def _by_function(given: Callable[..., Any], trial: nn.Module, trained: list[nn.Parameter]) -> Optimizer:
    """Return what a function makes, if it trains the copy and nothing else."""
    name = getattr(given, "__name__", type(given).__name__)
    try:
        found = given(trial if _wants_model(given) else trained)
    except WellcondError:
        raise
    except Exception as error:
        raise OptimizerError(f"{name} raised {briefly(error, 200)}; it is given the trained parameters") from error
    if not isinstance(found, Optimizer):
        raise OptimizerError(f"{name} returns a torch.optim.Optimizer; got a {type(found).__name__}")
    own = set(map(id, trial.parameters()))
    if any(id(p) not in own for group in found.param_groups for p in group["params"]):
        raise OptimizerError(
            f"{name} returns a {type(found).__name__} of other parameters than it is given: a trial trains a copy of "
            "the model, so make a new optimizer of the parameters that come as its argument"
        )
    if any("lr" not in group for group in found.param_groups):
        raise OptimizerError(f"{name} returns a {type(found).__name__} without lr, which a trial raises as it begins")
    return found


def _wants_model(function: Callable[..., Any]) -> bool:
    """Whether the first parameter of a function is called `model`."""
    try:
        return next(iter(inspect.signature(function).parameters), "") == "model"
    except (TypeError, ValueError):
        return False


def _like(own: Optimizer, model: nn.Module, trial: nn.Module) -> Optimizer:
    """Return an optimizer of the same class and settings, without state, for the copy's parameters."""
    names, copies = {id(p): name for name, p in model.named_parameters()}, dict(trial.named_parameters())
    groups = []
    for group in own.param_groups:
        foreign = [p for p in group["params"] if id(p) not in names]
        if foreign:
            raise OptimizerError(
                f"the {type(own).__name__} trains a parameter {tuple(foreign[0].shape)} that is not the model's: give "
                "the optimizer of this very model, or a function that makes one from parameters"
            )
        settings = {name: value for name, value in group.items() if name not in ("params", "initial_lr")}
        if "initial_lr" in group:  # of a scheduler, which may have begun at nothing
            settings["lr"] = group["initial_lr"]
        groups.append(settings | {"params": [copies[names[id(p)]] for p in group["params"]]})
    try:
        return type(own)(groups, lr=own.param_groups[0]["lr"])  # type: ignore[call-arg]
    except Exception as error:
        raise OptimizerError(
            f"a {type(own).__name__} cannot be made anew from its settings ({briefly(error, 200)}): give a function "
            "that makes one from parameters"
        ) from error
