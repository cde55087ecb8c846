"""Statistics of two correlated softmax rows: golden values and invariants."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import special

from tests.propagation.oracles import NAN, PAIR, hermite
from wellcond.errors import WellcondError
from wellcond.propagation.exact_pairs import exact_pair
from wellcond.propagation.exact_rows import exact_row


@pytest.mark.parametrize(
    ("tokens", "deviation", "correlation", "overlap", "gradient"),
    [
        (16, 1.5, 0.5, 0.12229240, 0.0674795),
        (197, 1.0, 0.3, 0.00680137, 0.0066092),
        (256, 3.0, 0.8, 0.11088392, 0.0410419),
    ],
)
def test_a_pair_has_its_golden_values(
    tokens: int, deviation: float, correlation: float, overlap: float, gradient: float
) -> None:
    pair = exact_pair(deviation, correlation, tokens)
    assert pair.overlap == pytest.approx(overlap, abs=1.1e-8)  # a unit of the last digit given
    assert pair.gradient == pytest.approx(gradient, abs=1.1e-7)


SETTINGS = [(0.2, 16), (0.7, 2), (1.5, 16), (3.0, 64), (2.0, 256), (6.0, 256), (3.0, 4096)]


@pytest.mark.parametrize(("deviation", "tokens"), SETTINGS)
def test_the_ends_of_the_overlap_are_those_of_independent_and_equal_rows(deviation: float, tokens: int) -> None:
    row = exact_row(deviation, tokens)
    assert exact_pair(deviation, 0.0, tokens).overlap == pytest.approx(1 / tokens, rel=PAIR)
    equal = exact_pair(deviation, 1.0, tokens)
    assert equal.overlap == pytest.approx(row.participation, rel=PAIR)
    assert equal.gradient == pytest.approx(row.gradient, rel=10 * PAIR)  # a difference of four terms


@pytest.mark.parametrize(("deviation", "tokens"), SETTINGS)
def test_the_overlap_is_increasing_and_convex_in_the_correlation(deviation: float, tokens: int) -> None:
    found = np.array([exact_pair(deviation, rho, tokens).overlap for rho in np.linspace(0, 1, 9)])
    steps = np.diff(found)
    assert (steps > 0).all()
    # Second differences of small scatter are near 0; PAIR is relative to the overlap itself.
    assert (np.diff(steps) > -4 * PAIR * found.max()).all()


@pytest.mark.parametrize(("deviation", "tokens"), SETTINGS)
def test_opposed_rows_overlap_less_than_independent_ones(deviation: float, tokens: int) -> None:
    found = [exact_pair(deviation, rho, tokens).overlap for rho in (-1.0, -0.6, -0.3, -0.05, 0.0)]
    assert all(value <= (1 + PAIR) / tokens for value in found)
    assert found == sorted(found)


@pytest.mark.parametrize(("tokens", "correlation"), [(2, 0.4), (16, -0.3), (256, 0.9)])
def test_rows_without_scatter_overlap_in_every_column(tokens: int, correlation: float) -> None:
    pair = exact_pair(0.0, correlation, tokens)
    assert pair.overlap == pytest.approx(1 / tokens, rel=PAIR)
    assert pair.gradient == pytest.approx(1 / tokens - 1 / tokens**2, rel=PAIR)
    longer = exact_pair(0.0, correlation, tokens, extra=3)
    assert longer.overlap == pytest.approx(1 / (tokens + 3), rel=PAIR)


@pytest.mark.parametrize("correlation", [-0.95, -0.5, 0.0, 0.2, 0.7, 0.99])
@pytest.mark.parametrize(("first", "second"), [(0.3, 0.3), (1.0, 1.0), (2.0, 2.0), (0.4, 2.0), (1.5, 0.0)])
def test_two_rows_of_two_tokens_are_a_gaussian_integral(first: float, second: float, correlation: float) -> None:
    x, w = hermite(150)
    g = math.sqrt(2) * first * x[:, None]
    h = math.sqrt(2) * second * (correlation * x[:, None] + math.sqrt(1 - correlation**2) * x[None, :])
    a, b = np.stack([special.expit(g), special.expit(-g)]), np.stack([special.expit(h), special.expit(-h)])
    overlap = (a * b).sum(0)
    s = overlap - (a * a * b).sum(0) - (a * b * b).sum(0) + overlap**2
    pair = exact_pair(first, correlation, 2, second=second)
    # 150 Gauss–Hermite nodes resolve the sigmoid's poles at ±iπ to 1e-8 for logits scattering by 2.8.
    assert pair.overlap == pytest.approx(w @ np.broadcast_to(overlap, (150, 150)) @ w, abs=1e-7)
    assert pair.gradient == pytest.approx(w @ np.broadcast_to(s, (150, 150)) @ w, abs=1e-7)


@pytest.mark.parametrize("correlation", [-0.7, 0.3, 0.9])
def test_it_does_not_matter_which_of_two_rows_comes_first(correlation: float) -> None:
    one, other = exact_pair(0.8, correlation, 32, second=2.5), exact_pair(2.5, correlation, 32, second=0.8)
    assert one.overlap == pytest.approx(other.overlap, rel=PAIR)
    assert one.gradient == pytest.approx(other.gradient, rel=PAIR)


def test_columns_that_one_row_alone_sees_only_dilute_it() -> None:
    """Independent rows: E[A_s] is 1/T in the one, 1/(T + n) in the other."""
    for extra in (0, 1, 7, 224):
        pair = exact_pair(2.0, 0.0, 32, extra=extra)
        assert pair.overlap == pytest.approx(1 / (32 + extra), rel=PAIR)


@pytest.mark.parametrize(
    ("name", "kwargs"),
    [
        ("deviation", {"deviation": -1.0}),
        ("deviation", {"deviation": NAN}),
        ("correlation", {"correlation": 1.01}),
        ("correlation", {"correlation": -1.01}),
        ("correlation", {"correlation": NAN}),
        ("tokens", {"tokens": 0}),
        ("second", {"second": -1.0}),
        ("extra", {"extra": -1}),
    ],
)
def test_a_pair_out_of_range_is_refused(name: str, kwargs: dict[str, float]) -> None:
    with pytest.raises(WellcondError, match=name):
        exact_pair(**{"deviation": 1.0, "correlation": 0.5, "tokens": 16, **kwargs})
