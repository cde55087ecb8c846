"""The papers' bound: κ(Λ) by the secular equation against dense eigenvalues, the formula, and that it holds."""

from __future__ import annotations

from typing import Any

import mpmath
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from tests.jacobian.test_properties import Case, Draw
from wellcond import jacobian
from wellcond.attention.replay import causal_mask

Array = np.ndarray[Any, Any]
# λ = p ± exp(y) with |y| ≤ 745 in float64: y to an ulp leaves 745 eps ≈ 1.7e-13 of the distance; κ is a quotient.
SECULAR = 1e-12


def dense(p: Array) -> float:
    """κ(Λ) of rows of probabilities by numpy; each row's smallest eigenvalue is its zero."""
    largest, smallest = [], []
    for row in p:
        seen = row[row > 0]
        if len(seen) > 1:
            values = np.linalg.eigvalsh(np.diag(seen) - np.outer(seen, seen))
            largest.append(values[-1])
            smallest.append(values[1])
    return max(largest) / min(smallest)


def dense_exact(p: Array, digits: int = 700) -> float:
    """The same in mpmath. Rows are normalised again there: rounding in Σp would be larger than the tiny eigenvalues."""
    largest, smallest = [], []
    with mpmath.workdps(digits):
        for row in p:
            seen = [mpmath.mpf(float(x)) for x in row if x > 0]
            if len(seen) < 2:
                continue
            total = sum(seen)
            seen = [x / total for x in seen]
            size = range(len(seen))
            matrix = mpmath.matrix([[(seen[i] if i == j else 0) - seen[i] * seen[j] for j in size] for i in size])
            values = sorted(mpmath.eigsy(matrix, eigvals_only=True))
            largest.append(values[-1])
            smallest.append(values[1])
        return float(max(largest) / min(smallest))


def rows(*rows: list[float]) -> Tensor:
    return torch.tensor(rows, dtype=torch.float64)


# ---------------------------------------------------------------------------------------------------------------------
# κ(Λ)


@settings(max_examples=80)
@given(seed=st.integers(0, 2**16), count=st.integers(1, 6), keys=st.integers(2, 40), spread=st.floats(0.0, 2.0))
def test_dense_eigenvalues_agree(seed: int, count: int, keys: int, spread: float) -> None:
    p = (spread * Draw(seed).normal(count, keys)).softmax(1)
    # eigvalsh is off by about eps·λ_max, here at most 1e-9 of the smallest eigenvalue
    assert jacobian.softmax_condition(p) == pytest.approx(dense(p.numpy()), rel=1e-8)


@settings(max_examples=60)
@given(
    exponents=st.lists(
        st.lists(st.integers(-300, 0) | st.integers(-3, 0), min_size=2, max_size=5), min_size=1, max_size=2
    ),
    seed=st.integers(0, 2**16),
)
def test_tiny_probabilities_agree_with_700_digits(exponents: list[list[int]], seed: int) -> None:
    width = max(map(len, exponents))
    draw = Draw(seed)
    p = torch.zeros(len(exponents), width, dtype=torch.float64)
    for row, powers in zip(p, exponents, strict=True):
        row[: len(powers)] = 10.0 ** torch.tensor(powers, dtype=torch.float64) * draw.positive(len(powers))
        row[0] = 1.0
    p = p / p.sum(1, keepdim=True)
    p = p * (p >= 1e-300)
    assert jacobian.softmax_condition(p) == pytest.approx(dense_exact(p.numpy()), rel=SECULAR)


@settings(max_examples=60)
@given(
    values=st.lists(st.sampled_from([1.0, 0.5, 0.1, 1e-3, 1e-8, 1e-40]), min_size=2, max_size=7),
    order=st.randoms(use_true_random=False),
)
def test_ties_are_deflated(values: list[float], order: Any) -> None:
    """A probability that k keys share is an eigenvalue k − 1 times."""
    order.shuffle(values)
    p = rows(values)
    p = p / p.sum()
    assert jacobian.softmax_condition(p) == pytest.approx(dense_exact(p.numpy(), 150), rel=SECULAR)


@pytest.mark.parametrize("gap", [1e-16, 3e-16, 1e-15, 1e-12, 1e-8, 1e-3])
def test_near_ties(gap: float) -> None:
    for base in ([1.0, 1.0, 0.3], [0.3, 0.3, 1.0], [1.0, 1.0, 1.0], [1.0, 1.0]):
        p = rows([base[0] * (1 + gap), *base[1:]])
        p = p / p.sum()
        assert jacobian.softmax_condition(p) == pytest.approx(dense_exact(p.numpy(), 60), rel=SECULAR)


@pytest.mark.parametrize("keys", [2, 3, 17])
def test_a_uniform_row_has_condition_one(keys: int) -> None:
    """Λ = (I − 11ᵀ/T)/T."""
    p = torch.full((3, keys), 1 / keys, dtype=torch.float64)
    assert jacobian.softmax_condition(p) == pytest.approx(1.0, rel=SECULAR)


@pytest.mark.parametrize("tiny", [1e-3, 1e-17, 1e-100, 1e-300])
def test_two_keys_have_the_eigenvalue_two_p_q(tiny: float) -> None:
    p = rows([1.0 - tiny, tiny], [0.5, 0.5])
    assert jacobian.softmax_condition(p) == pytest.approx(0.5 / (2 * tiny * (1 - tiny)), rel=SECULAR)


def test_the_extremes_are_over_all_rows() -> None:
    """A uniform row of two keys has λ = ½; one of 100 keys has λ = 0.01 only."""
    p = torch.zeros(2, 100, dtype=torch.float64)
    p[0, :2], p[1] = 0.5, 0.01
    assert jacobian.softmax_condition(p) == pytest.approx(50.0, rel=SECULAR)


def test_hidden_keys_do_not_count() -> None:
    p = rows([0.7, 0.3, 0.0, 0.0], [0.2, 0.3, 0.5, 0.0])
    visible = torch.tensor([[True, True, False, False], [True, True, True, False]])
    assert jacobian.softmax_condition(p, visible) == pytest.approx(dense(p.numpy()), rel=1e-12)
    assert jacobian.softmax_condition(p, visible) == jacobian.softmax_condition(p)


def test_hidden_keys_that_are_not_quite_zero_do_not_count_either() -> None:
    """A mask of −100 leaves e^−100, which `visible` says is not there."""
    p = rows([0.7, 0.3, 1e-44], [0.2, 0.5, 0.3])
    visible = torch.tensor([[True, True, False], [True, True, True]])
    expected = dense(rows([0.7, 0.3, 0.0], [0.2, 0.5, 0.3]).numpy())
    assert jacobian.softmax_condition(p, visible) == pytest.approx(expected, rel=1e-12)


def test_rows_with_one_visible_key_are_left_out() -> None:
    p = rows([1.0, 0.0, 0.0], [0.4, 0.6, 0.0], [0.2, 0.3, 0.5])
    visible = torch.ones(3, 3).tril().bool()
    assert jacobian.softmax_condition(p, visible) == pytest.approx(dense(p[1:].numpy()), rel=1e-12)
    assert jacobian.softmax_condition(p[:1], visible[:1]) is None


def test_underflow_is_unresolved() -> None:
    p = rows([0.5, 0.5, 0.0], [0.2, 0.3, 0.5])
    assert jacobian.softmax_condition(p, torch.ones(2, 3, dtype=torch.bool)) is None
    one_hot = rows([1.0, 0.0])
    assert jacobian.softmax_condition(one_hot, torch.ones(1, 2, dtype=torch.bool)) is None


# ---------------------------------------------------------------------------------------------------------------------
# The formula


def condition(matrix: Array) -> float:
    """κ over the singular values that are not zero."""
    sigma = np.linalg.svd(matrix, compute_uv=False)
    return float(sigma[0] / sigma[sigma > 1e-13 * sigma[0]].min())


def probabilities(case: Case) -> Array:
    x, (w_q, w_k, _) = case.x[0].numpy(), (w.numpy() for w in case.weights)
    logits = float(case.strength) * (x @ w_q) @ (x @ w_k).T
    if case.bias is not None:
        logits = logits + case.bias.numpy()
    shares = np.exp(logits - logits.max(1, keepdims=True))
    return np.asarray(shares / shares.sum(1, keepdims=True))


def formula(case: Case) -> float:
    p, x = probabilities(case), case.x[0].numpy()
    w_q, w_k, w_v = (condition(w.numpy()) for w in case.weights)
    return condition(x) ** 3 * dense(p) * w_v * (w_q + w_k) + condition(x) * condition(p)


def draw_case(seed: int, *, masked: bool = False) -> Case:
    draw = Draw(seed)
    n, inputs = (int(k) for k in torch.randint(2, 8, (2,), generator=draw.generator))
    d = int(torch.randint(1, inputs + 1, (), generator=draw.generator))
    strength = (0.3, 0.7, 1.0)[seed % 3]
    weights = tuple(strength * draw.normal(inputs, d) for _ in range(3))
    bias = causal_mask(n, n).double() if masked else None
    return Case(draw.normal(1, n, inputs), weights, bias=bias)  # type: ignore[arg-type]


@pytest.mark.parametrize("masked", [False, True])
def test_the_bound_is_the_formula(masked: bool) -> None:
    """eigvalsh loses κ(Λ)·eps, the singular values κ·eps each; where κ is below 1e6 the formula is good to 1e-8."""
    compared = 0
    for seed in range(60):
        case = draw_case(seed, masked=masked)
        found = jacobian.bound(case.head())
        p = probabilities(case)
        parts = [condition(case.x[0].numpy()), condition(p), dense(p), *(condition(w.numpy()) for w in case.weights)]
        if max(parts) > 1e6:
            continue
        compared += 1
        assert found.tokens == pytest.approx(parts[0], rel=1e-8)
        assert found.probabilities == pytest.approx(parts[1], rel=1e-8)
        assert found.softmax == pytest.approx(parts[2], rel=1e-8)
        assert found.value == pytest.approx(formula(case), rel=1e-7)
    assert compared > 30


def test_rank_deficient_parts_count_what_is_not_zero() -> None:
    draw = Draw(1)
    w_q, w_k, w_v = draw.normal(3, 5, 3)
    w_v[:, 2] = w_v[:, 1]
    x = draw.normal(6, 2) @ draw.normal(2, 5)
    case = Case(x[None], (w_q / 2, w_k / 2, w_v))
    found = jacobian.bound(case.head())
    assert found.tokens == pytest.approx(condition(x.numpy()), rel=1e-9)
    assert found.tokens < 1e3
    assert found.value == pytest.approx(formula(case), rel=1e-7)


def test_there_is_no_bound_for_cross_attention() -> None:
    draw = Draw(2)
    case = Case(draw.normal(1, 4, 5), tuple(draw.normal(3, 5, 2)), memory=draw.normal(1, 4, 5))  # type: ignore[arg-type]
    assert jacobian.bound(case.head()) is None


def test_a_probability_that_underflows_leaves_the_bound_unresolved() -> None:
    draw = Draw(3)
    case = Case(draw.normal(1, 5, 4), tuple(draw.normal(3, 4, 2)), scale=1e6)  # type: ignore[arg-type]
    found = jacobian.bound(case.head())
    assert (found.softmax, found.value) == (None, None)
    assert found.tokens == pytest.approx(condition(case.x[0].numpy()), rel=1e-9)


def test_a_single_token_has_no_softmax_to_speak_of() -> None:
    draw = Draw(4)
    found = jacobian.bound(Case(draw.normal(1, 1, 4), tuple(draw.normal(3, 4, 2))).head())  # type: ignore[arg-type]
    assert (found.softmax, found.value, found.probabilities) == (None, None, 1.0)


# ---------------------------------------------------------------------------------------------------------------------
# It holds, where it is meant to


@pytest.mark.parametrize("masked", [False, True])
def test_the_bound_holds_for_the_vertical_jacobian(masked: bool) -> None:
    """Singular values below 1e-11 σ_max are left out on both sides: rounding cannot tell them from zero."""
    held = 0
    for seed in range(200):
        case = draw_case(seed, masked=masked)
        found = jacobian.bound(case.head())
        sigma = torch.linalg.svdvals(case.vertical())
        kappa = float(sigma[0] / sigma[sigma > 1e-11 * sigma[0]].min())
        if found is None or found.value is None:
            continue
        assert kappa <= found.value, seed
        held += 1
    assert held > 150


def test_measured_and_bound_speak_of_the_same_jacobian() -> None:
    for seed in range(30):
        case = draw_case(seed)
        measured = jacobian.spectrum(case.head(), convention="vertical")
        if measured.status == "ok":
            sigma = torch.linalg.svdvals(case.vertical())
            assert measured.value == pytest.approx(float(sigma[0] / sigma[measured.rank - 1]), rel=1e-3)
            assert measured.value <= jacobian.bound(case.head()).value


def test_side_by_side_it_is_no_bound() -> None:
    """One draw of the above that violates it, by a quarter, so nothing may assert it."""
    case = draw_case(69)
    sigma = torch.linalg.svdvals(case.side_by_side())
    kappa = float(sigma[0] / sigma[sigma > 1e-11 * sigma[0]].min())
    assert kappa > 1.2 * jacobian.bound(case.head()).value
