"""Method: what `wc.condition_` can do to a model, by name. A new one is a new file in `methods/`, and nothing else."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable, Mapping
from types import MappingProxyType
from typing import Any, ClassVar, Self, TypeVar

from torch import nn

from wellcond.attention.layers import AttentionLayers

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
        chooses_strength: whether the default is `"safe"` instead, a strength that is found from W.
        defaults: its options.
    """

    name: ClassVar[str]
    citation: ClassVar[str]
    modes: ClassVar[tuple[str, ...]] = ("live",)
    strength_default: ClassVar[float | None] = None
    chooses_strength: ClassVar[bool] = False
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
