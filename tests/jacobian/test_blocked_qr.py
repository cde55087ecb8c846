"""The blocked triangular factor against LAPACK's, on rows of every shape and with every pattern of zeros."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from wellcond.jacobian.blocked_qr import PANEL, triangle

N = 2 * PANEL + 30


def rows(count: int, zeros: int, seed: int) -> Tensor:
    """Rows of widely differing size that begin with zeros."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(count, N, dtype=torch.float64, generator=generator)
    x = x * torch.logspace(0, -6, N, dtype=torch.float64)
    x[:, :zeros] = 0.0
    return x


@pytest.mark.parametrize("zeros", [0, 1, 17, PANEL - 1, PANEL, PANEL + 5, 2 * PANEL + 1, N])
@pytest.mark.parametrize("started", [True, False])
def test_rows_that_begin_with_zeros(zeros: int, started: bool) -> None:
    chunks = [rows(40, 0, 0), rows(PANEL + 7, zeros, 1), rows(1, zeros, 2), rows(N, 3, 3)]
    start = rows(N, 0, 4).triu() if started else None
    whole = torch.cat([*chunks, *([start] if start is not None else [])])
    r = triangle([chunk.clone() for chunk in chunks], N, None if start is None else start.clone())
    expected = torch.linalg.svdvals(whole)
    # backward stability: a few √n eps of the largest
    assert (torch.linalg.svdvals(r) - expected).abs().max() <= 1e-13 * expected[0]
    assert torch.equal(r, r.triu())


def test_a_zero_column_and_a_lower_triangle() -> None:
    x = rows(N, 0, 5).tril()
    x[:, 7] = 0.0
    r = triangle(list(x.clone().split(33)), N)
    assert (torch.linalg.svdvals(r) - torch.linalg.svdvals(x)).abs().max() <= 1e-13 * torch.linalg.svdvals(x)[0]
