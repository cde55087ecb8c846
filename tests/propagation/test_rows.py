"""Statistics of one softmax row: golden values, invariants, limits."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise

import pytest
from scipy import integrate, special

from tests.propagation.oracles import INF, NAN, PAIR, ROW
from wellcond.errors import WellcondError
from wellcond.propagation.exact_pairs import exact_pair
from wellcond.propagation.exact_rows import RowStatistics, asymptotic_row, exact_row


@pytest.mark.parametrize(
    ("tokens", "deviation", "participation", "entropy", "gradient"),
    [
        (16, 1.5, 0.22030399, 1.9842313, 0.1112317),
        (197, 1.0, 0.01333173, 4.7922320, 0.0126618),
        (256, 3.0, 0.21557527, 2.5624730, 0.0816163),
        (1024, 2.5, 0.07228913, 4.1838457, 0.0408439),
    ],
)
def test_a_row_has_its_golden_values(
    tokens: int, deviation: float, participation: float, entropy: float, gradient: float
) -> None:
    row = exact_row(deviation, tokens)
    # Half a unit of the last digit given.
    assert row.participation == pytest.approx(participation, abs=5.1e-9)
    assert row.entropy == pytest.approx(entropy, abs=5.1e-8)
    assert row.gradient == pytest.approx(gradient, abs=5.1e-8)


@pytest.mark.parametrize("tokens", [2, 3, 16, 197, 4096])
def test_a_row_without_scatter_is_uniform(tokens: int) -> None:
    for deviation in (0.0, 1e-6):  # the first correction is of order s² = 1e-12
        row = exact_row(deviation, tokens)
        assert row.participation == pytest.approx(1 / tokens, rel=ROW)
        assert row.cube == pytest.approx(1 / tokens**2, rel=ROW)
        assert row.square == pytest.approx(1 / tokens**2, rel=ROW)
        assert row.entropy == pytest.approx(math.log(tokens), abs=ROW)
        assert row.gradient == pytest.approx(1 / tokens - 1 / tokens**2, rel=ROW)
        assert row.own == pytest.approx(1 / tokens, rel=ROW)


@pytest.mark.parametrize("deviation", [0.0, 1.0, 30.0])
def test_one_token_attends_to_itself(deviation: float) -> None:
    row = exact_row(deviation, 1)
    assert (row.participation, row.entropy, row.own, row.gradient) == (1.0, 0.0, 1.0, 0.0)
    pair = exact_pair(deviation, 0.3, 1)
    assert pair.overlap == pytest.approx(1.0, rel=PAIR)
    assert pair.gradient == pytest.approx(0.0, abs=PAIR)


def gaussian_mean(f: Callable[[float], float], deviation: float) -> float:
    def integrand(g: float) -> float:
        return f(g) * math.exp(-0.5 * (g / deviation) ** 2) / (deviation * math.sqrt(2 * math.pi))

    return integrate.quad(integrand, -12 * deviation, 12 * deviation, epsabs=1e-13, epsrel=1e-12, limit=400)[0]


@pytest.mark.parametrize("deviation", [0.1, 0.5, 1.0, 2.5, 8.0])
def test_a_row_of_two_tokens_is_a_gaussian_integral(deviation: float) -> None:
    def weights(g: float) -> tuple[float, float]:
        return float(special.expit(g)), float(special.expit(-g))

    row, spread = exact_row(deviation, 2), deviation * math.sqrt(2)  # of the difference of the two logits
    expected = {
        "participation": gaussian_mean(lambda g: (1 + math.tanh(g / 2) ** 2) / 2, spread),
        "cube": gaussian_mean(lambda g: sum(w**3 for w in weights(g)), spread),
        "square": gaussian_mean(lambda g: sum(w**2 for w in weights(g)) ** 2, spread),
        "entropy": gaussian_mean(lambda g: float(sum(special.entr(w) for w in weights(g))), spread),
        "own": 0.5,
    }
    for name, value in expected.items():
        assert getattr(row, name) == pytest.approx(value, abs=ROW), name


@pytest.mark.parametrize("tokens", [2, 16, 256, 2**20])
def test_participation_grows_and_entropy_falls_with_the_scatter(tokens: int) -> None:
    rows = [exact_row(s, tokens) for s in (0.0, 0.1, 0.3, 0.59, 0.61, 1.0, 1.7, 2.5, 4.0, 7.0, 12.0)]
    for before, after in pairwise(rows):
        assert after.participation > before.participation
        assert after.entropy < before.entropy
    for row in rows:
        assert 1 / tokens - ROW <= row.participation < 1
        assert row.entropy >= -math.log(row.participation) - ROW  # Jensen; equal without scatter
        assert row.participation**2 <= row.square + ROW <= row.participation + 2 * ROW
        assert row.square <= row.cube + ROW  # Y₂² ≤ Y₃ by Cauchy and Schwarz
        assert 0 <= row.entropy <= math.log(tokens) + ROW


@pytest.mark.parametrize("tokens", [2, 16, 256, 4096])
@pytest.mark.parametrize("deviation", [0.3, 0.6, 1.5, 3.0, 7.0])
def test_the_free_energy_has_the_derivative_that_integration_by_parts_gives(tokens: int, deviation: float) -> None:
    def log_z(s: float) -> float:
        row = exact_row(s, tokens)
        return row.entropy + s * s * (1 - row.participation)

    h = 1e-2
    slopes = [(log_z(deviation + k * h) - log_z(deviation - k * h)) / (2 * k * h) for k in (1, 2)]
    expected = deviation * (1 - exact_row(deviation, tokens).participation)
    # Richardson's rule leaves h⁴ times a fifth derivative of order one.
    assert (4 * slopes[0] - slopes[1]) / 3 == pytest.approx(expected, abs=1e-7)


def test_the_random_energy_limit_is_approached_from_above() -> None:
    differences = []
    for tokens in (16, 256, 4096, 2**20):
        s = 2 * math.sqrt(math.log(tokens))
        differences.append(exact_row(s, tokens).participation - asymptotic_row(s, tokens).participation)
    assert differences == pytest.approx([0.225, 0.143, 0.108, 0.074], abs=5.1e-4)  # half the last digit


def test_the_random_energy_row_has_its_closed_form() -> None:
    tokens = 256
    cold = asymptotic_row(3.0, tokens)
    assert (cold.participation, cold.gradient) == (0, 0)
    assert cold.entropy == pytest.approx(math.log(tokens) - 4.5, rel=1e-15)
    m = math.sqrt(2 * math.log(tokens)) / 6.0
    hot = asymptotic_row(6.0, tokens)
    assert hot.participation == pytest.approx(1 - m, rel=1e-14)
    assert hot.cube == pytest.approx((1 - m) * (2 - m) / 2, rel=1e-14)
    assert hot.square == pytest.approx((1 - m) * (3 - 2 * m) / 3, rel=1e-14)
    assert hot.gradient == pytest.approx(m * (1 - m) / 3, rel=1e-13)
    assert hot.entropy == 0


@pytest.mark.parametrize(
    ("b", "measured", "exponent"),
    [(0.5, 0.750, 0.75), (0.7, 0.510, 0.51), (0.9, 0.224, 0.2185), (1.0, 0.133, 0.125)],
)
def test_participation_falls_as_the_power_of_the_length_that_theory_gives(
    b: float, measured: float, exponent: float
) -> None:
    def slope(of: Callable[[RowStatistics], float], power: int) -> float:
        ends = [of(exact_row(b * math.sqrt(k * math.log(2)), 2.0**k)) for k in (power - 1, power)]
        return -math.log2(ends[1] / ends[0])

    def participation(row: RowStatistics) -> float:
        return row.participation

    def gradient(row: RowStatistics) -> float:
        return row.gradient

    # Half the last digit, and as much again for where along the last octave the slope is taken.
    assert slope(participation, 80) == pytest.approx(measured, abs=1e-3)
    assert slope(gradient, 80) == pytest.approx(measured, abs=0.01)  # R ~ Y₂ only in the limit
    errors = [abs(slope(participation, k) - exponent) for k in (10, 20, 40, 80)]
    assert errors == sorted(errors, reverse=True)


@pytest.mark.parametrize(("deviation", "tokens"), [(0.3, 2), (1.5, 16), (3.0, 256), (2.0, 4096)])
def test_every_column_of_a_row_without_shift_is_alike(deviation: float, tokens: int) -> None:
    plain, planted = exact_row(deviation, tokens), exact_row(deviation, tokens, shift=0.0)
    assert planted == plain
    assert planted.own == pytest.approx(1 / tokens, rel=1e-9)
    # A shift too small to matter takes the same path as a large one.
    near = exact_row(deviation, tokens, shift=1e-9)
    assert near.participation == pytest.approx(plain.participation, abs=1e-8)
    assert near.entropy == pytest.approx(plain.entropy, abs=1e-8)


@pytest.mark.parametrize("tokens", [2, 64, 197])
@pytest.mark.parametrize("shift", [-30.0, -2.0, 1.0, 6.4, 25.0, 640.0])
def test_a_planted_row_without_scatter_is_a_plain_softmax(tokens: int, shift: float) -> None:
    own = float(special.expit(shift - math.log(tokens - 1)))
    other = (1 - own) / (tokens - 1) if shift < 600 else 0.0
    row = exact_row(0.0, tokens, shift)
    n = tokens - 1
    assert row.own == pytest.approx(own, rel=ROW)
    assert row.participation == pytest.approx(own**2 + n * other**2, rel=ROW)
    assert row.cube == pytest.approx(own**3 + n * other**3, rel=ROW)
    assert row.square == pytest.approx((own**2 + n * other**2) ** 2, rel=ROW)
    # shift × own is subtracted from log Z, which costs shift × eps × the number of nodes.
    entropy = float(special.entr(own)) + n * float(special.entr(other))
    assert row.entropy == pytest.approx(entropy, abs=max(1, abs(shift)) * 1e-11)


@pytest.mark.parametrize("tokens", [2, 16])
def test_a_row_of_large_scatter_is_one_hot(tokens: int) -> None:
    few, many = exact_row(20.0, tokens), exact_row(40.0, tokens)
    # 1 − Y₂ is proportional to the density of a tie between the two largest logits, 1/s, with corrections of 1/s².
    assert 1 - many.participation == pytest.approx((1 - few.participation) / 2, rel=0.05)
    assert many.entropy == pytest.approx(few.entropy / 2, rel=0.05)


def test_the_coldest_row_of_the_specification_is_one_hot() -> None:
    """W + 10 I on queries and keys of ViT-B: β = 43.6, μ = 640."""
    row = exact_row(43.6 * math.sqrt(math.log(197) * 0.8), 197, 640.0)
    assert (row.own, row.participation, row.entropy) == pytest.approx((1.0, 1.0, 0.0), abs=1e-3)


@pytest.mark.parametrize(("deviation", "tokens", "shift"), [(20.0, 2, 0.0), (50.0, 256, 30.0), (30.0, 2**80, 0.0)])
def test_a_cold_row_does_not_depend_on_the_lattice(deviation: float, tokens: int, shift: float) -> None:
    """Where the scatter is large the lattice is stretched; halving its step changes nothing."""
    found, fine = exact_row(deviation, tokens, shift), exact_row(deviation, tokens, shift, step=0.15)
    assert vars(found) == pytest.approx(vars(fine), abs=1e-8)


@pytest.mark.parametrize(
    ("name", "kwargs"),
    [
        ("deviation", {"deviation": -1.0, "tokens": 16}),
        ("deviation", {"deviation": NAN, "tokens": 16}),
        ("deviation", {"deviation": INF, "tokens": 16}),
        ("tokens", {"deviation": 1.0, "tokens": 0}),
        ("tokens", {"deviation": 1.0, "tokens": NAN}),
        ("shift", {"deviation": 1.0, "tokens": 16, "shift": NAN}),
        ("shift", {"deviation": 1.0, "tokens": 16, "shift": INF}),
    ],
)
def test_a_row_out_of_range_is_refused(name: str, kwargs: dict[str, float]) -> None:
    with pytest.raises(WellcondError, match=name):
        exact_row(**kwargs)
