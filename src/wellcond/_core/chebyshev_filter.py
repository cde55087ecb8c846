r"""The leading singular triples of one of many like matrices, by a Chebyshev filter.

Where the singular values σ are known beforehand, as those of large random matrices are, a polynomial in MᵀM that is
small on the unwanted σ² and large on the wanted turns a random block of vectors into the wanted space, by products in
float32. Rayleigh–Ritz in float64 tells the vectors apart, and one correction makes up for the rounding. An SVD, and an
eigenproblem of MᵀM, find all vectors, of which a head needs one in twelve.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from wellcond._core.linalg import cholesky, eigh, fixed_signs, one_thread, orthonormal_columns, solve_triangle, wide

START = 30.0  # about how far a Gaussian block, half as wide again as wanted, is from the wanted space
REACHED = 2e-7  # what products in float32 hardly make better
FAR = 3e-5  # a space that is further away than this was not found
TOGETHER = 5  # steps in which vectors that grow together do not lose too many digits


@dataclass(frozen=True)
class ChebyshevFilter:
    """A polynomial in MᵀM for the `count` leading triples of square matrices whose other σ² end at `cut`.

    Args:
        count: how many triples are wanted.
        block: how many vectors are filtered; the more, the lower the degree.
        cut: end of the unwanted σ², up to which the polynomial stays within ±1.
        steps: half the polynomial's degree.
    """

    count: int
    block: int
    cut: float
    steps: int

    @staticmethod
    def pays(size: int, count: int) -> bool:
        """Whether a filter can take less time than an eigenproblem."""
        return size >= 512 and 6 * count <= size

    @classmethod
    def of(cls, sigma: Tensor, count: int) -> ChebyshevFilter | None:
        """Return the filter for singular values like these, largest first; None where it does not pay.

        >>> ChebyshevFilter.of(torch.linspace(2, 0, 1024), 64)
        ChebyshevFilter(count=64, block=96, cut=3.28, steps=18)
        """
        size, block = len(sigma), count + count // 2
        if not cls.pays(size, count):
            return None
        # Three digits do, and do not depend on how the values were rounded.
        wanted, cut = (float(f"{float(sigma[index]) ** 2:.3g}") for index in (count - 1, block))
        if not wanted > cut > 0:
            return None
        steps = math.ceil(math.log(START / REACHED) / math.acosh(2 * wanted / cut - 1) / 2)
        # An eigenproblem takes as long as eleven products of M with itself; what is not a step, as three.
        return cls(count, block, cut, steps) if steps * block <= 6 * size else None

    def triples(self, matrix: Tensor) -> tuple[Tensor, Tensor, Tensor] | None:
        """Thin `U, S, Vᵀ` of a matrix in float64, to float32 rounding; None if its singular values are others."""
        exact, scale = wide(matrix), math.sqrt(2 / self.cut)
        single = wide(matrix, torch.float32) * scale
        generator = torch.Generator().manual_seed(0)
        block = torch.randn(len(exact), self.block, generator=generator, dtype=torch.float32, device="cpu")
        with one_thread():
            first = _square(single)
            first.diagonal().sub_(1)  # the unwanted are within ±1
            second = _square(first).mul_(2)
            second.diagonal().sub_(1)  # T₂ of it: each step raises the degree by two
            for done in range(0, self.steps, TOGETHER):
                block = orthonormal_columns(block) if done else block
                block = _chebyshev(second, block, min(TOGETHER, self.steps - done))
            found = _ritz(exact, block)
            if found is None:
                return None
            u, v = found[0][:, : self.count] * scale, found[1][:, : self.count]
            squared = u.square().sum(0)
            residual = exact.T @ u * scale - v * squared
            if not (residual.norm(dim=0) <= FAR * (squared - 2)).all():
                return None
            change = _solved(first, second, squared - 1, residual)
            u, v = u + single @ change, v + change
        s = u.square().sum(0).sqrt()
        sign = fixed_signs(u)
        return u / s * sign, s / scale, (v * sign).mT


def _square(matrix: Tensor) -> Tensor:
    """AᵀA, with each product of two blocks of columns made once."""
    size = matrix.shape[1]
    square, width = matrix.new_empty(size, size), -(-size // 4)
    for start in range(0, size, width):
        stop = start + width
        square[start:stop, start:] = matrix[:, start:stop].T @ matrix[:, start:]
        square[stop:, start:stop] = square[start:stop, stop:].T
    return square


def _chebyshev(matrix: Tensor, block: Tensor, steps: int) -> Tensor:
    """T_steps(A) X."""
    before, now = block, matrix @ block
    for _ in range(steps - 1):
        before, now = now, torch.addmm(before, matrix, now, beta=-1, alpha=2)
    return now


def _ritz(matrix: Tensor, block: Tensor) -> tuple[Tensor, Tensor] | None:
    """M V and V, in float64, for the orthonormal V with the span of a block and VᵀMᵀM V diagonal, largest first."""
    x = wide(block)
    x /= x.norm(dim=0)
    y = matrix @ x
    factor = cholesky(x.T @ x)
    if factor is None:
        return None
    half = solve_triangle(factor.mT, y.T @ y, transposed=True)
    _, vectors = eigh(solve_triangle(factor.mT, half.mT, transposed=True))
    mixed = solve_triangle(factor.mT, vectors.flip(-1))
    return y @ mixed, x @ mixed


def _solved(first: Tensor, second: Tensor, t: Tensor, right: Tensor) -> Tensor:
    """(t − A)⁻¹ R for A and T₂(A) within ±1, from 1 ÷ (t − x) = (1 + 2 Σ ρ⁻ᵏ Tₖ(x)) ÷ √(t² − 1) up to k = 3."""
    root = (t.square() - 1).sqrt()
    rho, series = (t + root).to(torch.float32), right.to(torch.float32)
    terms = [first @ series, second @ series]
    terms.append(2 * (first @ terms[1]) - terms[0])
    for k, term in enumerate(terms, start=1):
        series = series + term * (2 / rho**k)
    return series / root.to(torch.float32)
