"""Weight Conditioning: every output unit of the query, key and value weights has unit norm."""

from __future__ import annotations

from typing import final

import torch
from torch import Tensor

from wellcond.conditioning.method import Correction, register_method
from wellcond.conditioning.storage.rule import ScalingRule, StatelessRule
from wellcond.conditioning.target_weights import TargetHeads, TargetWeight
from wellcond.errors import CheckpointError


@final
class RowNormRule(ScalingRule, StatelessRule):
    r"""`diag(1 / |W_j|) W`, so that the scale of a unit has no effect.

    Saratchandran et al., Weight Conditioning for Smooth Optimization of Neural Networks (ECCV 2024): row equilibration,
    the diagonal preconditioner that is within $\sqrt m$ of the best for κ (van der Sluis 1969), here
    $\hat W_{j:} = W_{j:} / \|W_{j:}\|_2$, recomputed in every forward pass with its gradient. A zero row stays zero.
    """

    def scales(self, units: Tensor) -> Tensor:
        """Return `1 / |W_j|` for the conditioned units."""
        square = units.square().sum(1)
        scaled = (self.group < self.groups) & (square > 0)
        # Chosen before the root, because the gradient of an unused branch is not zero but 0 · inf.
        return square.where(scaled, 1.0).sqrt().reciprocal()

    def invert(self, effective: Tensor) -> Tensor:
        """Return V itself where its units have unit norm, to the rounding of its dtype; refuse it elsewhere."""
        norms = self.units(effective).double().square().sum(1).sqrt()
        off = (norms - 1).abs().where((self.group < self.groups) & (norms > 0), 0.0)
        allowed = torch.finfo(effective.dtype).eps + 32 * torch.finfo(torch.float32).eps
        worst = int(off.argmax())
        if not off[worst] <= allowed:
            raise CheckpointError(
                f"'{self.path}' is not what a live weight_conditioning model exports (unit {worst} has norm "
                f"{float(norms[worst]):.6g}, not 1), so no trained weight gives it. If these are weights W to be "
                "conditioned, load them before wc.condition_, with as_original=True; to train them as they are, use a "
                "model that is not conditioned"
            )
        return effective.clone(memory_format=torch.contiguous_format)


@register_method
@final
class RowNorm(Correction):
    """Rows of unit norm, always live.

    >>> import torch, wellcond as wc
    >>> model = torch.nn.MultiheadAttention(8, 2)
    >>> c = wc.condition_(model, "weight_conditioning", roles="qk")
    >>> torch.allclose(model.in_proj_weight[:16].norm(dim=1), torch.ones(16))
    True
    >>> c.remove_()
    """

    name = "weight_conditioning"
    citation = "Saratchandran et al., Weight Conditioning for Smooth Optimization of Neural Networks, ECCV 2024"

    def check_options(self) -> None:
        """Do nothing: it has none."""

    def check_numbers(self) -> None:
        """Do nothing: a row of zeros stays one."""

    def bounds(self, part: TargetHeads, largest: Tensor) -> None:
        """Return None: no κ is promised."""

    def rule(self, weight: TargetWeight) -> RowNormRule:
        """Return one rule for all roles of a parameter."""
        return RowNormRule(weight)
