"""ScalingRule: the effective weight is `diag(s) W` for the output units of the conditioned heads."""

from __future__ import annotations

from abc import abstractmethod

import torch
from torch import Tensor

from wellcond._core.deferred_torch import is_dtensor
from wellcond.attention.layouts import as_matrix
from wellcond.attention.storage import WIDE_DTYPES, like
from wellcond.conditioning.storage.rule import Rule
from wellcond.conditioning.target_weights import TargetWeight


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
        self.axis = weight.parts[0].layout.axis
        starts = [(part.layout, start) for part in weight.parts for start in part.layout.starts]
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
