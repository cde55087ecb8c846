"""Theorem 3.8 of Spectral Conditioning: C = λ I, the same all through training."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from wellcond.attention.storage import full, like
from wellcond.rules import FixedGradient
from wellcond.spectral.weights import Part, Weight


@dataclass(frozen=True)
class Entries:
    r"""The few numbers of a stored parameter that a shift changes: flat indices, and what is added there.

    A D × d identity has min(D, d) non-zero entries, so the correction costs a thousandth of its matrix.
    """

    index: Tensor
    value: Tensor

    @staticmethod
    def of(dense: Tensor) -> Entries:
        """From a correction written out in full."""
        flat = dense.reshape(-1)
        index = flat.nonzero()[:, 0]
        return Entries(index, flat[index])

    def on(self, target: Tensor) -> Entries:
        """The same for a tensor's device and dtype."""
        return Entries(self.index.to(target.device), self.value.to(device=target.device, dtype=target.dtype))

    def add_(self, target: Tensor, factor: float = 1.0) -> None:
        """Add `factor · C` to a plain tensor of the parameter's shape."""
        mine = self.on(target)
        flat = target.view(-1) if target.is_contiguous() else target.flatten()
        flat.index_add_(0, mine.index, mine.value * factor)
        if flat.untyped_storage().data_ptr() != target.untyped_storage().data_ptr():
            target.copy_(flat.view(target.shape))

    def take(self, target: Tensor) -> Tensor:
        """A copy of a plain tensor's numbers at these entries."""
        return target.reshape(-1)[self.index.to(target.device)]

    def put_(self, target: Tensor, numbers: Tensor) -> None:
        """Write numbers at these entries of a plain tensor."""
        target[torch.unravel_index(self.index.to(target.device), target.shape)] = numbers


def identity(part: Part, shape: tuple[int, int, int], placement: str) -> Tensor:
    """λ I for each head, `(heads, D, d)`.

    `"head"` puts the identity on the first d coordinates of every head (the paper's reading); `"layer"` is the
    identity of the whole `D × heads·d` matrix, so that head h has coordinates `h·d … (h+1)·d − 1`.
    """
    heads, width, d = shape
    if placement == "layer":
        return part.strength * torch.eye(width, heads * d, dtype=torch.float64).view(width, heads, d).transpose(0, 1)
    return part.strength * torch.eye(width, d, dtype=torch.float64).expand(heads, width, d)


def entries(weight: Weight, placement: str) -> Entries:
    """The correction of one stored parameter."""
    return Entries.of(weight.dense(lambda part, shape: identity(part, shape, placement)))


def local_entries(target: Tensor, whole: Entries) -> Entries:
    """The entries that lie in this rank's shard, in the shard's own indices."""
    if not isinstance(target, DTensor):
        return whole
    dense = torch.zeros(target.shape, dtype=torch.float64, device=target.device)
    whole.add_(dense)
    return Entries.of(like(target, dense).to_local())


class ShiftRule(FixedGradient):
    """`W + C` with the same C always."""

    def __init__(self, change: Entries) -> None:
        super().__init__()
        self.change = change

    def corrected(self, weight: Tensor) -> Tensor:
        """A copy of W with the entries added."""
        effective = weight.clone(memory_format=torch.contiguous_format)
        self.change.add_(effective)
        return effective

    def compute(self, weight: Tensor) -> Tensor:
        """Differentiable in W, also inside a compiled graph."""
        if isinstance(weight, DTensor):
            return weight + like(weight, self.corrected(torch.zeros_like(full(weight))))
        mine = self.change.on(weight)
        return weight.reshape(-1).index_add(0, mine.index, mine.value).view(weight.shape)

    def invert(self, effective: Tensor) -> Tensor:
        """`V − C`."""
        weight = effective.clone(memory_format=torch.contiguous_format)
        self.change.add_(weight, -1.0)
        return weight
