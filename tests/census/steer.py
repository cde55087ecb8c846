"""What a watched pass does otherwise than the model, so that the effect of one change can be told from another's."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

SDPA = "scaled_dot_product_attention"
Weights = Any  # the probabilities of a softmax, or the arguments of `scaled_dot_product_attention`


@dataclass(frozen=True)
class Nudge:
    """Changes one entry of one factor (0 or 1) of one product of a pass."""

    product: int
    factor: int
    entry: int

    def apply(self, arguments: Any, factors: tuple[Tensor, Tensor]) -> Any:
        old = factors[self.factor]
        new = old.clone(memory_format=torch.contiguous_format)
        new.view(-1)[self.entry] += new[torch.isfinite(new)].abs().max() + 1
        return mapped(arguments, lambda t: new if t is old else t)


@dataclass(frozen=True)
class Steer:
    """Changes to a pass.

    Args:
        pins: results that the mixtures hand on instead of their own, in order: what a weight moves is then moved by it
            directly, and not through another attention.
        weights: that the softmaxes hand on instead of their own, in order: what moves a mixture is then a value.
        nudge: a change to one factor of one product.
        fill: whether zeros that a linear map reads become noise, so that its weight shows.
    """

    pins: Sequence[Tensor] = ()
    weights: Sequence[Weights] = ()
    nudge: Nudge | None = None
    fill: bool = False

    def arguments(self, name: str, args: Any, kwargs: Any, factors: Any, product: int, softmax: int) -> Any:
        """Return the arguments of a call, changed where it is one of those above."""
        if factors and self.nudge and self.nudge.product == product:
            args, kwargs = self.nudge.apply((args, kwargs), factors)
        if name == SDPA and softmax < len(self.weights):
            value = kwargs["value"] if "value" in kwargs else args[2]
            args, kwargs = with_value(*copied(self.weights[softmax]), value)
        if name == "linear" and self.fill and not bool(args[0].any()):
            noise = torch.randn(args[0].shape, generator=torch.Generator().manual_seed(5)).to(args[0].dtype)
            args = noise, *args[1:]
        return args, kwargs

    def mixture(self, number: int, result: Any) -> Any:
        fits = number < len(self.pins) and self.pins[number].shape == result.shape
        return self.pins[number].clone() if fits else result

    def probabilities(self, number: int, result: Any) -> Any:
        held = self.weights[number] if number < len(self.weights) else None
        return held.clone() if isinstance(held, Tensor) and held.shape == result.shape else result


def with_value(args: Any, kwargs: Any, value: Tensor) -> Any:
    return (args, {**kwargs, "value": value}) if "value" in kwargs else ((*args[:2], value, *args[3:]), kwargs)


def copied(value: Any) -> Any:
    return mapped(value, lambda t: t.clone())


def mapped(value: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """Return nested arguments with each tensor changed."""
    if isinstance(value, dict):
        return {key: mapped(inner, change) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(mapped(inner, change) for inner in value)
    return change(value) if isinstance(value, Tensor) else value
