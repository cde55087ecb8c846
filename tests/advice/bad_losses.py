"""Losses that cannot be trained by, for `wc.recommend`."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from tests.advice.bad_calls import INF, NAN, fail, loss
from wellcond.errors import ArgumentError, BatchError, NotFiniteError


class NoGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.sum()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:  # type: ignore[override]
        raise RuntimeError("no backward\nhere")


def only_in(training: bool) -> Callable[[Tensor, Tensor], Tensor]:
    """A loss that is no number in one of the modes, which it knows from whether gradients are wanted."""
    return lambda output, target: functional.cross_entropy(output, target) / float(output.requires_grad is not training)


def with_own_parameter(output: Tensor, target: Tensor) -> Tensor:
    return nn.Parameter(torch.ones(())) * output.detach().mean()


def one_argument(output: Tensor) -> Tensor:
    return output.mean()


def named_failure(output: Any, target: Any) -> Any:
    return fail()


LOSSES = [
    loss("no function", ArgumentError, "loss is a function of (output, target), or None; got 3", 3),
    loss("a name", ArgumentError, "got 'mse'", "mse"),
    loss("none, and the model has none", BatchError, "VisionTransformer gives Tensor (4, 5)", None),
    loss("a function that raises", BatchError, "named_failure(output, target) raised ValueError: a bug", named_failure),
    loss(
        "a function, by its file",
        BatchError,
        f"(bad_losses.py, line {named_failure.__code__.co_firstlineno})",
        named_failure,
    ),
    loss("a function of one argument", BatchError, "one_argument(output, target) raised TypeError", one_argument),
    loss("a function that exits", BatchError, "raised SystemExit", lambda output, target: sys.exit(3)),
    loss("a class", BatchError, "CrossEntropyLoss(output, target) ", nn.CrossEntropyLoss),
    loss("nothing", BatchError, "returns one number as a tensor; got None", lambda output, target: None),
    loss("a float", BatchError, "got float", lambda output, target: 1.5),
    loss("text", BatchError, "got str", lambda output, target: "low"),
    loss("a vector", BatchError, "got Tensor (4,)", nn.CrossEntropyLoss(reduction="none")),
    loss("an empty tensor", BatchError, "got Tensor (0,)", lambda output, target: output[:0, 0]),
    loss("a complex number", BatchError, "complex64", lambda output, target: output.mean() + 0j),
    loss("a whole number", BatchError, "int64", lambda output, target: (output.argmax(1) != target).sum()),
    loss("several", BatchError, "got (Tensor", lambda output, target: (output.mean(), output.mean())),
    loss("no gradient", BatchError, "has no gradient", lambda output, target: output.detach().mean()),
    loss("a share of errors", BatchError, "no gradient", lambda o, t: (o.argmax(1) != t).float().mean()),
    loss("a constant", BatchError, "has no gradient", lambda output, target: torch.ones(())),
    loss("of something else", BatchError, "does not depend on the model", with_own_parameter),
    loss("not a number", NotFiniteError, "batch 1 of 6: its loss", lambda output, target: output.mean() * NAN),
    loss("infinite", NotFiniteError, "is inf", lambda output, target: output.square().mean() * INF),
    loss("not a number in training alone", NotFiniteError, "its loss in training is inf", only_in(True)),
    loss("not a number in evaluation alone", NotFiniteError, "its loss in evaluation is inf", only_in(False)),
    loss("a gradient that raises", BatchError, "no backward here", lambda output, target: NoGradient.apply(output)),
]
