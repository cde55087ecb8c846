"""Largest eigenvalue of an operator, and σ_max of a Jacobian, from products with vectors alone: Lanczos."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from wellcond._core.linalg import eigh
from wellcond.attention.ordinary import with_gradients
from wellcond.jacobian.head import Head

MAX_PRODUCTS = 400
STEPS_BETWEEN_CHECKS = 5  # of the small matrix's eigenvalues


def lanczos_largest_eigenvalue(
    apply: Callable[[Tensor], Tensor], n: int, device: torch.device, *, tolerance: float
) -> tuple[float, float]:
    """The largest eigenvalue of a positive semi-definite operator, and how far off it may be.

    Lanczos with full reorthogonalisation (Paige 1972), stopped when the residual is below `tolerance` times the
    eigenvalue: there is an eigenvalue within that, and away from clusters within its square.

    After 400 products with `apply` it stops all the same, and the residual says where.

    >>> a = torch.diag(torch.arange(1.0, 101.0, dtype=torch.float64))
    >>> value, residual = lanczos_largest_eigenvalue(lambda x: a @ x, 100, a.device, tolerance=1e-10)
    >>> round(value, 9), residual < 1e-8
    (100.0, True)
    """
    steps = min(n, MAX_PRODUCTS)
    start = torch.randn(n, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).to(device)
    basis = start.new_empty(steps, n)
    small = torch.zeros(steps + 1, steps + 1, dtype=torch.float64)
    v = start / start.norm()
    for step in range(steps):
        basis[step] = v
        w = apply(v)
        small[step, step] = w @ v
        for _ in range(2):  # once loses orthogonality to the square root of eps, twice is enough (Kahan, Parlett)
            w = w - basis[: step + 1].mT @ (basis[: step + 1] @ w)
        length = float(w.norm())
        last = step + 1 == steps or length <= 1e-15 * float(small[0, 0])
        if last or step % STEPS_BETWEEN_CHECKS == STEPS_BETWEEN_CHECKS - 1:
            values, vectors = eigh(small[: step + 1, : step + 1])
            top, residual = float(values[-1]), length * abs(float(vectors[-1, -1]))
            if last or residual <= tolerance * top:
                return top, 0.0 if step + 1 == n else residual
        small[step, step + 1] = small[step + 1, step] = length
        v = w / length
    raise AssertionError("the last step returns")


def largest_singular_value(head: Head, rows: Tensor) -> tuple[float, float]:
    """σ_max of J side by side for some query rows, and how far off it may be.

    Jᵀu is reverse mode; J v is the derivative of uᵀJv with respect to u, so only reverse mode is needed.

    >>> from wellcond.jacobian.head import softmax_head
    >>> head = softmax_head(torch.ones(3, 4), *torch.ones(3, 4, 2))
    >>> round(largest_singular_value(head, torch.arange(3))[0], 6)                # √(N D)
    3.464102
    """
    names = list(head.weights)
    with with_gradients():
        leaves = [head.weights[name].detach().requires_grad_() for name in names]
        out = head.output(dict(zip(names, leaves, strict=True)))[:, rows].flatten()
        u = torch.zeros_like(out, requires_grad=True)
        back = torch.autograd.grad(out, leaves, u, create_graph=True, materialize_grads=True)

    def apply(x: Tensor) -> Tensor:
        pulled = torch.autograd.grad(out, leaves, x, retain_graph=True, materialize_grads=True)
        (pushed,) = torch.autograd.grad(back, u, pulled, retain_graph=True)
        return pushed

    value, residual = lanczos_largest_eigenvalue(apply, len(out), out.device, tolerance=1e-6)
    return value**0.5, residual / (2 * value**0.5) if value else 0.0
