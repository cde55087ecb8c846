"""The largest eigenvalue of a symmetric operator, from products with vectors alone."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from wellcond.linalg import eigh

EVERY = 5  # steps between two looks at the small matrix


def largest_eigenvalue(
    apply: Callable[[Tensor], Tensor], start: Tensor, *, tolerance: float = 1e-10, steps: int = 400
) -> tuple[float, float]:
    """The largest eigenvalue of a positive semi-definite operator, and how far off it may be.

    Lanczos with full reorthogonalisation (Paige 1972), stopped when the residual is below `tolerance` times the
    eigenvalue: there is an eigenvalue within that, and away from clusters within its square.

    Args:
        apply: product with a vector.
        start: `(n,)`, a vector with a component in every direction.
        tolerance: relative residual to stop at.
        steps: products to stop after all the same; the residual is returned.

    >>> a = torch.diag(torch.arange(1.0, 101.0, dtype=torch.float64))
    >>> value, residual = largest_eigenvalue(lambda x: a @ x, torch.ones(100, dtype=torch.float64))
    >>> round(value, 9), residual < 1e-8
    (100.0, True)
    """
    n = len(start)
    steps = min(n, steps)
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
        if last or step % EVERY == EVERY - 1:
            values, vectors = eigh(small[: step + 1, : step + 1])
            top, residual = float(values[-1]), length * abs(float(vectors[-1, -1]))
            if last or residual <= tolerance * top:
                return top, 0.0 if step + 1 == n else residual
        small[step, step + 1] = small[step + 1, step] = length
        v = w / length
    raise AssertionError("the last step returns")
