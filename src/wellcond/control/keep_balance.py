"""Keep the factors of a head's products of like size, by W_Q a, W_K/a and W_V r, W_O/r: the function stays as it is."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from wellcond._core.linalg import wide
from wellcond.attention.projection import Projection
from wellcond.attention.view import AttentionLayer
from wellcond.conditioning.parameter_writes import ParameterWrites
from wellcond.control.log import ControlRecord
from wellcond.scale.balance import apply_maps_
from wellcond.scale.optimizer_moments import check_optimizer, rescale_moments_
from wellcond.scale.products import PAIRS

LARGEST = 1.1  # factor of one call: a training loop should not see its weights jump


def keep_balance(
    layer: AttentionLayer,
    pair: str,
    limit: float,
    step: int,
    writes: ParameterWrites,
    optimizer: torch.optim.Optimizer,
) -> Iterator[ControlRecord]:
    """Move factors whose norms differ by more than the limit towards each other; the optimizer's moments go along."""
    projections: list[Projection] = [getattr(layer, role) for role in PAIRS[pair]]
    groups = min(p.heads for p in projections)
    sizes = [wide(p.read()).reshape(groups, -1).norm(dim=1) for p in projections]
    ratio = sizes[0] / sizes[1]
    apart = torch.maximum(ratio, 1 / ratio)
    above = (apart > limit) & torch.isfinite(apart)
    if not bool(above.any()):
        return
    check_optimizer(optimizer, projections, "scalar")
    factor = (1 / ratio).sqrt().clamp(1 / LARGEST, LARGEST)
    factor = torch.where(above, factor, 1.0)
    changes = [(p, _maps(p, factors)) for p, factors in zip(projections, (factor, 1 / factor), strict=True)]
    for projection, maps in changes:
        apply_maps_(projection, maps, writes)
    writes.also_undo(rescale_moments_(optimizer, changes))
    now = apart / torch.maximum(factor, 1 / factor) ** 2
    for group in torch.nonzero(above)[:, 0].tolist():
        name = f"{layer.name} {'/'.join(PAIRS[pair])}"
        yield ControlRecord(step, "balance", name, group, "ratio", float(apart[group]), float(now[group]))


def _maps(projection: Projection, factors: Tensor) -> Tensor:
    """The map of each head of a projection, `(heads, d, d)`."""
    mine = factors.repeat_interleave(projection.heads // len(factors))
    return torch.diag_embed(mine[:, None].expand(-1, projection.width))
