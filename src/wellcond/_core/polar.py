"""The polar factor of many small matrices by matrix products, and by SVD where those fail.

Everything works on rows: `(heads, m, n)` with m ≤ n, `R = H P` with `H = (R Rᵀ)^½` and `P Pᵀ = I`.
"""

from __future__ import annotations

import torch
from torch import Tensor

from wellcond._core.linalg import eigenvalues, svd, zero_below

SQUARINGS = 15
# x (a + b x² + c x⁴) is within 0.155 of 1 on [1/4, 1].
MINIMAX_COEFFICIENTS = (3.80968827, -7.12768967, 4.47258172)
TAYLOR_COEFFICIENTS = (1.875, -1.25, 0.375)  # an error e becomes 5/2 e³
MAX_STEPS = 12
MAX_RESIDUAL = 0.5  # from which Newton–Schulz steps converge


def largest_eigenvalue(gram: Tensor) -> Tensor:
    r"""λ_max of symmetric positive semi-definite matrices by repeated squaring: `(h, m, m)` to `(h,)`.

    The Rayleigh quotient of the largest column of $G^q$, $q = 2^{15}$, is low by at most
    $\max_\delta \delta (1-\delta)^{2q} < 1/(2eq) = 6 \cdot 10^{-6}$ per unit of weight of the other directions, close
    eigenvalues or not. A power vector kept between steps is cheaper only while it is good, and does not show when
    another direction has overtaken it. Squaring stops early where one direction is left. In float64, where digits
    count more than time, LAPACK is asked.

    >>> gram = torch.diag(torch.tensor([4.0, 3.999, 1.0]))
    >>> abs(float(largest_eigenvalue(gram[None])) / 4 - 1) < 1e-6
    True
    """
    if gram.dtype == torch.float64:
        return eigenvalues(gram)[:, -1]
    power = _scaled(gram)
    for done in range(1, SQUARINGS + 1):
        power = power @ power
        if done % 3 == 0:  # entries are at most m⁸ by now
            power = _scaled(power)
            trace = power.diagonal(dim1=-2, dim2=-1).sum(-1)
            if bool((trace * trace < 1.002 * power.square().sum((1, 2))).all()):
                break  # all the trace is in one eigenvalue
    column = power.diagonal(dim1=-2, dim2=-1).argmax(-1)
    vector = power[torch.arange(len(power), device=power.device), :, column]
    along = (gram @ vector[:, :, None])[:, :, 0]
    return ((vector * along).sum(-1) / vector.square().sum(-1)).nan_to_num()


def polar_rows(rows: Tensor, *, complete: bool = True) -> tuple[Tensor, Tensor]:
    r"""The polar factor and σ_max of each matrix: `(h, m, n)`, m ≤ n, to `(h, m, n)` and `(h,)`.

    $G^{-1/2}$ for the Gram matrix $G$ by quintic polynomials, whose products all commute; then Newton–Schulz steps on
    the factor itself restore what the Gram matrix lost (it squares κ) until $|P P^T - I|$ is at the last digits. A
    matrix that does not get there (κ above about 300 in float32, or rank deficient) is done again by SVD, whose
    orthonormal factors complete the null space, unless `complete` is False: then the factor is zero there. A zero
    matrix has σ_max = 0.

    >>> rows = torch.randn(3, 4, 9, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    >>> factor, largest = polar_rows(rows)
    >>> u, s, vt = torch.linalg.svd(rows, full_matrices=False)
    >>> torch.allclose(factor, u @ vt, atol=1e-12), torch.allclose(largest, s[:, 0], rtol=1e-5)
    (True, True)
    """
    sane = torch.isfinite(rows.sum((1, 2)))
    if not bool(sane.all()):  # training has diverged: say so by what comes out, not by an error from LAPACK
        factor, largest = polar_rows(torch.where(sane[:, None, None], rows, 0.0), complete=complete)
        return factor.where(sane[:, None, None], torch.nan), largest.where(sane, torch.nan)
    gram = rows @ rows.mT
    top = largest_eigenvalue(gram)
    factor, largest = _inverse_root(gram, top) @ rows, top.sqrt()
    eye = torch.eye(rows.shape[1], dtype=rows.dtype, device=rows.device)
    tolerance = 16 * torch.finfo(rows.dtype).eps
    for _ in range(4):
        overlap = factor @ factor.mT
        residual = (overlap - eye).abs().amax((1, 2))
        if bool(((residual < tolerance) | ~(residual < MAX_RESIDUAL)).all()):
            break
        factor = torch.baddbmm(factor, overlap, factor, beta=1.5, alpha=-0.5)
    failed = ~(residual < tolerance)
    if bool(failed.any()):
        u, s, vt = svd(rows[failed])
        if not complete:
            noise = zero_below(s[:, :1], rows.shape[2], torch.finfo(rows.dtype).eps)
            u = u * (s > noise)[:, None, :]
        factor[failed], largest[failed] = (u @ vt).to(rows), s[:, 0].to(rows)
    return factor, largest


def _inverse_root(gram: Tensor, top: Tensor) -> Tensor:
    """`G^-½` where the iteration converges; anything elsewhere, which the residual shows."""
    scale = top.clamp(min=torch.finfo(gram.dtype).tiny)[:, None, None]
    rest, coefficients = gram / scale, MINIMAX_COEFFICIENTS
    eye = torch.eye(gram.shape[-1], dtype=gram.dtype, device=gram.device)
    root = eye.expand_as(gram)
    for step in range(MAX_STEPS):
        a, b, c = coefficients
        quintic = torch.baddbmm(a * eye + b * rest, rest, rest, alpha=c)
        root = root @ quintic if step else quintic
        if step and bool(((rest - eye).square().sum((1, 2)) < 1e-4).all()):
            break  # an error of 0.005 here is 3e-7 after this step
        rest, coefficients = (rest @ quintic) @ quintic, TAYLOR_COEFFICIENTS
    # The recursion for `rest` has drifted by some units in the last place: one Newton–Schulz step on what it stands for
    # is cheaper here than on the factor.
    return (1.5 * root - 0.5 * (root @ (gram / scale) @ root.mT) @ root) / scale.sqrt()


def _scaled(gram: Tensor) -> Tensor:
    return gram / gram.diagonal(dim1=-2, dim2=-1).amax(-1).clamp(min=torch.finfo(gram.dtype).tiny)[:, None, None]
