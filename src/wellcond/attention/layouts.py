"""`Layout` and `Strided`: the numbers of one role and head in a stored parameter, by index arithmetic.

Every matrix met in practice (separate, block-fused, head-interleaved, transposed, grouped-query) puts the `d` numbers
of a head on an arithmetic progression along one axis. A `Layout` is those progressions and nothing else, so no scheme
and no measure ever sees the storage: they see `(heads, D, d)`. Parameters of more axes (XLNet's `(D, heads, d)`, banks
of all layers' weights) are `Strided`, with the same interface.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from torch import Tensor

from wellcond.errors import WeightError


@dataclass(frozen=True)
class Layout:
    """Head `h` owns the indices `starts[h], starts[h] + step, …` (`width` of them) of one axis of the storage.

    Args:
        starts: first index of each head along `axis`.
        width: `d`, the numbers per head.
        step: distance between consecutive numbers of a head (1 unless heads vary fastest).
        axis: 0 where the storage is `(out, in)` as in `nn.Linear`; 1 where it is `(in, out)`, and for the columns
            that an output projection reads.

    >>> import torch
    >>> fused = torch.arange(12.).reshape(6, 2)                     # q, k, v of one head of width 2; D = 2
    >>> contiguous(heads=1, width=2, first=2).read(fused)           # the key block, as (heads, D, d)
    tensor([[[4., 6.],
             [5., 7.]]])
    """

    starts: tuple[int, ...]
    width: int
    step: int = 1
    axis: int = 0

    @property
    def heads(self) -> int:
        """Number of heads."""
        return len(self.starts)

    @property
    def stop(self) -> int:
        """One past the largest index used."""
        return max(self.starts) + (self.width - 1) * self.step + 1

    def _slices(self, storage: Tensor, axis: int) -> list[Tensor]:
        if self.stop > storage.shape[axis]:
            raise WeightError(
                f"a stored tensor of shape {tuple(storage.shape)} has {storage.shape[axis]} entries along axis {axis}, "
                f"but {self.heads} heads of width {self.width} reach index {self.stop - 1}; check the head count"
            )
        # narrow, then stride: works on the tensor's own memory, so writing into a slice writes the parameter.
        index = [slice(None)] * storage.ndim
        slices = []
        for start in self.starts:
            index[axis] = slice(start, start + (self.width - 1) * self.step + 1, self.step)
            slices.append(storage[tuple(index)])
        return slices

    def views(self, storage: Tensor) -> list[Tensor]:
        """Per head, a `(D, d)` view that aliases the storage (a matrix, or a 1×1 convolution)."""
        matrix = as_matrix(storage)
        heads = self._slices(matrix, self.axis)
        return [head.T for head in heads] if self.axis == 0 else heads

    def read(self, storage: Tensor) -> Tensor:
        """Copy out `(heads, D, d)`."""
        # Stacked as (heads, d, D) where that is the storage order: one contiguous copy per head.
        views = self.views(storage)
        if self.axis == 0:
            return stack([view.T for view in views]).transpose(1, 2)
        return stack(views)

    def matrix(self, storage: Tensor) -> Tensor:
        """All heads side by side, `(D, heads·d)`: a view where they lie so, else a copy."""
        return joined(self.read(storage)) if self._whole is None else self._whole.views(storage)[0]

    @cached_property
    def _whole(self) -> Layout | None:
        """All heads as one of their total width, where they lie side by side."""
        first, total = self.starts[0], self.heads * self.width
        beside = self.step == 1 and self.starts == tuple(range(first, first + total, self.width))
        return Layout((first,), total, axis=self.axis) if beside else None

    def write_(self, storage: Tensor, weight: Tensor) -> None:
        """Copy `(heads, D, d)` in; every number outside these heads keeps its bits."""
        for view, head in zip(self.views(storage), weight, strict=True):
            view.copy_(head)

    def shape(self, storage: Tensor) -> tuple[int, int, int]:
        """`(heads, D, d)`, known on the meta device too."""
        return self.heads, as_matrix(storage).shape[1 - self.axis], self.width

    def stored_shape(self, storage: Tensor) -> tuple[int, int]:
        """`(in, out)` of the whole stored matrix, which may hold several roles."""
        rows, columns = as_matrix(storage).shape
        return (columns, rows) if self.axis == 0 else (rows, columns)

    def read_vector(self, storage: Tensor) -> Tensor:
        """Copy a bias out as `(heads, d)`."""
        flat = storage.view(-1)
        if self._whole is None:
            return stack(self._slices(flat, 0))
        return self._whole._slices(flat, 0)[0].reshape(self.heads, self.width).clone()

    def write_vector_(self, storage: Tensor, vector: Tensor) -> None:
        """Copy a bias `(heads, d)` in."""
        for view, head in zip(self._slices(storage.view(-1), 0), vector, strict=True):
            view.copy_(head)


@dataclass(frozen=True)
class Strided:
    """Entry `(i, j)` of head `h` is number `starts[h] + i · row_step + j · step` of the flattened parameter.

    For parameters that are no matrix. What works on rows or columns of a matrix asks `on_matrix`, which refuses it.

    Args:
        starts: first number of each head.
        rows: `D`, the numbers that each unit reads.
        width: `d`, the numbers per head.
        row_step: distance from one of the `D` to the next.
        step: distance from one of the `d` to the next.

    >>> import torch
    >>> stored = torch.arange(12.).reshape(2, 3, 2)                     # (D, heads, d)
    >>> Strided(starts=(0, 2, 4), rows=2, width=2, row_step=6).read(stored)[1]
    tensor([[2., 3.],
            [8., 9.]])
    """

    starts: tuple[int, ...]
    rows: int
    width: int
    row_step: int
    step: int = 1

    @property
    def heads(self) -> int:
        """Number of heads."""
        return len(self.starts)

    def views(self, storage: Tensor) -> list[Tensor]:
        """Per head, a `(D, d)` view that aliases the storage."""
        last = max(self.starts) + (self.rows - 1) * self.row_step + (self.width - 1) * self.step
        if last >= storage.numel():
            raise WeightError(
                f"a stored tensor of shape {tuple(storage.shape)} has {storage.numel()} numbers, but {self.heads} "
                f"heads of {self.rows} × {self.width} reach number {last}; check the head count"
            )
        if not storage.is_contiguous():
            raise WeightError(f"a stored tensor of shape {tuple(storage.shape)} does not lie in memory in order")
        shape, strides, first = (self.rows, self.width), (self.row_step, self.step), storage.storage_offset()
        return [storage.as_strided(shape, strides, first + start) for start in self.starts]

    def read(self, storage: Tensor) -> Tensor:
        """Copy out `(heads, D, d)`."""
        return stack(self.views(storage))

    def matrix(self, storage: Tensor) -> Tensor:
        """Copy out all heads side by side, `(D, heads·d)`."""
        return joined(self.read(storage))

    def write_(self, storage: Tensor, weight: Tensor) -> None:
        """Copy `(heads, D, d)` in; every number outside these heads keeps its bits."""
        for view, head in zip(self.views(storage), weight, strict=True):
            view.copy_(head)

    def shape(self, storage: Tensor) -> tuple[int, int, int]:
        """`(heads, D, d)`, known on the meta device too."""
        return self.heads, self.rows, self.width

    def stored_shape(self, storage: Tensor) -> tuple[int, int]:
        """`(in, out)` of these heads: the rest of the parameter may be of other layers."""
        return self.rows, self.heads * self.width


AnyLayout = Layout | Strided


def on_matrix(layout: AnyLayout) -> Layout:
    """Return a layout if its heads are rows or columns of a stored matrix, else raise."""
    if isinstance(layout, Strided):
        raise WeightError(
            "these weights lie in a parameter of more than two axes, or in a bank of several layers: a head is no set "
            "of rows or columns of a stored matrix, which this needs; leave these layers out"
        )
    return layout


def joined(weight: Tensor) -> Tensor:
    """Put the heads side by side: `(heads, D, d)` to `(D, heads·d)`."""
    return weight.transpose(0, 1).flatten(1)


def stack(tensors: list[Tensor]) -> Tensor:
    """Stack copies along a new first axis."""
    out = tensors[0].new_empty((len(tensors), *tensors[0].shape))
    for slot, tensor in zip(out, tensors, strict=True):
        slot.copy_(tensor)
    return out


def as_matrix(storage: Tensor) -> Tensor:
    """View a matrix, a 1×1 convolution kernel or a table `(1, N, D)` as a matrix."""
    if storage.ndim == 2:
        return storage
    if storage.ndim > 2 and storage.shape[2:].numel() == 1:
        return storage.view(storage.shape[0], storage.shape[1])
    if storage.ndim == 3 and storage.shape[0] == 1:
        return storage[0]
    raise WeightError(f"a stored tensor of shape {tuple(storage.shape)} is neither a matrix nor a 1×1 convolution")


def contiguous(heads: int, width: int, first: int = 0, axis: int = 0) -> Layout:
    """Heads one after the other from index `first`: separate weights, and each block of a block-fused one."""
    return Layout(tuple(first + h * width for h in range(heads)), width, axis=axis)


def interleaved(heads: int, width: int, part: int, parts: int = 3, axis: int = 0) -> Layout:
    """`[head, part, d]` order, as in GPT-NeoX, BLOOM, Megatron and MaxViT-rw: each head holds its own q, k, v.

    >>> interleaved(heads=2, width=4, part=1).starts
    (4, 16)
    """
    return Layout(tuple((h * parts + part) * width for h in range(heads)), width, axis=axis)


def grouped(groups: int, per_group: int, width: int, part: str, axis: int = 0) -> Layout:
    """`[group, (queries of the group, key, value), d]` order, as in Falcon and Megatron grouped-query weights.

    >>> grouped(groups=2, per_group=2, width=1, part="query").starts
    (0, 1, 4, 5)
    >>> grouped(groups=2, per_group=2, width=1, part="value").starts
    (3, 7)
    """
    size = per_group + 2
    slots = {"query": range(per_group), "key": [per_group], "value": [per_group + 1]}[part]
    return Layout(tuple((g * size + s) * width for g in range(groups) for s in slots), width, axis=axis)


def head_fastest(heads: int, width: int, first: int = 0, axis: int = 0) -> Layout:
    """`[d, head]` order: neighbouring rows belong to different heads."""
    return Layout(tuple(range(first, first + heads)), width, step=heads, axis=axis)
