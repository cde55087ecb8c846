"""Storage: how a model keeps what a method makes of it. `Folded` and `Live` weights, or changed modules."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, ClassVar

from torch import Tensor

from wellcond._core.linalg import svdvals
from wellcond.conditioning.cost import CostRow, projection_costs
from wellcond.conditioning.guarantee import HeadCondition, head_conditions
from wellcond.conditioning.method import Correction, FixedCorrection, Method
from wellcond.conditioning.target_weights import TargetHeads, TargetWeight

Added = list[tuple[str, Tensor, Tensor]]  # name, new parameter, the weight it belongs to
Effective = Mapping[int, Tensor]  # the effective weight by `id` of the parameter


class Storage(ABC):
    """The part of a handle that touches the model, which it enters, and leaves as it was: abstract."""

    mode: ClassVar[str]

    @abstractmethod
    def enter_(self, effective: Effective | None = None) -> None:
        """Condition a model whose parameters hold W; `effective` where W alone does not give the effective weights."""

    @abstractmethod
    def leave_(self) -> None:
        """Have the parameters hold W, and be used as they are."""

    @abstractmethod
    def added(self) -> Added:
        """Return the new parameters, which an optimizer has to train."""

    @abstractmethod
    def trained_loaded_(self, loaded: Collection[int]) -> None:
        """Follow parameters (by `id`) that have just become W, where they are to hold something else."""

    @abstractmethod
    def state(self) -> dict[str, Any]:
        """Return what a bit-exact continuation needs, beside the model's state."""

    @abstractmethod
    def load_state(self, state: Mapping[str, Any]) -> None:
        """Take over `state()` of another process."""

    @abstractmethod
    def heads(self) -> Sequence[HeadCondition]:
        """Return κ of every head, in the order of the layers."""

    @abstractmethod
    def cost(self, tokens: int) -> list[CostRow]:
        """Return the rows of `Conditioning.cost`."""


class ModuleChange(Method, Storage):
    """A method that leaves the weights as they are and changes modules, which keep it themselves: abstract."""

    mode = "live"

    def trained_loaded_(self, loaded: Collection[int]) -> None:
        """Do nothing: the parameters hold W."""

    def state(self) -> dict[str, Any]:
        """Return nothing: new parameters are in the model's state."""
        return {}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Do nothing."""


class WeightStorage(Storage):
    """A storage of corrected weights: abstract."""

    def __init__(self, correction: Correction) -> None:
        self.correction = correction

    @abstractmethod
    def effective(self) -> Effective | None:
        """Copy the effective weights; None where they follow from W alone."""

    @abstractmethod
    def pair(self, weight: TargetWeight) -> tuple[Tensor, Tensor]:
        """Return trained and effective weight of one parameter, whole."""

    @abstractmethod
    def measured(self) -> tuple[float, float, float, float]:
        """Return bytes of effective weights beside the parameters, bytes kept now, FLOPs and seconds of a step."""

    @property
    def weights(self) -> list[TargetWeight]:
        """The parameters."""
        return self.correction.weights

    @property
    def fixed(self) -> FixedCorrection | None:
        """The correction, if its C is fixed."""
        return self.correction if isinstance(self.correction, FixedCorrection) else None

    def trained_and_effective(self) -> Iterator[tuple[TargetHeads, Tensor, Tensor]]:
        """Yield W and W + C, `(heads, D, d)` each, of every role of every layer."""
        for weight in self.weights:
            trained, effective = self.pair(weight)
            for part in weight.parts:
                yield part, part.layout.read(trained), part.layout.read(effective)

    def heads(self) -> Sequence[HeadCondition]:
        """See `Storage.heads`."""
        found: list[HeadCondition] = []
        for part, trained, effective in self.trained_and_effective():
            sigma = svdvals(trained)
            bounds = self.correction.bounds(part, sigma[:, 0])
            found += head_conditions(part.layer.name, part.role, sigma, effective, bounds)
        order = {layer.name: index for index, layer in enumerate(self.correction.layers)}
        return sorted(found, key=lambda head: order[head.layer])

    def cost(self, tokens: int) -> list[CostRow]:
        """See `Storage.cost`."""
        size, kept, flops, seconds = self.measured()
        added, table_9 = sum(new.numel() for _, new, _ in self.added()), self.correction.strength_default is not None
        projections = [part.projection for weight in self.weights for part in weight.parts]
        return [
            *projection_costs(projections, tokens, added, table_9=table_9),
            ("memory of the effective weights, bytes", 0, size, kept),
            ("FLOPs of matrix products per step", 0, flops, flops),
            ("seconds per step", 0, seconds, seconds),
        ]
