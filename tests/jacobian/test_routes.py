"""Jacobians too large for all of their singular values: the two routes find the same ends of the spectrum."""

from __future__ import annotations

import pytest
import torch

from wellcond import jacobian
from wellcond.jacobian.gram_and_qr import MAX_ALL_VALUES, by_gram, by_qr
from wellcond.jacobian.head import Head
from wellcond.jacobian.head_jacobian import SIDE_BY_SIDE, choose_rows, operator_of


def head(n: int, width: int, d: int, *, scale: float = 1.0, seed: int = 0) -> Head:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(n, width, dtype=torch.float64, generator=generator)
    weights = torch.randn(3, width, d, dtype=torch.float64, generator=generator) * scale / width**0.5
    return jacobian.softmax_head(x, *weights)


@pytest.mark.parametrize("shape", [(41, 60, 28), (40, 30, 28)])  # compressed to a triangle, and not
def test_two_singular_values_are_the_ends_of_all(shape: tuple[int, int, int]) -> None:
    given = head(*shape)
    factor = operator_of(given, choose_rows(given, None), SIDE_BY_SIDE)
    assert min(factor.shape) > MAX_ALL_VALUES
    whole = torch.linalg.svdvals(factor.matrix())
    for route in (by_gram, by_qr):
        two = route(factor)
        assert two.values is None
        assert abs(two.largest - float(whole[0])) <= 1e-10 * float(whole[0])
        assert abs(two.smallest - float(whole[-1])) <= two.error(two.smallest)
        every = route(factor, all_values=True)
        assert every.values is not None
        # what a route says of its own precision holds for each singular value
        limits = torch.tensor([every.error(float(sigma)) for sigma in whole])
        assert bool(((every.values - whole).abs() <= limits).all())


def test_an_ill_conditioned_one_goes_to_the_factor() -> None:
    given = head(41, 60, 28, scale=1e-3)  # nearly uniform attention: J_Q and J_K vanish
    found = jacobian.spectrum(given)
    whole = torch.linalg.svdvals(jacobian.matrix(given))
    assert found.status == "ok"
    assert found.value == pytest.approx(float(whole[0] / whole[-1]), rel=1e-3)


def test_a_long_sequence_with_many_rows() -> None:
    """N > 3D: JᵀJ is the smaller one, singular by d² directions, and each of its six blocks is one product."""
    given = head(500, 24, 16)
    factor = operator_of(given, choose_rows(given, None), SIDE_BY_SIDE)
    assert factor.shape[0] > factor.shape[1] > MAX_ALL_VALUES
    found = jacobian.spectrum(given)
    whole = torch.linalg.svdvals(factor.matrix())
    assert found.structural_rank == 3 * 24 * 16 - 16**2
    assert found.status == "ok"
    assert found.value == pytest.approx(float(whole[0] / whole[found.structural_rank - 1]), rel=1e-3)
