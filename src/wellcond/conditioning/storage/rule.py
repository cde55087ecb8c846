"""Rule: how the effective weight follows from the trained weight, for one parameter.

`live_weight.py` puts rules to work; nothing here knows of modules. A method's own rule is a final class beside it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor, nn

from wellcond._core.deferred_torch import is_dtensor
from wellcond.attention.layouts import as_matrix, on_matrix
from wellcond.attention.storage import WIDE_DTYPES, like

if TYPE_CHECKING:
    from wellcond.conditioning.target_weights import TargetWeight


@contextmanager
def computing() -> Iterator[None]:
    """Compute without gradients, and in ordinary tensors even inside `torch.inference_mode`: they outlive it."""
    with torch.inference_mode(False), torch.no_grad():
        yield


class Rule(ABC):
    """The map from the trained weight W of one parameter to its effective weight: abstract, a method's own is final.

    Attributes:
        fixed_gradient: whether no gradient flows through C, so that W + C is computed once for each change of W.
        traceable: whether `compute` may run inside a compiled graph.
        parameters: further trainable tensors of the rule, registered beside the weight as `NAME_KEY`.
        revision: rises when the effective weight of the same W changes.
    """

    fixed_gradient: ClassVar[bool]
    traceable: ClassVar[bool] = True

    def __init__(self) -> None:
        self.parameters: dict[str, nn.Parameter] = {}
        self.holder: tuple[dict[str, Any], str] | None = None  # the owner's parameters, and the weight's name
        self.revision = 0

    def extra(self, key: str) -> Tensor:
        """Return one of `parameters` as the model holds it now: sharding and `functional_call` put in another."""
        if self.holder is None:
            return self.parameters[key]
        registered, name = self.holder
        found: Tensor = registered[f"{name}_{key}"]
        return found

    @abstractmethod
    def compute(self, weight: Tensor) -> Tensor:
        """Return the effective weight with its gradient, whatever kind of tensor W is."""

    @abstractmethod
    def effective(self, weight: Tensor) -> Tensor:
        """Return the effective weight in a new tensor, without a gradient; W is a whole, plain, detached tensor."""

    @abstractmethod
    def invert(self, effective: Tensor) -> Tensor:
        """Return the W whose effective weight is given; raise `CheckpointError` where there is none.

        Changes nothing: another rule may refuse what belongs to the same checkpoint.
        """

    # Memory: what a rule knows beside W. `StatelessRule` has none.

    @abstractmethod
    def state(self) -> dict[str, Tensor]:
        """Return the tensors beside W that a bit-exact continuation needs."""

    @abstractmethod
    def load(self, state: dict[str, Tensor], weight: Tensor) -> None:
        """Take over `state()` of another process, which belongs to a weight as it is now."""

    @abstractmethod
    def loaded(self, weight: Tensor, effective: Tensor | None) -> None:
        """Forget what belonged to the weight before one was loaded; `effective` where W was found by `invert`."""

    @abstractmethod
    def advance(self) -> None:
        """Take note that W has changed, before `effective` is asked for again."""

    @abstractmethod
    def settle(self, weight: Tensor) -> None:
        """Make up for what a step could not do, before the weight is read."""

    @abstractmethod
    def stepped(self, weight: Tensor, told: bool, sharded: bool) -> None:
        """Follow a step of any optimizer; `told` if it held the weight with a gradient, else only a version shows it.

        A `sharded` weight may not be gathered: ranks do not come here in the same order.
        """


class StatelessRule(Rule):
    """A rule whose effective weight is a function of W alone: abstract."""

    def state(self) -> dict[str, Tensor]:
        """Return nothing."""
        return {}

    def load(self, state: dict[str, Tensor], weight: Tensor) -> None:
        """Do nothing."""

    def loaded(self, weight: Tensor, effective: Tensor | None) -> None:
        """Do nothing."""

    def advance(self) -> None:
        """Do nothing."""

    def settle(self, weight: Tensor) -> None:
        """Do nothing."""

    def stepped(self, weight: Tensor, told: bool, sharded: bool) -> None:
        """Do nothing."""


class ScalingRule(Rule):
    """`diag(s(W)) W`: a unit is what computes one number of q, k or v, a row of `nn.Linear` and a column of `Conv1D`.

    Abstract. Units of other roles keep their bits: their scale is exactly 1.

    Attributes:
        groups: number of groups of units that are conditioned together.
        group: the group of each unit, `(units,)`; `groups` for a unit that is left alone.
    """

    fixed_gradient = False

    def __init__(self, weight: TargetWeight, per_head: bool = False) -> None:
        super().__init__()
        self.path = weight.path
        layouts = [on_matrix(part.layout) for part in weight.parts]
        self.axis = layouts[0].axis
        starts = [(layout, start) for layout in layouts for start in layout.starts]
        self.groups = len(starts) if per_head else 1
        self.group = torch.full((as_matrix(weight.parameter).shape[self.axis],), self.groups)
        for index, (layout, start) in enumerate(starts):
            last = start + (layout.width - 1) * layout.step
            self.group[start : last + 1 : layout.step] = index if per_head else 0
        self.group = self.group.to(weight.parameter.device)

    @abstractmethod
    def scales(self, units: Tensor) -> Tensor:
        """Return `s`, differentiable: `(units, inputs)` to `(units,)`."""

    def units(self, weight: Tensor) -> Tensor:
        """Return a parameter as `(units, inputs)`, half precision widened, and bring `group` to its device."""
        matrix = as_matrix(weight)
        rows = matrix if self.axis == 0 else matrix.mT
        if self.group.device != weight.device:
            self.group = self.group.to(weight.device)
        return rows if rows.dtype in WIDE_DTYPES else rows.float()

    def compute(self, weight: Tensor) -> Tensor:
        """Return `diag(s) W`, differentiable in W and in whatever `scales` uses."""
        if is_dtensor(weight):
            return like(weight, self.compute(weight.full_tensor()))
        with torch.autocast(weight.device.type, enabled=False):  # a norm in bfloat16 has two digits
            units = self.units(weight)
            scaled = units * self.scales(units)[:, None]
        return (scaled if self.axis == 0 else scaled.mT).reshape(weight.shape).to(weight.dtype)

    def effective(self, weight: Tensor) -> Tensor:
        """Return `diag(s) W` without its gradient."""
        return self.compute(weight).detach()
