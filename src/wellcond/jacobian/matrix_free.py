"""σ_max of a Jacobian from products with vectors: two passes through the head each, and no matrix."""

from __future__ import annotations

import torch
from torch import Tensor

from wellcond.jacobian.head import Head
from wellcond.jacobian.lanczos import largest_eigenvalue


def largest_singular_value(head: Head, rows: Tensor, *, tolerance: float = 1e-6) -> tuple[float, float]:
    """σ_max of J side by side for some query rows, and how far off it may be.

    Jᵀu is reverse mode; J v is the derivative of uᵀJv with respect to u, so only reverse mode is needed.

    >>> from wellcond.jacobian.head import softmax_head
    >>> head = softmax_head(torch.ones(3, 4), *torch.ones(3, 4, 2))
    >>> round(largest_singular_value(head, torch.arange(3))[0], 6)                # √(N D)
    3.464102
    """
    names = list(head.weights)
    with torch.enable_grad():
        leaves = [head.weights[name].detach().requires_grad_() for name in names]
        out = head.output(dict(zip(names, leaves, strict=True)))[:, rows].flatten()
        u = torch.zeros_like(out, requires_grad=True)
        back = torch.autograd.grad(out, leaves, u, create_graph=True, materialize_grads=True)

    def apply(x: Tensor) -> Tensor:
        pulled = torch.autograd.grad(out, leaves, x, retain_graph=True, materialize_grads=True)
        (pushed,) = torch.autograd.grad(back, u, pulled, retain_graph=True)
        return pushed

    generator = torch.Generator().manual_seed(0)
    start = torch.randn(len(out), dtype=torch.float64, generator=generator).to(out.device)
    value, residual = largest_eigenvalue(apply, start, tolerance=tolerance)
    return value**0.5, residual / (2 * value**0.5) if value else 0.0
