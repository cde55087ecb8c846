r"""Coordinates of a head: pairs of maps that change its factors and leave their product as it is.

W_1 → W_1 G and W_2 → W_2 G^{-T}, G any invertible d × d, leave W_1 W_2ᵀ unchanged: W_Q with W_K, and W_V with W_Oᵀ.
With $W_1 W_2^T = U S V^T$ the balanced choice is $W_1 G = U S^{1/2}$, $W_2 G^{-T} = V S^{1/2}$: both have κ = √κ(S),
and no other has a smaller ‖W_1‖² + ‖W_2‖². G comes from the d × d triangles of the factors.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from wellcond._core.linalg import (
    EPS,
    cholesky,
    conditions,
    few_threads,
    solve_triangle,
    svdvals,
    triangular_factor,
    zero_below,
)

MapGroup = Literal["scalar", "full"]
BalanceTarget = Literal["balanced", "orthogonal query"]


@dataclass(frozen=True)
class Coordinates:
    """New coordinates of the groups of one layer.

    Args:
        first: G, `(groups, d, d)`.
        second: G^{-T}.
        triangles: R of both factors, whose singular values they are.
    """

    first: Tensor
    second: Tensor
    triangles: tuple[Tensor, Tensor]

    def product(self) -> list[float]:
        """κ of the product, by group."""
        return _kappas(self.triangles[0] @ self.triangles[1].mT)

    def before(self) -> list[tuple[float, float]]:
        """κ of both factors, by group."""
        return list(zip(*map(_kappas, self.triangles), strict=True))

    def after(self) -> list[tuple[float, float]]:
        """The same in the new coordinates."""
        moved = self.triangles[0] @ self.first, self.triangles[1] @ self.second
        return list(zip(*map(_kappas, moved), strict=True))


def _kappas(triangles: Tensor) -> list[float]:
    return conditions(svdvals(triangles), triangles.shape[-1]).tolist()


def triangle_of(factor: Tensor, exact_to: float) -> Tensor:
    """R with RᵀR = WᵀW, `(groups, rows, d)` to `(groups, d, d)`.

    By Cholesky where the square of κ, which it costs, is below the rounding of the weights themselves; else by QR.
    """
    gram = factor.mT @ factor
    lower = cholesky(gram)
    if lower is not None:
        spread = lower.diagonal(dim1=1, dim2=2).abs()  # their ratio is at most κ, and seldom a tenth of it
        if float((spread.amax(1) / spread.amin(1)).max()) ** 2 * 100 * EPS < exact_to:
            return lower.mT
    return triangular_factor(factor)


def full_maps(first: Tensor, second: Tensor, to: BalanceTarget, exact_to: float = EPS) -> Coordinates | str:
    """The balanced maps, or those that make the first factor orthonormal; a reason where a product lacks rank.

    Factors are `(groups, rows, d)` in float64, heads that share a map one below the other; `exact_to` is the rounding
    of the weights they were read from.

    >>> a, b = torch.randn(2, 1, 9, 3, dtype=torch.float64)
    >>> maps = full_maps(1000 * a, b, "balanced")
    >>> x, y = 1000 * a @ maps.first, b @ maps.second
    >>> torch.allclose(x @ y.mT, 1000 * a @ b.mT), torch.allclose(x.mT @ x, y.mT @ y)
    (True, True)
    """
    width = first.shape[2]
    if min(first.shape[1], second.shape[1]) < width:
        return f"heads of width {width} exceed what they read, so the product lacks rank"
    r1, r2 = triangle_of(first, exact_to), triangle_of(second, exact_to)
    with few_threads(width):
        u, s, vt = torch.linalg.svd(r1 @ r2.mT)
    if bool((s[:, -1] <= zero_below(s[:, 0], max(first.shape[1], second.shape[1]))).any()):
        return "a product lacks rank (or is zero), so coordinates are not determined"
    root = s.sqrt()[:, None, :]
    left, right = (root, root) if to == "balanced" else (torch.ones_like(root), root.square())
    maps = solve_triangle(r1, u * left), solve_triangle(r2, vt.mT * right)
    return Coordinates(*maps, (r1, r2))


def scalar_maps(first: Tensor, second: Tensor, kind: str = "scalar") -> Coordinates | str:
    """Numbers that make both factors equally large: one a group, or one for each pair of columns.

    Rotary embeddings turn columns i and i + d/2 together (`"halves"`), or 2i and 2i + 1 (`"neighbours"`).

    >>> a, b = torch.randn(2, 1, 9, 4, dtype=torch.float64)
    >>> maps = scalar_maps(8 * a, b)
    >>> torch.allclose((8 * a @ maps.first).norm(), (b @ maps.second).norm())
    True
    """
    squares = [(w.square().sum(1)) for w in (first, second)]  # by column
    sizes = [_pooled(square, kind).sqrt() for square in squares]
    if not all(bool((size > 0).all()) for size in sizes):
        return "a factor is zero, so it has no size to balance"
    ratio = (sizes[1] / sizes[0]).sqrt()
    triangles = triangular_factor(first), triangular_factor(second)
    return Coordinates(torch.diag_embed(ratio), torch.diag_embed(1 / ratio), triangles)


def _pooled(square: Tensor, kind: str) -> Tensor:
    """Sums over the columns that share a number, given back to each of them: `(groups, d)`."""
    if kind == "scalar":
        return square.sum(1, keepdim=True).expand_as(square)
    if kind == "halves":
        one, two = square.chunk(2, 1)
        return (one + two).repeat(1, 2)
    return (square[:, ::2] + square[:, 1::2]).repeat_interleave(2, 1)
