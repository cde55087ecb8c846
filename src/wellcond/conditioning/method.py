"""Method: what `wc.condition_` can do to a model, by name. A new one is a new file in `methods/`, and nothing else.

A `Correction` is a method by which the effective weight W + C follows from the trained weight W.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable, Iterator, Mapping
from functools import cached_property
from types import MappingProxyType
from typing import Any, ClassVar, Self, TypeVar

import torch
from torch import Tensor, nn

from wellcond.attention.layers import AttentionLayers
from wellcond.conditioning.correction_marks import CorrectionRecord, followed
from wellcond.conditioning.guarantee import ConditioningSummary
from wellcond.conditioning.model_checks import check_memory, check_unwrapped, check_weights
from wellcond.conditioning.storage.rule import Rule
from wellcond.conditioning.target_weights import Entries, TargetHeads, TargetWeight, weights_of
from wellcond.errors import SchemeError

METHODS: dict[str, type[Method]] = {}
M = TypeVar("M", bound="type[Method]")


def register_method(cls: M) -> M:
    """Add a method to `METHODS` under its name: a decorator of its class."""
    METHODS[cls.name] = cls
    return cls


class Method(ABC):
    """One method on some layers of a model: abstract. Weights are corrected (`Correction`) or modules changed.

    It is a value: another strength is another object, and only a storage changes the model.

    Attributes:
        name: what `wc.condition_` is given.
        citation: the paper.
        modes: how the model can keep it, `"folded"` or `"live"`; the first is the default.
        strength_default: the strength where none is given; None for a method that has no strength.
        defaults: its options.
    """

    name: ClassVar[str]
    citation: ClassVar[str]
    modes: ClassVar[tuple[str, ...]] = ("live",)
    strength_default: ClassVar[float | None] = None
    defaults: ClassVar[Mapping[str, Any]] = MappingProxyType({})

    def __init__(
        self, model: nn.Module, layers: AttentionLayers, strength: Mapping[str, float], options: Mapping[str, Any]
    ) -> None:
        self.model, self.layers, self.options = model, layers, dict(options)
        self.strength = dict(strength)
        self.check_options()

    def with_strength(self, strength: Mapping[str, float]) -> Self:
        """Return the method with another strength of each role."""
        return type(self)(self.model, self.layers, strength, self.options)

    @abstractmethod
    def check_options(self) -> None:
        """Raise unless options and roles mean something; roles that the method does not have leave `strength`."""

    @abstractmethod
    def claims(self, active: bool = False) -> Mapping[Hashable, Hashable]:
        """Return what only one conditioning can have, and what this does to it; if `active`, of what is still there."""

    @abstractmethod
    def check(self) -> None:
        """Raise unless the model can be conditioned; nothing has been changed yet."""


class Correction(Method):
    """A rule for each parameter: abstract. `storage/` says how a model keeps what the rule gives.

    Attributes:
        adds_parameters: whether its rules train further parameters.
    """

    adds_parameters: ClassVar[bool] = False

    @abstractmethod
    def rule(self, weight: TargetWeight) -> Rule:
        """Return the rule of one parameter."""

    @abstractmethod
    def bounds(self, part: TargetHeads, largest: Tensor) -> list[float] | None:
        """Return the promised κ of each head of one role, from its σ_max(W); None without a theorem."""

    @abstractmethod
    def check_numbers(self) -> None:
        """Raise where the method cannot do these weights at this strength."""

    @cached_property
    def weights(self) -> list[TargetWeight]:
        """The parameters with roles that have a strength."""
        return weights_of(self.layers, self.strength)

    @property
    def reachable(self) -> list[TargetWeight]:
        """The parameters of every role, also of one whose strength is zero now."""
        return weights_of(self.layers, dict.fromkeys(self.strength, 1.0))

    @property
    def record(self) -> CorrectionRecord:
        """The name, strength and options that a file says its weights hold."""
        return CorrectionRecord(
            self.name, {role: value for role, value in self.strength.items() if value}, self.options
        )

    def claims(self, active: bool = False) -> Mapping[Hashable, Hashable]:
        """Return each parameter, with the heads and strengths in it."""
        found: dict[Hashable, frozenset[Hashable]] = {}
        for weight in self.weights:
            if active and not followed(weight.owner, weight.name):
                continue
            parts = frozenset((part.layout, part.strength) for part in weight.parts)
            found[id(weight.parameter)] = found.get(id(weight.parameter), frozenset()) | parts
        return found

    def check(self) -> None:
        """Raise unless every parameter can be written and is not conditioned yet."""
        check_weights(self.weights)
        check_memory(self.weights)
        if self.adds_parameters:
            check_unwrapped(self.model, self.name)
        self.check_strength()

    def check_strength(self) -> None:
        """Raise for a strength that the arithmetic of a weight cannot do: at 1/eps a W of unit size is rounded away."""
        for weight in self.weights:
            limit = 1 / torch.finfo(weight.parameter.dtype).eps
            for part in weight.parts:
                if not abs(part.strength) <= limit:
                    raise SchemeError(
                        f"the strength of '{part.name}' is at most {limit:.3g} in {weight.parameter.dtype}, above "
                        f"which W is rounded away in W + C; got {part.strength:g}"
                    )
        self.check_numbers()


class FixedCorrection(Correction):
    """A correction whose C is the same all through training: abstract.

    So W + C can be folded from the start, W is known exactly at the entries that C changes, and C shows in the weights.
    Its strength is `"safe"` where none is given: found from W by `safe_strength`.
    """

    modes = ("folded", "live")

    @abstractmethod
    def fixed(self, part: TargetHeads) -> Tensor:
        """Return C of the heads of one role, `(heads, D, d)`."""

    @abstractmethod
    def safe_strength(self, held: Mapping[str, float]) -> float:
        """Return the strength to take where none is given; `held` are those in the effective weights now."""

    @abstractmethod
    def warnings(self, summary: ConditioningSummary, chosen: bool) -> Iterator[str]:
        """Say what will not go well in a model just conditioned; `chosen` if the strength is `safe_strength`."""

    def entries(self, weight: TargetWeight) -> Entries:
        """Return C of one parameter."""
        dense = torch.zeros(tuple(weight.parameter.shape), dtype=torch.float64)
        for part in weight.parts:
            part.layout.write_(dense, self.fixed(part))
        return Entries.of(dense)
