"""Singular values of J by its smaller Gram matrix or by QR, each with its own precision."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from wellcond._core.linalg import EPS, cholesky, eigenvalues, few_threads, solve_triangle, svdvals
from wellcond.jacobian.lanczos import lanczos_largest_eigenvalue
from wellcond.jacobian.operator import JacobianOperator

MAX_ALL_VALUES = 1024  # size up to which all singular values are computed where it is not said whether to


@dataclass(frozen=True)
class SingularValues:
    """Singular values of one matrix, with what they can be trusted to."""

    method: str  # `"gram"` or `"factor"`
    n: int  # how many singular values there are
    largest: float
    smallest: float
    floor: float  # what is below this cannot be told from zero
    slack: float = 0.0  # relative error of `smallest` from stopping an iteration
    values: Tensor | None = None  # all, largest first; None where only two were computed, neither below the floor

    @property
    def rank(self) -> int:
        """Number of singular values above the floor."""
        return self.n if self.values is None else int((self.values > self.floor).sum())

    def at(self, index: int) -> float:
        """The singular value of this number, counted from 1; infinity before the first."""
        if index < 1:
            return math.inf
        return self.smallest if self.values is None else float(self.values[index - 1])

    def error(self, sigma: float) -> float:
        """Absolute error of σ: an eigenvalue of the Gram matrix is off by floor², its root by floor² ÷ 2σ."""
        rounding = self.floor
        if self.method == "gram" and sigma > self.floor:
            rounding = self.floor**2 / (2 * sigma)
        return rounding + self.slack * sigma


def by_gram(j: JacobianOperator, *, all_values: bool | None = None) -> SingularValues:
    """Singular values from the smaller Gram matrix: all, or two by Cholesky and Lanczos if it is definite.

    Forming the products and reducing the matrix each cost a few √n eps λ_max.
    """
    with few_threads(min(j.shape)):
        gram = j.gram()
    n = len(gram)
    if not (n <= MAX_ALL_VALUES if all_values is None else all_values):
        lower = cholesky(gram)
        if lower is not None:
            two = _two("gram", lambda v: gram @ v, lower.mT, n)
            if two.smallest > two.floor:
                return two
    return _all("gram", eigenvalues(gram).flip(0).clamp_min(0.0).sqrt())


def by_qr(j: JacobianOperator, *, all_values: bool | None = None) -> SingularValues:
    """Singular values from the triangular factor, backward stable: all, or two by Lanczos if none is 0."""
    with few_threads(min(j.shape)):
        r = j.triangle()
    n = len(r)
    diagonal = r.diagonal().abs()
    # σ_min ≤ min |r_ii|: below the resolution inverse iteration would only overflow.
    definite = bool(diagonal.min() > _floor("factor", float(diagonal.max()), n))
    if definite and not (n <= MAX_ALL_VALUES if all_values is None else all_values):
        two = _two("factor", lambda v: r.mT @ (r @ v), r, n)
        if two.smallest > two.floor:
            return two
    return _all("factor", svdvals(r))


def _all(method: str, values: Tensor) -> SingularValues:
    largest, n = float(values[0]), len(values)
    return SingularValues(method, n, largest, float(values[-1]), _floor(method, largest, n), values=values)


def _two(method: str, apply: Callable[[Tensor], Tensor], r: Tensor, n: int) -> SingularValues:
    """The largest and the smallest, given products with RᵀR and the triangle R."""
    top, _ = lanczos_largest_eigenvalue(apply, n, r.device, tolerance=1e-11)

    def invert(v: Tensor) -> Tensor:
        return solve_triangle(r, solve_triangle(r, v[:, None], transposed=True))[:, 0]

    inverse, residual = lanczos_largest_eigenvalue(invert, n, r.device, tolerance=1e-6)
    smallest = inverse**-0.5 if math.isfinite(inverse) else 0.0
    # Half of the relative residual of σ⁻², squared where no other eigenvalue is near; the half is the safe one.
    return SingularValues(method, n, top**0.5, smallest, _floor(method, top**0.5, n), residual / (2 * inverse))


def _floor(method: str, largest: float, n: int) -> float:
    share = 10 * math.sqrt(n) * EPS
    return largest * (math.sqrt(share) if method == "gram" else share)
