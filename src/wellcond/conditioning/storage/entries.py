"""Entries: the few numbers of a parameter that a fixed correction changes."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from wellcond._core.deferred_torch import is_dtensor
from wellcond.attention.storage import like


@dataclass(frozen=True)
class Entries:
    r"""Flat indices into a parameter, and what is added there.

    A D × d identity has min(D, d) non-zero entries, so the correction costs a thousandth of its matrix.
    """

    index: Tensor
    value: Tensor

    @staticmethod
    def of(dense: Tensor) -> Entries:
        """Find the entries of a correction written out in full."""
        flat = dense.reshape(-1)
        index = flat.nonzero()[:, 0]
        return Entries(index, flat[index])

    def on(self, target: Tensor) -> Entries:
        """Bring the entries to a tensor's device and dtype."""
        return Entries(self.index.to(target.device), self.value.to(device=target.device, dtype=target.dtype))

    def add_(self, target: Tensor, factor: float = 1.0) -> None:
        """Add `factor · C` to a plain tensor of the parameter's shape."""
        mine = self.on(target)
        flat = target.view(-1) if target.is_contiguous() else target.flatten()
        flat.index_add_(0, mine.index, mine.value * factor)
        if flat.untyped_storage().data_ptr() != target.untyped_storage().data_ptr():
            target.copy_(flat.view(target.shape))

    def take(self, target: Tensor) -> Tensor:
        """Copy a plain tensor's numbers at these entries."""
        return target.reshape(-1)[self.index.to(target.device)]

    def put_(self, target: Tensor, numbers: Tensor) -> None:
        """Write numbers at these entries of a plain tensor."""
        target[torch.unravel_index(self.index.to(target.device), target.shape)] = numbers

    def local(self, target: Tensor) -> Entries:
        """Return the entries that lie in this rank's shard, in the shard's own indices."""
        if not is_dtensor(target):
            return self
        dense = torch.zeros(target.shape, dtype=torch.float64, device=target.device)
        self.add_(dense)
        return Entries.of(like(target, dense).to_local())
