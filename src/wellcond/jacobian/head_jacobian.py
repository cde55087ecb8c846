"""J of a head for some of its query rows: the operator, its matrix, kernel and singular values, and what they cost."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Final, Literal

import torch
from torch import Tensor

from wellcond._core.argument_types import Count
from wellcond._core.checked import checked
from wellcond.attention.ordinary import ordinary
from wellcond.attention.replay import Softmax
from wellcond.errors import WellcondError
from wellcond.jacobian.autograd import role_blocks
from wellcond.jacobian.gram_and_qr import by_gram, by_qr
from wellcond.jacobian.head import Head
from wellcond.jacobian.operator import Dense, JacobianOperator
from wellcond.jacobian.result import JacobianConvention
from wellcond.jacobian.softmax_closed_form import CHUNK_ENTRIES, closed_form_blocks, compress
from wellcond.jacobian.softmax_operators import SideBySide, Vertical

SIDE_BY_SIDE: Final = "side-by-side"
VERTICAL: Final = "vertical"
BYTES = 8  # of a float64

Rows = Count | Sequence[int] | None
Exact = Literal["gram", "factor"]


@checked
@ordinary()
def singular_values(
    head: Head, *, convention: JacobianConvention = SIDE_BY_SIDE, method: Exact = "factor", rows: Rows = None
) -> Tensor:
    """All singular values of a head's Jacobian, largest first, by the `"factor"` or the cheaper `"gram"` route.

    >>> from wellcond.jacobian.head import softmax_head
    >>> singular_values(softmax_head(torch.randn(6, 8), *torch.randn(3, 8, 4))).shape
    torch.Size([24])
    """
    j = operator_of(head, choose_rows(head, rows), convention)
    found = (by_gram if method == "gram" else by_qr)(j, all_values=True)
    assert found.values is not None
    return found.values


@checked
@ordinary()
def tangent_kernel(head: Head, *, rows: Rows = None) -> Tensor:
    """J Jᵀ side by side, `(R, d_v, R, d_v)`: the tangent kernel of the head for R query rows.

    >>> from wellcond.jacobian.head import softmax_head
    >>> tangent_kernel(softmax_head(torch.randn(6, 8), *torch.randn(3, 8, 4)), rows=2).shape
    torch.Size([2, 4, 2, 4])
    """
    chosen = choose_rows(head, rows)
    size = (head.sequences * len(chosen), head.value_width)
    return operator_of(head, chosen, SIDE_BY_SIDE).row_gram().view(*size, *size)


@checked
@ordinary()
def matrix(head: Head, *, convention: JacobianConvention = SIDE_BY_SIDE, rows: Rows = None) -> Tensor:
    """J with the tokens compressed: the same singular values and left singular vectors as J.

    >>> from wellcond.jacobian.head import softmax_head
    >>> matrix(softmax_head(torch.randn(6, 8), *torch.randn(3, 8, 4))).shape      # 6 · 4 rows, 3 · 6 · 4 columns
    torch.Size([24, 72])
    """
    return operator_of(head, choose_rows(head, rows), convention).matrix()


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


@checked
@ordinary()
def estimate(head: Head, *, convention: JacobianConvention = SIDE_BY_SIDE, rows: Rows = None) -> Estimate:
    """Memory and time of a spectrum, from shapes alone.

    >>> from wellcond.jacobian.head import softmax_head
    >>> cost = estimate(softmax_head(torch.randn(6, 8), *torch.randn(3, 8, 4)))
    >>> cost.rows, cost.columns
    (24, 72)
    """
    return cost_of_rows(head, choose_rows(head, rows), convention)


def cost_of_rows(head: Head, chosen: Tensor, convention: str) -> Estimate:
    """Return the memory and time of a spectrum of these query rows."""
    counts = {role: x.shape[0] * (len(chosen) if role == "query" else x.shape[1]) for role, x in head.tokens.items()}
    height = head.sequences * len(chosen) * head.value_width
    if convention == VERTICAL:
        reach = sum({id(x): x.shape[0] * x.shape[1] for x in head.tokens.values()}.values())
        height, width = 3 * height, min(reach, head.tokens["value"].shape[2]) * head.value_width
    else:
        width = sum(min(counts[role], x.shape[2]) * head.weights[role].shape[1] for role, x in head.tokens.items())
    return Estimate.of(height, width, dense=type(head.mixing) is not Softmax)


def choose_rows(head: Head, rows: Rows) -> Tensor:
    """Indices of the query rows to measure."""
    total = head.rows
    if rows is None:
        return torch.arange(total)
    if isinstance(rows, int):
        return torch.linspace(0, total - 1, min(rows, total)).round().long()
    chosen = torch.tensor(sorted(set(rows)))
    if not len(chosen) or chosen[0] < 0 or chosen[-1] >= total:
        raise WellcondError(f"query rows are numbered 0 to {total - 1}, got {list(rows)}")
    return chosen


def operator_of(head: Head, rows: Tensor, convention: str) -> JacobianOperator:
    """J of some query rows, compressed: same singular values, at most as many columns as there are tokens."""
    vertical = convention == VERTICAL
    if vertical and (len(head.weights) < 3 or len({w.shape for w in head.weights.values()}) > 1):
        shapes = {role: tuple(w.shape) for role, w in head.weights.items()}
        raise WellcondError(f"the vertical convention needs W_Q, W_K and W_V of one shape, got {shapes}")
    if type(head.mixing) is not Softmax:  # the queries of other rows may matter
        blocks = role_blocks(head, compress(head.tokens, joint=vertical), rows)
        if vertical:
            return Dense(torch.cat(blocks))
        return Dense(torch.cat(blocks, 1), tuple(block.shape[1] for block in blocks))
    queries = head.tokens["query"]
    tokens = head.tokens | {"query": queries[:, rows] if len(rows) < head.rows else queries}
    parts = closed_form_blocks(head, compress(tokens, joint=vertical), rows)
    return Vertical(parts) if vertical else SideBySide(parts)
