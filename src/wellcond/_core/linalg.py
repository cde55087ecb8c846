"""The only caller of `torch.linalg`: half precision is widened, devices without the routine are left for the CPU.

Results do not depend on the number of threads: a draw must give the same bits in one process and in many, and matrix
products split differently over threads.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch
from torch import Tensor

EPS = torch.finfo(torch.float64).eps


@contextmanager
def one_thread() -> Iterator[None]:
    """Run torch's CPU kernels on one thread, then restore the caller's setting."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def few_threads(size: int) -> AbstractContextManager[None]:
    """One thread for a matrix too small to be shared out: threads that wait for each other are slow on a busy machine.

    At 1024 rows two threads save a quarter of the time on a quiet machine, and take ten times as long on a busy one.
    """
    return one_thread() if size <= 1024 else nullcontext()


def wide(x: Tensor, dtype: torch.dtype = torch.float64) -> Tensor:
    """Bring a tensor to the CPU in a dtype that LAPACK takes."""
    return x.detach().to(device="cpu", dtype=dtype)


def exact(x: Tensor, dtype: torch.dtype = torch.float64) -> Tensor:
    """Widen where the tensor is, or on the CPU if its device has no float64."""
    return x.detach().to(device="cpu" if x.device.type == "mps" else x.device, dtype=dtype)


def svdvals(weights: Tensor) -> Tensor:
    """Singular values in float64, largest first: `(…, D, d)` to `(…, min(D, d))`."""
    with few_threads(min(weights.shape[-2:])):
        sigma: Tensor = torch.linalg.svdvals(wide(weights))
    return sigma


def spectral_norms(weights: Tensor) -> Tensor:
    """The largest singular value of each matrix in float64, from the smaller Gram matrix: `(…, D, d)` to `(…)`.

    >>> spectral_norms(torch.tensor([[[3.0, 0.0], [0.0, 4.0], [0.0, 0.0]]]))
    tensor([4.], dtype=torch.float64)
    """
    exact = wide(weights)
    tall = exact if exact.shape[-2] >= exact.shape[-1] else exact.mT
    with one_thread():
        largest: Tensor = torch.linalg.eigvalsh(tall.mT @ tall)[..., -1]
    return largest.clamp(min=0).sqrt()


def condition_numbers(weights: Tensor) -> Tensor:
    """κ = σ_max ÷ σ_min per matrix in float64, `inf` where the matrix is rank deficient to that precision.

    >>> condition_numbers(torch.tensor([[[2.0, 0.0], [0.0, 1.0]], [[1.0, 1.0], [1.0, 1.0]]]))
    tensor([2., inf], dtype=torch.float64)
    """
    return conditions(svdvals(weights), max(weights.shape[-2:]))


def zero_below(largest: Tensor, longest: int, eps: float = EPS) -> Tensor:
    """Threshold below which a singular value counts as zero: σ_max · longer side · relative rounding of the entries."""
    return largest * longest * eps


def matrix_rank(matrix: Tensor, eps: float = EPS) -> int:
    """The numerical rank of a matrix whose entries have this relative rounding."""
    sigma = svdvals(matrix)
    return int((sigma > zero_below(sigma[0], max(matrix.shape), eps)).sum())


def conditions(sigma: Tensor, longest: int) -> Tensor:
    """κ from singular values at hand, of matrices whose longer side is given."""
    smallest = torch.where(sigma[..., -1:] > zero_below(sigma[..., :1], longest), sigma[..., -1:], 0.0)
    return (sigma[..., :1] / smallest)[..., 0].nan_to_num(nan=math.inf, posinf=math.inf)


def eigenvalues(symmetric: Tensor) -> Tensor:
    """Eigenvalues of symmetric matrices in float64, smallest first: `(…, m, m)` to `(…, m)`."""
    with few_threads(symmetric.shape[-1]):
        values: Tensor = torch.linalg.eigvalsh(wide(symmetric))
    return values.to(symmetric.device)


def eigh(symmetric: Tensor) -> tuple[Tensor, Tensor]:
    """Eigenvalues of a small symmetric matrix, smallest first, and its eigenvectors as columns."""
    values, vectors = torch.linalg.eigh(exact(symmetric))
    return values, vectors


def triangular_factor(matrix: Tensor) -> Tensor:
    """R of the QR factorisation: `(m, n)` to `(min(m, n), n)`."""
    r: Tensor = torch.linalg.qr(exact(matrix), mode="r")[1]
    return r


def orthonormal_columns(matrix: Tensor) -> Tensor:
    """Q of the thin QR factorisation, in the matrix's own precision: `(m, n)` to `(m, min(m, n))`."""
    q: Tensor = torch.linalg.qr(matrix)[0]
    return q


def cholesky(gram: Tensor) -> Tensor | None:
    """L of G = L Lᵀ, None if a matrix is not positive definite to working precision."""
    factor, failed = torch.linalg.cholesky_ex(exact(gram))
    return None if failed.any() else factor


def solve_triangle(r: Tensor, right: Tensor, *, transposed: bool = False) -> Tensor:
    """R⁻¹ B, or R⁻ᵀ B, for an upper triangle: `(n, n)`, `(n, k)` to `(n, k)`."""
    solution: Tensor = torch.linalg.solve_triangular(r.mT if transposed else r, right, upper=not transposed)
    return solution


def orthonormal_basis(matrix: Tensor, eps: float) -> Tensor:
    """An orthonormal basis of the span of columns with this relative rounding: `(m, n)` to `(m, rank)`."""
    u, sigma, _ = torch.linalg.svd(exact(matrix), full_matrices=False)
    basis: Tensor = u[:, : int((sigma > zero_below(sigma[0], max(matrix.shape), eps)).sum())]
    return basis


def svd(matrix: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Thin `U, S, Vᵀ` in float64 with the sign of each pair fixed, so that equal matrices give equal factors."""
    with one_thread():
        u, s, vt = torch.linalg.svd(wide(matrix), full_matrices=False)
    sign = fixed_signs(u)
    return u * sign, s, vt * sign.mT


def leading_triples(matrix: Tensor, count: int) -> tuple[Tensor, Tensor, Tensor]:
    """The largest `count` singular triples `U, S, Vᵀ` of an m × n matrix in float64, from the smaller Gram matrix.

    Half the time of an SVD. A Gram matrix squares the condition, so U is orthonormal to ε (σ₁ ÷ σ_count)² only: for
    triples that are within a few orders of the largest.

    >>> u, s, vt = leading_triples(torch.tensor([[0.0, 3.0, 0.0], [1.0, 0.0, 0.0]]), 1)
    >>> u.T.tolist(), s.tolist(), vt.tolist()
    ([[1.0, 0.0]], [3.0], [[0.0, 1.0, 0.0]])
    """
    exact = wide(matrix)
    tall = exact if exact.shape[0] >= exact.shape[1] else exact.mT
    with one_thread():
        v = torch.linalg.eigh(tall.mT @ tall)[1][:, -count:].flip(-1)
        u = tall @ v
    s = u.square().sum(0).sqrt()
    u = u / s.clamp(min=torch.finfo(torch.float64).tiny)
    left, right = (u, v) if tall is exact else (v, u)
    sign = fixed_signs(left)
    return left * sign, s, (right * sign).mT


def fixed_signs(left: Tensor) -> Tensor:
    """Signs that make the largest entry of each column positive, so that equal matrices give equal factors."""
    return torch.where(left.gather(-2, left.abs().argmax(-2, keepdim=True)) < 0, -1.0, 1.0).to(left.dtype)


def orthonormal_rows(draws: Tensor) -> Tensor:
    """Orthonormalise the rows of Gaussian draws `(heads, m, n)`, m ≤ n, in float32; the result is Haar distributed.

    The triangular factor of QR with a positive diagonal is unique, so Cholesky of the Gram matrix gives the same result
    by matrix products, with an error that grows with κ²: in float32 where κ is surely small, in float64 where it is
    surely moderate (16 columns to spare make a small σ_min impossible, Rudelson & Vershynin 2009), else by QR.
    """
    m, n = draws.shape[-2:]
    with one_thread():
        if gaussian_condition(m, n) < 5:
            rows = wide(draws, torch.float32).contiguous()
            return _inverse_factor(_gram(rows)).to(torch.float32) @ rows
        exact = wide(draws)
        if n - m >= 16:
            return (_inverse_factor(exact @ exact.mT) @ exact).to(torch.float32)
        q, r = torch.linalg.qr(exact.mT)
        sign = torch.where(r.diagonal(dim1=-2, dim2=-1) < 0, -1.0, 1.0).to(q.dtype)
        result: Tensor = (q * sign[:, None, :]).mT
        return result.to(torch.float32)


def gaussian_condition(m: int, n: int) -> float:
    """A bound that κ of a Gaussian m × n matrix exceeds with probability below 3e-14 (Davidson & Szarek 2001).

    Singular values lie within √n ± (√m + t) but for a probability of 2 exp(−t²/2); here t = 8.

    >>> round(gaussian_condition(64, 768), 1), gaussian_condition(64, 128)
    (3.7, inf)
    """
    spread = math.sqrt(m) + 8
    return (math.sqrt(n) + spread) / (math.sqrt(n) - spread) if math.sqrt(n) > spread else math.inf


def _inverse_factor(gram: Tensor) -> Tensor:
    """L⁻¹ for G = L Lᵀ, float64."""
    eye = torch.eye(gram.shape[-1], dtype=torch.float64).expand_as(gram)
    inverse: Tensor = torch.linalg.solve_triangular(torch.linalg.cholesky(gram), eye, upper=False)
    return inverse


def _gram(rows: Tensor) -> Tensor:
    """R Rᵀ in float64 from float32 products of 64 terms each: float64 accuracy where it counts, at float32 speed."""
    missing = -rows.shape[-1] % 64
    padded = torch.nn.functional.pad(rows, (0, missing)) if missing else rows
    gram = torch.empty(*rows.shape[:-1], rows.shape[-2], dtype=torch.float64)
    for slot, matrix in zip(gram, padded, strict=True):  # one matrix at a time stays in the cache
        chunks = matrix.view(len(matrix), -1, 64).transpose(0, 1)
        torch.sum(chunks @ chunks.mT, 0, dtype=torch.float64, out=slot)
    return gram
