"""Optimizers that cannot train a copy, and settings that are none, for `wc.recommend`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from tests.advice.bad_calls import INF, NAN, Bad, asked, fail, optimizer
from wellcond.errors import ArgumentError, OptimizerError, WellcondError


class WithoutRate(torch.optim.Optimizer):
    def __init__(self, params: Any) -> None:
        super().__init__(params, {})


class Unrepeatable(torch.optim.SGD):
    def __init__(self, model: nn.Module) -> None:
        super().__init__(model.parameters(), lr=0.1)


class Broken(torch.optim.SGD):
    def step(self, closure: Any = None) -> Any:
        raise ArithmeticError("no\nstep")


def adam(parameters: Any) -> Any:
    return torch.optim.Adam(nn.Linear(2, 2).parameters())


ONCE: list[Any] = []


def made_once(parameters: Any) -> Any:
    if not ONCE:
        ONCE.append(torch.optim.SGD(parameters, lr=0.1))
    return ONCE[0]


def of_the_model(kind: type) -> Callable[[Any], dict[str, Any]]:
    return lambda model: {"optimizer": kind(model), "loss": functional.cross_entropy}


def closed_over(model: nn.Module) -> dict[str, Any]:
    """A function that trains the user's own model, whatever it is given."""
    return {"optimizer": lambda parameters: torch.optim.SGD(model.parameters(), lr=0.1)}


OPTIMIZERS = [
    optimizer(
        "a name that is none", ArgumentError, "adamw, sgd, muon, an optimizer, or a function; got 'adam'", "adam"
    ),
    optimizer("nothing", ArgumentError, "got None", None),
    optimizer("a number", ArgumentError, "got 0.1", 0.1),
    optimizer("settings", ArgumentError, "got {'name': 'adamw'}", {"name": "adamw"}),
    optimizer("a long list", ArgumentError, "an optimizer, or a function; got", [0.0] * 10_000),
    optimizer(
        "of another model", OptimizerError, "not the model's", torch.optim.SGD(nn.Linear(2, 2).parameters(), lr=1)
    ),
    optimizer("that raises", OptimizerError, "raised ValueError: a bug in two lines", lambda parameters: fail()),
    optimizer("that returns nothing", OptimizerError, "got a NoneType", lambda parameters: None),
    optimizer("that returns parameters", OptimizerError, "got a list", list),
    optimizer("of other parameters", OptimizerError, "adam returns a Adam of other parameters", adam),
    optimizer("that is made once", OptimizerError, "made_once returns a SGD of other parameters", made_once),
    optimizer("without a rate", OptimizerError, "without lr", lambda parameters: WithoutRate(parameters)),
    optimizer("that needs a closure", OptimizerError, "a step of LBFGS raised", torch.optim.LBFGS),
    optimizer("whose step raises", OptimizerError, "a step of Broken raised ArithmeticError: no step", Broken),
    optimizer("of a wrong rate", ArgumentError, "lr is a number above 0; got 0", "adamw", lr=0),
    optimizer("of a negative rate", ArgumentError, "lr is", "adamw", lr=-1.0),
    optimizer("of a rate that is none", ArgumentError, "lr is", "sgd", lr=NAN),
    optimizer("of a rate in text", ArgumentError, "got '1e-3'", "sgd", lr="1e-3"),
    Bad(
        "an optimizer that cannot be made anew", OptimizerError, "cannot be made anew", using=of_the_model(Unrepeatable)
    ),
    Bad("an optimizer of the user's model", OptimizerError, "of other parameters", using=closed_over),
]

SETTINGS = [
    asked("a scheme that is none", WellcondError, "orthogonol", schemes=["orthogonol"]),
    asked("a scheme that needs a teacher", WellcondError, "teacher", schemes=["weight_selection"]),
    asked("schemes in one text", ArgumentError, "schemes is", schemes="fan_in"),
    asked("schemes that are numbers", ArgumentError, "schemes is", schemes=[1]),
    asked("negative seconds", ArgumentError, "seconds is a number of at least 0; got -1", seconds=-1),
    asked("seconds without end", ArgumentError, "seconds is", seconds=INF),
    asked("seconds in text", ArgumentError, "got '2m'", seconds="2m"),
    asked("a folder of nothing", ArgumentError, "out is a path or None; got ''", out=""),
    asked("a folder that is a number", ArgumentError, "out is a path", out=3),
]
