"""The Chebyshev filter: numpy's SVD is the oracle; what it was not made for, it refuses."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from wellcond._core.chebyshev_filter import ChebyshevFilter
from wellcond._core.keyed_random import Draw
from wellcond._core.linalg import leading_triples
from wellcond.init.products import QueryKeyProduct
from wellcond.testing import same_bits

SIZE, COUNT = 512, 32
EPS = float(np.finfo(np.float32).eps)


def matrix(seed: int, shift: float = 1.0, scale: float = 1.0) -> Tensor:
    """Z + shift · I with entries of Z of variance 1/D, in float64."""
    z = torch.randn(SIZE, SIZE, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return scale * (z / math.sqrt(SIZE) + shift * torch.eye(SIZE, dtype=torch.float64))


def filter_of(like: Tensor) -> ChebyshevFilter:
    found = ChebyshevFilter.of(torch.from_numpy(np.linalg.svd(like.numpy(), compute_uv=False)), COUNT)
    assert found is not None
    return found


@pytest.mark.parametrize(("shift", "scale"), [(1.0, 1.0), (0.0, 1e-9), (0.3, 1e25)])
def test_triples_are_those_of_an_svd(shift: float, scale: float) -> None:
    """The space to the rounding of float32 (at most 16 eps); values, and the vectors of that space, to its square."""
    target = matrix(0, shift, scale)
    found = filter_of(matrix(1, shift, scale)).triples(target)
    assert found is not None
    u, s, v = found[0].numpy(), found[1].numpy(), found[2].numpy().T
    left, sigma, right = np.linalg.svd(target.numpy())
    left, wanted, right = left[:, :COUNT], sigma[:COUNT], right[:COUNT].T
    assert np.linalg.norm(u * s @ v.T - left * wanted @ right.T, 2) < 16 * EPS * sigma[0]
    assert np.linalg.norm(right - v @ (v.T @ right), axis=0).max() < 16 * EPS
    squared = (16 * EPS) ** 2 * COUNT
    np.testing.assert_allclose(s, wanted, rtol=squared)
    for basis in (u, v):
        assert np.abs(basis.T @ basis - np.eye(COUNT)).max() < squared
    assert (u[np.abs(u).argmax(0), np.arange(COUNT)] > 0).all()


def test_other_singular_values_are_refused() -> None:
    quick = filter_of(matrix(1))
    assert quick.triples(matrix(0)) is not None
    for other in (matrix(0, scale=1.2), matrix(0, shift=3.0), matrix(0) * 0, torch.eye(SIZE, dtype=torch.float64)):
        assert quick.triples(other) is None


def test_where_a_filter_does_not_pay() -> None:
    assert ChebyshevFilter.of(torch.linspace(2, 0, 256), 16) is None  # small
    assert ChebyshevFilter.of(torch.linspace(2, 0, 512), 128) is None  # many of them
    assert ChebyshevFilter.of(torch.ones(1024), 64) is None  # no gap at all
    assert ChebyshevFilter.of(torch.linspace(1.01, 1, 1024), 64) is None  # too small a gap
    assert ChebyshevFilter.of(torch.zeros(1024), 64) is None


def test_the_same_bits_on_any_number_of_threads() -> None:
    quick, target = filter_of(matrix(1)), matrix(0)
    before = torch.get_num_threads()
    found = []
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            found.append(quick.triples(target))
    finally:
        torch.set_num_threads(before)
    assert all(same_bits(one, other) for one, other in zip(*found, strict=True))


def test_a_wide_layers_products_are_the_best_and_pass_their_audit() -> None:
    """Two heads at the width where the filter takes over, to the rounding of factors that are stored in float32."""
    law, draw, shape = QueryKeyProduct(0.7, 0.7, "uniform"), Draw(3, "blocks.0.attn"), (2, SIZE, COUNT)
    assert law.filter(SIZE, COUNT) is not None
    query, key = law.sample(draw, ("query", "key"), (shape, shape))
    for head in range(2):
        u, s, vt = leading_triples(law.target(draw, "query", head, SIZE), COUNT)
        error = (query[head].double() @ key[head].double().T - (u * s) @ vt).numpy()
        assert np.linalg.norm(error, 2) < 16 * EPS * float(s[0])
    assert all(check.passed for check in law.checks((query.double(), key.double()), EPS))
    alone = law.sample(draw, ("query", "key"), ((1, SIZE, COUNT),) * 2)
    assert same_bits(query[:1], alone[0])  # a head's draw does not depend on the others


def test_a_flat_law_is_factorised_without_a_filter() -> None:
    law, shape = QueryKeyProduct(0.0, 0.7, "normal"), (1, SIZE, COUNT)
    assert law.filter(SIZE, COUNT) is None
    query, key = law.sample(Draw(0, "flat"), ("query", "key"), (shape, shape))
    sigma = np.linalg.svd((query[0] @ key[0].T).numpy(), compute_uv=False)
    np.testing.assert_allclose(sigma[:COUNT], 0.7, rtol=1e-6)
