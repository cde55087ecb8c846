"""The outputs of a model on a batch, and how much they differ from those of before."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from wellcond.attention.capture import evaluating, run_model
from wellcond.attention.storage import reshard
from wellcond.attention.undisturbed import undisturbed


@torch.no_grad()
def model_outputs(root: nn.Module, batch: Any) -> list[Tensor]:
    """Return every floating-point tensor that a model gives in evaluation mode; the model stays as it was."""
    with undisturbed(root), evaluating(root):
        out = run_model(root, batch)
    reshard(root)
    values = out.values() if hasattr(out, "values") and not isinstance(out, Tensor) else out
    leaves = tree_leaves(list(values) if not isinstance(values, Tensor) else values)
    return [x.detach().clone() for x in leaves if isinstance(x, Tensor) and x.is_floating_point()]


def largest_change(before: list[Tensor], after: list[Tensor]) -> float:
    """Return the largest difference of an output ÷ the largest entry of that output.

    >>> largest_change([torch.tensor([1.0, 2.0])], [torch.tensor([1.0, 2.5])])
    0.25
    """
    changes = [0.0]
    for old, new in zip(before, after, strict=True):
        known = torch.isfinite(old)
        if known.any():
            difference = (new.double() - old.double())[known].abs().max()
            changes.append(float(difference / old.double()[known].abs().max().clamp_min(1e-300)))
    return max(changes)
