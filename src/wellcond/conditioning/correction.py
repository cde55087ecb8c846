"""Correction: a method by which the effective weight W + C follows from the trained weight W."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Hashable, Iterator, Mapping
from functools import cached_property
from typing import ClassVar

import torch
from torch import Tensor

from wellcond.conditioning.added_parameters import check_unwrapped
from wellcond.conditioning.correction_marks import CorrectionRecord, followed
from wellcond.conditioning.guarantee import ConditioningSummary
from wellcond.conditioning.method import Method
from wellcond.conditioning.shared_memory import check_memory
from wellcond.conditioning.storage.entries import Entries
from wellcond.conditioning.storage.rule import Rule
from wellcond.conditioning.target_weights import TargetHeads, TargetWeight, check_weights, weights_of
from wellcond.errors import SchemeError


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
        return Entries.of(weight.dense(self.fixed))
