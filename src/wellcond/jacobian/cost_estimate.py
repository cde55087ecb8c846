"""Memory and time of a spectrum, known before the work."""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import cache

import torch

from wellcond.jacobian.softmax_closed_form import CHUNK_ENTRIES

BYTES = 8  # of a float64


@dataclass(frozen=True)
class Estimate:
    """Memory and time of the two exact routes.

    Args:
        rows: of the compressed Jacobian.
        columns: of the compressed Jacobian.
        gram_bytes: peak memory of the route by the Gram matrix.
        factor_bytes: peak memory of the route by the triangular factor.
        gram_seconds: operations of the Gram matrix's route ÷ the speed of a matrix product here.
        factor_seconds: the same for the triangular factor's.

    >>> estimate = Estimate.of(rows=4160, columns=12480, dense=False)
    >>> estimate.factor_bytes < estimate.gram_bytes < 2**30
    True
    """

    rows: int
    columns: int
    gram_bytes: int
    factor_bytes: int
    gram_seconds: float
    factor_seconds: float

    @classmethod
    def of(cls, rows: int, columns: int, *, dense: bool) -> Estimate:
        """For a Jacobian of this size; `dense` if it must be whole in memory (no closed form)."""
        n, long = min(rows, columns), max(rows, columns)
        whole = rows * columns if dense else 0
        products = 2.0 * n * n * long if dense else 0.0
        speed = operations_per_second()
        return cls(
            rows,
            columns,
            BYTES * (3 * n * n + whole),  # the matrix, its factor, and what building it needs
            BYTES * (2 * n * n + 4 * max(1024 * n, CHUNK_ENTRIES) + whole),  # the triangle, its start, a few chunks
            (n**3 / 3 * 2 + products) / speed,
            2.0 * n * n * long / speed * 1.5,  # reflections run at about two thirds of the speed of products
        )


@cache
def operations_per_second() -> float:
    """Speed of a float64 matrix product on this machine, measured once."""
    a = torch.ones(768, 768, dtype=torch.float64)
    a @ a
    start = time.perf_counter()
    a @ a
    return 2 * 768**3 / max(time.perf_counter() - start, 1e-6)
