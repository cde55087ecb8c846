"""J as a matrix that need not exist: its smaller Gram matrix, its triangular factor, its blocks' norms, and itself.

Rows are (query row, output coordinate), columns (role, input coordinate, head coordinate); see `wellcond.jacobian`.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from wellcond.jacobian.blocked_qr import triangle
from wellcond.jacobian.lanczos import lanczos_largest_eigenvalue
from wellcond.jacobian.softmax_closed_form import CHUNK_ENTRIES

NORM_RESIDUAL = 1e-7  # relative, of a squared norm: its error is at most this, and away from clusters its square


class JacobianOperator(ABC):
    """A matrix given by chunks of its rows or columns."""

    shape: tuple[int, int]

    @abstractmethod
    def row_chunks(self) -> Iterator[Tensor]:
        """Yield all rows, some at a time, `(c, columns)`; the caller may overwrite them."""

    @abstractmethod
    def column_chunks(self) -> Iterator[Tensor]:
        """Yield all columns, some at a time, transposed: `(c, rows)`; the caller may overwrite them."""

    def row_gram(self) -> Tensor:
        """J Jᵀ; side by side, the head's tangent kernel."""
        return _sum_of_squares(self.column_chunks())

    def column_gram(self) -> Tensor:
        """JᵀJ."""
        return _sum_of_squares(self.row_chunks())

    def gram(self) -> Tensor:
        """J Jᵀ or JᵀJ, whichever is smaller."""
        return self.row_gram() if self.wide else self.column_gram()

    def triangle(self) -> Tensor:
        """R with the singular values of J, of the smaller of its two sizes."""
        return triangle(self.column_chunks() if self.wide else self.row_chunks(), min(self.shape))

    def matrix(self) -> Tensor:
        """J itself, `(rows, columns)`."""
        return torch.cat(list(self.row_chunks()))

    @property
    def wide(self) -> bool:
        """Whether there are at most as many rows as columns."""
        return self.shape[0] <= self.shape[1]


class Blocks(JacobianOperator):
    """J whose columns are blocks, one for each role, side by side."""

    sizes: tuple[int, ...]  # columns of each block

    @abstractmethod
    def norms(self) -> list[float]:
        """The spectral norm of each block."""

    @abstractmethod
    def weighted(self, weights: Sequence[float]) -> Blocks:
        """J with each block multiplied by a number."""

    def column_weights(self, weights: Sequence[float], like: Tensor) -> Tensor:
        """The number that each column is multiplied by, on the device of another tensor."""
        return like.new_tensor(weights).repeat_interleave(torch.tensor(self.sizes, device=like.device))


def _sum_of_squares(chunks: Iterator[Tensor]) -> Tensor:
    first = next(chunks)
    total = first.mT @ first
    for chunk in chunks:
        total.addmm_(chunk.mT, chunk)
    return total


class Dense(Blocks):
    """J of any mixing, whole in memory; one block unless told otherwise."""

    def __init__(self, matrix: Tensor, sizes: tuple[int, ...] | None = None) -> None:
        self._matrix = matrix
        self.shape = (matrix.shape[0], matrix.shape[1])
        self.sizes = (matrix.shape[1],) if sizes is None else sizes

    def matrix(self) -> Tensor:
        """J itself."""
        return self._matrix

    def row_chunks(self) -> Iterator[Tensor]:
        """Copies of some rows."""
        yield from (chunk.clone() for chunk in torch.split(self._matrix, max(1, CHUNK_ENTRIES // self.shape[1])))

    def column_chunks(self) -> Iterator[Tensor]:
        """Copies of some columns."""
        yield from (chunk.mT.clone() for chunk in torch.split(self._matrix, max(1, CHUNK_ENTRIES // self.shape[0]), 1))

    def norms(self) -> list[float]:
        """By products with each block."""
        blocks = torch.split(self._matrix, list(self.sizes), 1)
        return [norm_by_products(b.matmul, b.mT.matmul, (b.shape[0], b.shape[1]), b.device) for b in blocks]

    def weighted(self, weights: Sequence[float]) -> Dense:
        """Multiply the columns, in a copy."""
        return Dense(self._matrix * self.column_weights(weights, self._matrix), self.sizes)


def norm_by_products(
    apply: Callable[[Tensor], Tensor], back: Callable[[Tensor], Tensor], shape: tuple[int, int], device: torch.device
) -> float:
    """σ_max of a matrix from products with it and with its transpose, on its smaller side."""
    square = (lambda u: apply(back(u))) if shape[0] <= shape[1] else (lambda v: back(apply(v)))
    value, _ = lanczos_largest_eigenvalue(square, min(shape), device, tolerance=NORM_RESIDUAL)
    return math.sqrt(max(value, 0.0))


class Kept(Blocks):
    """Blocks whose Gram matrix and triangle are made once; of a tall J they serve any weights of the blocks too."""

    def __init__(self, blocks: Blocks) -> None:
        self._blocks, self.shape, self.sizes = blocks, blocks.shape, blocks.sizes
        self._gram: Tensor | None = None
        self._triangle: Tensor | None = None

    def row_chunks(self) -> Iterator[Tensor]:
        """Those of the blocks."""
        return self._blocks.row_chunks()

    def column_chunks(self) -> Iterator[Tensor]:
        """Those of the blocks."""
        return self._blocks.column_chunks()

    def norms(self) -> list[float]:
        """The spectral norm of each block."""
        return self._blocks.norms()

    def gram(self) -> Tensor:
        """J Jᵀ or JᵀJ, whichever is smaller."""
        self._gram = self._blocks.gram() if self._gram is None else self._gram
        return self._gram

    def triangle(self) -> Tensor:
        """R with the singular values of J."""
        self._triangle = self._blocks.triangle() if self._triangle is None else self._triangle
        return self._triangle

    def weighted(self, weights: Sequence[float]) -> Kept:
        """J D for weights D of the blocks: of a tall J = QR, R D and D JᵀJ D are at hand."""
        found = Kept(self._blocks.weighted(weights))
        if not self.wide:
            for name in ("_gram", "_triangle"):
                made = getattr(self, name)
                if made is not None:
                    columns = self.column_weights(weights, made)
                    setattr(found, name, made * columns * (columns[:, None] if name == "_gram" else 1.0))
        return found
