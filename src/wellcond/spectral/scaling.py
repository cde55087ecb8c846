"""Rules that scale output units: the weight that is used is `diag(s) W` for the units of the conditioned heads."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from wellcond.attention.layouts import as_matrix
from wellcond.attention.storage import WIDE, like
from wellcond.rules import Rule
from wellcond.spectral.weights import Weight


class ScaleRule(Rule):
    """`diag(s(W)) W`: a unit is what computes one number of q, k or v, a row of `nn.Linear` and a column of `Conv1D`.

    Units of other roles keep their bits: their scale is exactly 1.

    Attributes:
        groups: number of groups of units that are conditioned together.
        group: the group of each unit, `(units,)`; `groups` for a unit that is left alone.
    """

    def __init__(self, weight: Weight, per_head: bool) -> None:
        super().__init__()
        self.path = weight.path
        self.axis = weight.parts[0].layout.axis
        starts = [(part.layout, start) for part in weight.parts for start in part.layout.starts]
        self.groups = len(starts) if per_head else 1
        self.group = torch.full((as_matrix(weight.stored).shape[self.axis],), self.groups)
        for index, (layout, start) in enumerate(starts):
            last = start + (layout.width - 1) * layout.step
            self.group[start : last + 1 : layout.step] = index if per_head else 0
        self.group = self.group.to(weight.stored.device)

    def scales(self, units: Tensor) -> Tensor:
        """`s`, differentiable: `(units, inputs)` to `(units,)`."""
        raise NotImplementedError

    def units(self, weight: Tensor) -> Tensor:
        """A stored parameter as `(units, inputs)`; half precision is widened."""
        matrix = as_matrix(weight)
        rows = matrix if self.axis == 0 else matrix.mT
        return rows if rows.dtype in WIDE else rows.float()

    def compute(self, weight: Tensor) -> Tensor:
        """Differentiable in W and in whatever `scales` uses."""
        if isinstance(weight, DTensor):
            return like(weight, self.compute(weight.full_tensor()))
        self.follow(weight)
        with torch.autocast(weight.device.type, enabled=False):  # a norm in bfloat16 has two digits
            units = self.units(weight)
            scaled = units * self.scales(units)[:, None]
        return (scaled if self.axis == 0 else scaled.mT).reshape(weight.shape).to(weight.dtype)

    def follow(self, weight: Tensor) -> None:
        """Bring the rule's own tensors to where the weight is now."""
        if self.group.device != weight.device:
            self.group = self.group.to(weight.device)
