"""What a spectrum claims of itself: κ up to 1e12, ranks, lower bounds from rows, σ_max alone, and its own error."""

from __future__ import annotations

import math
import statistics
from typing import Any

import mpmath
import numpy as np
import pytest
import torch
from torch import Tensor

from tests.jacobian.test_properties import Case, Draw, exact_jacobian, exact_singular_values
from wellcond import jacobian
from wellcond.attention.replay import causal_mask
from wellcond.errors import WellcondError

# ---------------------------------------------------------------------------------------------------------------------
# Heads whose condition number is known


def orthonormal(draw: Draw, rows: int, columns: int) -> Tensor:
    return torch.linalg.qr(draw.normal(rows, columns))[0]


def head_of_condition(kappa: float, *, n: int = 6, inputs: int = 7, d: int = 2, seed: int = 0) -> Case:
    """A head with κ(J) = `kappa` by construction.

    With W_Q = 0 attention is uniform, J_K = 0, M_n = s Vᵀ(I − 11ᵀ/N)K/N for all n, and
    J Jᵀ = (XXᵀ) ⊗ MMᵀ + |x̄|² 11ᵀ ⊗ I. Let X = 1 w₀ᵀ + Z with Z = Σ_j z_j u_j w_jᵀ, all u_j ⟂ 1 and w orthonormal,
    W_K = W_V = (w_1 … w_d) and s = 1. Then |x̄| = 1, M = (z_1²/N) I for z_1 = … = z_d = √N, that is M = I, and the
    singular values of J are √(2N) and z_j, each d times. One z is √(2N)/κ.
    """
    draw = Draw(seed)
    basis = torch.linalg.qr(torch.cat([torch.ones(n, 1, dtype=torch.float64), draw.normal(n, n - 1)], 1))[0]
    w = orthonormal(draw, inputs, n)
    z = torch.full((n - 1,), math.sqrt(n), dtype=torch.float64)
    z[d:] *= 0.5 + torch.rand(n - 1 - d, dtype=torch.float64, generator=draw.generator) / 2
    z[-1] = math.sqrt(2 * n) / kappa
    x = torch.ones(n, 1, dtype=torch.float64) * w[:, 0] + (basis[:, 1:] * z) @ w[:, 1:].T
    same = w[:, 1 : d + 1]
    return Case(x[None], (torch.zeros_like(same), same, same), scale=1.0)


def decaying(seed: int, n: int, inputs: int, d: int, decades: float, scale: float = 1.0) -> Case:
    """Tokens whose singular values fall evenly by so many decades, otherwise generic."""
    draw = Draw(seed)
    r = min(n, inputs)
    sigma = 10 ** torch.linspace(0, -decades, r, dtype=torch.float64)
    x = (orthonormal(draw, n, r) * sigma) @ orthonormal(draw, inputs, r).T * n**0.5
    weights = tuple(draw.normal(inputs, d) / inputs**0.5 for _ in range(3))
    return Case(x[None], weights, scale=scale)  # type: ignore[arg-type]


def values_alone(seed: int, n: int, decades: float) -> Case:
    """J = PX for W_V = 0 and d = 1: X has columns that fall by so many decades exactly, P is made generic by a bias."""
    draw = Draw(seed)
    x = draw.normal(n, n) * 10 ** torch.linspace(0, -decades, n, dtype=torch.float64)
    w = draw.normal(n, 1)
    return Case(x[None], (w, w, 0 * w), bias=2 * draw.normal(n, n))


def truth(case: Case) -> list[Any]:
    return exact_singular_values(np.concatenate(exact_jacobian(case), 1))


@pytest.mark.parametrize("kappa", [1e2, 1e5, 1e8, 1e10, 1e12])
@pytest.mark.parametrize("method", ["auto", "factor"])
def test_a_condition_number_known_by_construction_is_measured_within_one_per_cent(kappa: float, method: str) -> None:
    """Storing X moves its singular values by at most eps ‖X‖: at κ = 1e12 by some 1e-4 of the smallest."""
    found = jacobian.spectrum(head_of_condition(kappa).head(), method=method)
    assert found.status == "ok"
    assert found.value == pytest.approx(kappa, rel=0.01)
    assert found.sigma_max == pytest.approx(math.sqrt(12), rel=1e-12)
    assert found.rank == found.structural_rank == 12
    if kappa > 1e7:  # squared it is beyond float64
        assert found.method == "factor"


def test_the_construction_has_the_condition_number_it_is_said_to_have() -> None:
    case = head_of_condition(1e10)
    sigma = truth(case)
    assert float(sigma[0] / sigma[11]) == pytest.approx(1e10, rel=1e-4)


@pytest.mark.parametrize(("kappa", "method"), [(1e3, "gram"), (1e10, "factor")])
def test_large_jacobians_are_measured_by_iteration_as_well(kappa: float, method: str) -> None:
    """1120 rows, above which only the two ends of the spectrum are computed; one per cent as above."""
    found = jacobian.spectrum(head_of_condition(kappa, n=70, inputs=72, d=16).head())
    assert (found.status, found.method) == ("ok", method)
    assert found.value == pytest.approx(kappa, rel=0.01)
    assert found.sigma_max == pytest.approx(math.sqrt(140), rel=1e-9)
    assert found.rank == 1120


@pytest.mark.parametrize("seed", range(6))
def test_generic_heads_with_ill_conditioned_tokens_are_measured_within_one_per_cent(seed: int) -> None:
    case = decaying(seed, 5, 6, 2, 5 + seed)
    sigma = truth(case)
    kappa = float(sigma[0] / sigma[9])
    assert 1e4 < kappa < 1e13
    found = jacobian.spectrum(case.head())
    assert found.status == "ok"
    assert found.value == pytest.approx(kappa, rel=0.01)


# ---------------------------------------------------------------------------------------------------------------------
# Ranks


def long_tokens(seed: int = 0, n: int = 30, inputs: int = 4) -> Tensor:
    return Draw(seed).normal(1, n, inputs)


def generic_weights(seed: int = 1, inputs: int = 4, d: int = 3) -> list[Tensor]:
    draw = Draw(seed)
    return [draw.normal(inputs, d) for _ in range(3)]


def without_values() -> tuple[Case, int]:
    """V = 0: M = G = 0, and J_V = PX ⊗ I is left."""
    w_q, w_k, w_v = generic_weights()
    return Case(long_tokens(), (w_q, w_k, 0 * w_v)), 4 * 3


def without_queries_and_keys() -> tuple[Case, int]:
    """P = 11ᵀ/N: only the mean token is left."""
    w_q, w_k, w_v = generic_weights()
    return Case(long_tokens(), (0 * w_q, 0 * w_k, w_v)), 3


def without_queries() -> tuple[Case, int]:
    """q = 0: J = [M ⊗ x_n, I ⊗ x̄] with one M for all n, whose columns span ℝᵈ ⊗ (span X + 1)."""
    w_q, w_k, w_v = generic_weights()
    return Case(long_tokens(), (0 * w_q, w_k, w_v)), 3 * (4 + 1)


def without_keys() -> tuple[Case, int]:
    """K = 0: J = [G ⊗ q_n, I ⊗ x̄] with one G for all n, whose columns span ℝᵈ ⊗ (span Q + 1)."""
    w_q, w_k, w_v = generic_weights()
    return Case(long_tokens(), (w_q, 0 * w_k, w_v)), 3 * (3 + 1)


def one_hot() -> tuple[Case, int]:
    """Each token of unit length attends to itself, all other probabilities underflow: Λ = 0, P = I."""
    x = torch.nn.functional.normalize(long_tokens(), dim=-1)
    eye = torch.eye(4, dtype=torch.float64)
    return Case(x, (eye, eye, generic_weights(d=4)[2]), scale=1e7), 4 * 4


def a_short_sequence_without_queries_and_keys() -> tuple[Case, int]:
    """As above; here J could have full row rank."""
    w_q, w_k, w_v = generic_weights()
    return Case(long_tokens(n=4), (0 * w_q, 0 * w_k, w_v)), 3


KNOWN = (
    without_values,
    without_queries_and_keys,
    without_queries,
    without_keys,
    one_hot,
    a_short_sequence_without_queries_and_keys,
)


@pytest.mark.parametrize("build", KNOWN, ids=lambda build: build.__name__)
@pytest.mark.parametrize("method", ["auto", "factor"])
def test_deficient_rank_is_reported_with_the_rank_that_theory_gives(build: Any, method: str) -> None:
    case, rank = build()
    found = jacobian.spectrum(case.head(), method=method)
    assert found.status == "rank deficient"
    assert found.rank == rank < found.structural_rank
    sigma = torch.linalg.svdvals(case.side_by_side())
    assert found.value == pytest.approx(float(sigma[0] / sigma[rank - 1]), rel=1e-6)  # over those that are not zero
    assert found.sigma_min == pytest.approx(float(sigma[rank - 1]), rel=1e-6)
    assert f"rank {rank} of {found.structural_rank}" in str(found)


def _with(role: int, change: Any) -> tuple[Tensor, ...]:
    weights = generic_weights()
    weights[role] = change(weights[role])
    return tuple(weights)


def empty_column(w: Tensor) -> Tensor:
    return w * torch.tensor([1.0, 0.0, 1.0], dtype=torch.float64)


def rank_one(w: Tensor) -> Tensor:
    return w[:, :1] @ w[:1]


def equal_columns(w: Tensor) -> Tensor:
    return w[:, [0, 1, 1]]


@pytest.mark.parametrize("role", [0, 1, 2], ids=["query", "key", "value"])
@pytest.mark.parametrize("change", [empty_column, rank_one, equal_columns], ids=lambda change: change.__name__)
@pytest.mark.parametrize("masked", [False, True])
def test_weights_of_deficient_rank_give_the_rank_of_the_differentiated_head(
    role: int, change: Any, masked: bool
) -> None:
    """Float64 leaves what is zero below n·eps ≈ 1e-14 σ_max; nothing else is below 1e-9 here."""
    case = Case(long_tokens(), _with(role, change), bias=causal_mask(30, 30) if masked else None)  # type: ignore[arg-type]
    sigma = torch.linalg.svdvals(case.side_by_side())
    generic = torch.linalg.svdvals(Case(long_tokens(), tuple(generic_weights()), bias=case.bias).side_by_side())  # type: ignore[arg-type]
    rank, structural = (int((s > 1e-9 * s[0]).sum()) for s in (sigma, generic))
    assert float(sigma[rank:].max()) < 1e-13 * float(sigma[0])
    found = jacobian.spectrum(case.head())
    assert (found.rank, found.structural_rank) == (rank, structural)
    assert found.status == ("rank deficient" if rank < structural else "ok")
    assert found.value == pytest.approx(float(sigma[0] / sigma[rank - 1]), rel=1e-5)


def test_an_empty_value_column_is_no_deficiency_where_mixed_tokens_have_full_row_rank() -> None:
    """For N ≤ D the block J_V = PX ⊗ I alone has full row rank, whatever W_V."""
    case = Case(long_tokens(n=4), _with(2, empty_column))  # type: ignore[arg-type]
    found = jacobian.spectrum(case.head())
    assert (found.status, found.rank) == ("ok", 12)


def test_equal_tokens_are_a_matter_of_the_input_and_no_deficiency() -> None:
    """Two equal tokens give equal rows of J whatever the weights, so the structural rank is lower too."""
    x = long_tokens(n=4, inputs=6)
    x[0, 3] = x[0, 1]
    case = Case(x, tuple(generic_weights(inputs=6)))  # type: ignore[arg-type]
    found = jacobian.spectrum(case.head())
    assert (found.status, found.rank, found.structural_rank) == ("ok", 9, 9)
    sigma = torch.linalg.svdvals(case.side_by_side())
    assert found.value == pytest.approx(float(sigma[0] / sigma[8]), rel=1e-6)


@pytest.mark.parametrize("method", ["auto", "gram", "factor"])
def test_tokens_that_are_all_zero_are_reported_and_not_an_error(method: str) -> None:
    """J = 0: no singular value is other than zero."""
    found = jacobian.spectrum(Case(torch.zeros(1, 4, 4), tuple(generic_weights())).head(), method=method)  # type: ignore[arg-type]
    assert found.sigma_max == 0.0
    assert found.rank == 0


@pytest.mark.parametrize("masked", [False, True])
def test_long_sequences_have_a_finite_condition_number_at_the_structural_rank(masked: bool) -> None:
    """N = 50 > 3D = 12: J has 150 rows and 36 columns, of which d² + d·0 directions have no effect."""
    bias = causal_mask(50, 50) if masked else None
    case = Case(long_tokens(n=50), tuple(generic_weights()), bias=bias)  # type: ignore[arg-type]
    sigma = torch.linalg.svdvals(case.side_by_side())
    found = jacobian.spectrum(case.head())
    assert (found.status, found.rank, found.structural_rank) == ("ok", 36 - 9, 36 - 9)
    assert found.value == pytest.approx(float(sigma[0] / sigma[26]), rel=1e-6)


# ---------------------------------------------------------------------------------------------------------------------
# Beyond the resolution


@pytest.mark.parametrize("seed", range(3))
def test_beyond_float64_a_valid_lower_bound_is_given(seed: int) -> None:
    """An even decay to about 1e-16: no gap says where the rank ends."""
    case = values_alone(seed, 12, 16)
    sigma = truth(case)
    kappa = float(sigma[0] / sigma[11])
    assert kappa > 1e15
    found = jacobian.spectrum(case.head())
    assert found.status == "unresolved"
    assert 1e12 < found.value <= kappa
    assert str(found).startswith("≥")


def test_what_is_below_the_resolution_after_a_gap_is_never_called_well_conditioned() -> None:
    """κ = 1e15 by one singular value alone looks like a deficient rank; either way κ is at least `value`."""
    case = head_of_condition(1e15)
    sigma = truth(case)
    found = jacobian.spectrum(case.head())
    assert found.status in ("unresolved", "rank deficient")
    assert found.value <= sigma[0] / sigma[11] * (1 + mpmath.mpf(1e-12))


@pytest.mark.parametrize("kappa", [1e9, 1e10, 1e12])
def test_the_gram_route_alone_does_not_take_what_it_cannot_resolve_for_a_deficient_rank(kappa: float) -> None:
    """λ_min/λ_max = κ⁻² is below eps, but the rank is full; a smaller route must not claim more than it knows."""
    head = head_of_condition(kappa).head()
    cost = jacobian.estimate(head)
    assert cost.gram_bytes < cost.factor_bytes
    for found in (jacobian.spectrum(head, method="gram"), jacobian.spectrum(head, max_memory=cost.gram_bytes)):
        assert (found.method, found.status) == ("gram", "unresolved")
        assert 1e5 < found.value <= kappa * 1.01


@pytest.mark.parametrize("scale", [10.0, 100.0, 1000.0, 10000.0])
def test_saturated_attention_is_judged_alike_with_and_without_iteration(
    scale: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Probabilities far below eps leave tiny numbers in the triangle, whose inverse squared overflows.

    Large Jacobians are measured by inverse iteration; here it is made to measure small ones.
    """
    for seed in (*range(12), 193, 208, 215):
        n, inputs, d = ((4, 4, 2), (7, 7, 1), (3, 8, 4), (9, 2, 1))[seed % 4]
        head = decaying(seed, n, inputs, d, 1 + seed % 5, scale).head()
        monkeypatch.setattr("wellcond.jacobian.gram_and_qr.MAX_ALL_VALUES", 1024)
        whole = jacobian.spectrum(head, method="factor")
        monkeypatch.setattr("wellcond.jacobian.gram_and_qr.MAX_ALL_VALUES", 1)
        found = jacobian.spectrum(head, method="factor")
        assert (found.status, found.rank, found.structural_rank) == (whole.status, whole.rank, whole.structural_rank)
        assert abs(found.sigma_min - whole.sigma_min) <= found.error + whole.error, seed


# ---------------------------------------------------------------------------------------------------------------------
# Rows


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("convention", ["side-by-side", "vertical"])
def test_a_lower_bound_from_rows_is_below_the_whole(convention: str, masked: bool) -> None:
    """Both by their own route, each to 1e-3 of σ_min."""
    certified = 0
    for seed in range(80):
        draw = Draw(seed)
        n, inputs, d = 3 + seed % 5, 4 + seed % 7, 1 + seed % 3
        weights = tuple(draw.normal(inputs, d) / inputs**0.5 for _ in range(3))
        case = Case(draw.normal(1, n, inputs), weights, bias=causal_mask(n, n) if masked else None)  # type: ignore[arg-type]
        count = int(torch.randint(1, n, (), generator=draw.generator))
        rows = torch.randperm(n, generator=draw.generator)[:count].tolist()
        part = jacobian.spectrum(case.head(), rows=rows, convention=convention)
        if part.status != "lower bound":
            continue
        certified += 1
        j = case.side_by_side() if convention == "side-by-side" else case.vertical()
        sigma = torch.linalg.svdvals(j)
        whole = float(sigma[0] / sigma[sigma > 1e-13 * sigma[0]].min())
        assert part.value <= whole * 1.002, (seed, rows)
        assert str(part).startswith("≥")
    assert convention == "vertical" or certified > 20


def test_rows_of_a_short_sequence_certify_a_lower_bound() -> None:
    """N ≤ D: PX, and so J, has full row rank."""
    for seed in range(20):
        draw = Draw(seed)
        head = Case(draw.normal(2, 3, 8), tuple(draw.normal(3, 8, 2) / 8**0.5)).head()  # type: ignore[arg-type]
        assert jacobian.spectrum(head, rows=2).status == "lower bound"
        assert jacobian.spectrum(head, rows=3).status == "ok"


@pytest.mark.parametrize("n", [15, 40])
def test_rows_of_a_jacobian_without_full_row_rank_are_a_sample(n: int) -> None:
    """N·d > 3Dd − d²: fewer independent columns than rows."""
    draw = Draw(n)
    head = Case(draw.normal(1, n, 4), tuple(draw.normal(3, 4, 2))).head()
    for rows in (3, 10, [0, 1, 2, n - 1]):
        found = jacobian.spectrum(head, rows=rows)
        assert found.status == "row sample"
        assert not str(found).startswith("≥")


def test_deficiency_of_the_whole_takes_the_certificate_away() -> None:
    """Two equal tokens: J has no full row rank, though each of the rows below is another."""
    x = long_tokens(n=4, inputs=6)
    x[0, 3] = x[0, 1]
    head = Case(x, tuple(generic_weights(inputs=6))).head()  # type: ignore[arg-type]
    assert jacobian.spectrum(head, rows=[0, 1, 2]).status == "row sample"


@pytest.mark.parametrize("rows", [0, -1, [], [7], [-1], [0, 5]])
def test_rows_that_do_not_exist_are_refused(rows: Any) -> None:
    head = Case(long_tokens(n=5), tuple(generic_weights())).head()  # type: ignore[arg-type]
    with pytest.raises(WellcondError, match="row"):
        jacobian.spectrum(head, rows=rows)


# ---------------------------------------------------------------------------------------------------------------------
# Memory


@pytest.mark.parametrize("masked", [False, True])
def test_without_memory_the_largest_singular_value_is_known(masked: bool) -> None:
    for seed in range(12):
        draw = Draw(seed)
        n, inputs, d = 2 + seed, 3 + seed % 6, 1 + seed % 4
        bias = causal_mask(n, n) if masked else None
        weights = (draw.normal(inputs, d), draw.normal(inputs, d), draw.normal(inputs, 1 + seed % 3))
        case = Case(draw.normal(2, n, inputs), weights, bias=bias)
        sigma = float(torch.linalg.svdvals(case.side_by_side())[0])
        for found in (
            jacobian.spectrum(case.head(), max_memory=1),
            jacobian.spectrum(case.head(), method="matrix-free"),
        ):
            assert (found.status, found.method) == ("largest only", "matrix-free")
            assert (found.value, found.sigma_min, found.rank, found.structural_rank) == (None, None, None, None)
            assert found.sigma_max == pytest.approx(sigma, rel=1e-5)
            assert abs(found.sigma_max - sigma) <= found.error + 1e-14 * sigma
            assert "largest only" in str(found)


def test_the_largest_singular_value_of_some_rows_without_memory() -> None:
    case = Case(long_tokens(n=9), tuple(generic_weights()))  # type: ignore[arg-type]
    sigma = float(torch.linalg.svdvals(case.side_by_side([1, 4, 6]))[0])
    assert jacobian.spectrum(case.head(), rows=[1, 4, 6], max_memory=1).sigma_max == pytest.approx(sigma, rel=1e-5)


@pytest.mark.parametrize("method", ["gram", "factor"])
def test_a_method_that_does_not_fit_is_refused_with_the_next_step(method: str) -> None:
    head = Case(long_tokens(n=9), tuple(generic_weights())).head()  # type: ignore[arg-type]
    with pytest.raises(WellcondError, match=rf"{method}.*max_memory.*rows=.*matrix-free"):
        jacobian.spectrum(head, method=method, max_memory=1000)
    need = getattr(jacobian.estimate(head), f"{method}_bytes")
    assert jacobian.spectrum(head, method=method, max_memory=need).method == method


def test_the_estimate_counts_what_there_is() -> None:
    """Rows are sequences × queries × d_v; columns are per role min(tokens, D) × width."""
    draw = Draw(0)
    case = Case(
        draw.normal(2, 3, 10), (draw.normal(10, 4), draw.normal(7, 4), draw.normal(7, 5)), memory=draw.normal(2, 9, 7)
    )
    cost = jacobian.estimate(case.head())
    assert (cost.rows, cost.columns) == (2 * 3 * 5, 6 * 4 + 7 * 4 + 7 * 5)
    assert jacobian.matrix(case.head()).shape == (cost.rows, cost.columns)
    cost = jacobian.estimate(case.head(), rows=[1])
    assert (cost.rows, cost.columns) == (2 * 1 * 5, 2 * 4 + 7 * 4 + 7 * 5)
    assert jacobian.matrix(case.head(), rows=[1]).shape == (cost.rows, cost.columns)


# ---------------------------------------------------------------------------------------------------------------------
# Honesty


@pytest.fixture(scope="module")
def draws() -> list[tuple[Case, list[Any]]]:
    """Heads of κ from 1e1 to 1e15 and logits from 0.1 to 100, with their singular values in 50 digits."""
    cases = [
        decaying(
            seed, *((5, 6, 2), (4, 4, 2), (6, 3, 1), (7, 7, 1))[seed % 4], seed % 12, (0.3, 1.0, 3.0, 30.0)[seed % 3]
        )
        for seed in range(36)
    ]
    return [(case, truth(case)) for case in cases]


@pytest.mark.parametrize("method", ["gram", "factor", "auto"])
@pytest.mark.parametrize("iterated", [False, True])
def test_the_stated_error_holds_and_is_not_far_too_large(
    method: str, iterated: bool, draws: list[tuple[Case, list[Any]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once as such small heads are measured, once by the iterations that large ones need."""
    if iterated:
        monkeypatch.setattr("wellcond.jacobian.gram_and_qr.MAX_ALL_VALUES", 1)
    pessimism, conditions = [], []
    for number, (case, sigma) in enumerate(draws):
        found = jacobian.spectrum(case.head(), method=method)
        index = found.rank if found.status == "rank deficient" else found.structural_rank
        off = abs(found.sigma_min - sigma[index - 1])
        assert off <= found.error, (number, found, float(off))
        assert abs(found.sigma_max - sigma[0]) <= 1e-10 * sigma[0]
        if found.status == "unresolved":
            assert found.value <= sigma[0] / sigma[index - 1]
        if found.status == "ok":
            pessimism.append(float(found.error / max(off, mpmath.mpf(1e-300))))
            conditions.append(math.log10(found.value))
    assert statistics.median(pessimism) <= 1e4
    assert min(conditions) < 3
    assert max(conditions) > (6 if method == "gram" else 10)
