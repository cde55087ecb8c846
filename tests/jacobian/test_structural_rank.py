"""The structural rank: what generic weights would have on the same tokens.

Two independent sources: the formulas of the theory, each with its reason, and the rank of differentiated heads with
random weights. Weights are scaled so that the softmax is not saturated: what is not zero then stays far above rounding.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import wellcond as wc
from tests.jacobian.test_properties import FEATURES, Case, Draw
from wellcond import jacobian
from wellcond.attention.replay import causal_mask

ZERO = 1e-12  # of σ_max; rounding leaves n·eps ≈ 1e-14 of a singular value that is zero


def weights_for(draw: Draw, inputs: int, d: int, d_v: int | None = None, memory: int | None = None) -> Any:
    memory = inputs if memory is None else memory
    return (
        draw.normal(inputs, d) / inputs**0.5,
        draw.normal(memory, d) / memory**0.5,
        draw.normal(memory, d_v or d) / memory**0.5,
    )


def assert_structure(case: Case, expected: int) -> None:
    """Generic weights: the rank is the structural one, and κ is taken there.

    The eps of a QK-norm leaves something of the two scalings that would have no effect without it; they do not count.
    """
    exact = torch.linalg.svdvals(replace(case, eps=0.0).side_by_side())
    assert int((exact > ZERO * exact[0]).sum()) == expected, "the formula itself"
    sigma = torch.linalg.svdvals(case.side_by_side())
    found = jacobian.spectrum(case.head())
    assert (found.structural_rank, found.rank, found.status) == (expected, expected, "ok")
    assert found.value == pytest.approx(float(sigma[0] / sigma[expected - 1]), rel=1e-5)


# ---------------------------------------------------------------------------------------------------------------------
# Tokens


def rms_norm(draw: Draw, n: int, inputs: int) -> Tensor:
    x = draw.normal(n, inputs)
    return x / x.square().mean(-1, keepdim=True).sqrt()


def layer_norm(draw: Draw, n: int, inputs: int, *, gain: bool = True, bias: bool = False) -> Tensor:
    x = torch.nn.functional.layer_norm(draw.normal(n, inputs), (inputs,))
    x = x * draw.positive(inputs) if gain else x
    return x + draw.normal(inputs) if bias else x


TOKENS: dict[str, tuple[Callable[[Draw, int, int], Tensor], int, bool]] = {  # tokens, D − r, whether 1 is in the span
    "generic": (lambda draw, n, inputs: draw.normal(n, inputs), 0, False),
    "rms-norm": (rms_norm, 0, False),
    "layer-norm": (lambda *a: layer_norm(*a, gain=False), 1, False),
    "layer-norm-gain": (layer_norm, 1, False),
    "layer-norm-bias": (lambda *a: layer_norm(*a, bias=True), 0, True),
    "constant-column": (lambda draw, n, i: torch.cat([draw.normal(n, i - 1), torch.ones(n, 1)], 1), 0, True),
    "constant-in-the-span": (
        lambda draw, n, i: torch.cat([draw.normal(n, i - 1), torch.ones(n, 1)], 1) @ draw.normal(i, i),
        0,
        True,
    ),
    "rank-of-two-fewer": (
        lambda draw, n, inputs: draw.normal(n, inputs - 2) @ draw.normal(inputs - 2, inputs),
        2,
        False,
    ),
}
LONG = 40


@pytest.mark.parametrize("tokens", TOKENS)
@pytest.mark.parametrize(("inputs", "d"), [(5, 2), (6, 3)])
@pytest.mark.parametrize("masked", [False, True])
def test_plain_attention(tokens: str, inputs: int, d: int, masked: bool) -> None:
    """3rd − d² − e: (W_Q M, W_K M⁻ᵀ) changes no logit, and a constant in the span shifts all logits of a row alike."""
    draw = Draw(1)
    make, missing, constant = TOKENS[tokens]
    x = make(draw, LONG, inputs)
    case = Case(x[None], weights_for(draw, inputs, d), bias=causal_mask(LONG, LONG) if masked else None)
    r = inputs - missing
    assert_structure(case, 3 * r * d - d * d - (d if constant else 0))


@pytest.mark.parametrize("tokens", ["generic", "layer-norm", "layer-norm-bias"])
def test_short_sequences_have_full_row_rank_until_the_directions_run_out(tokens: str) -> None:
    draw = Draw(2)
    inputs, d = 5, 2
    make, missing, constant = TOKENS[tokens]
    r = inputs - missing
    whole = 3 * r * d - d * d - (d if constant else 0)
    for n in (1, 2, 3, 4, 8, 12, 13, 14, 20):
        case = Case(make(draw, n, inputs)[None], weights_for(draw, inputs, d))
        if n <= d:  # the rank of what the tokens give is smaller than r
            continue
        found = jacobian.spectrum(case.head())
        assert found.structural_rank == min(n * d, whole), n


@pytest.mark.parametrize("d_v", [1, 4])
def test_a_value_width_of_its_own(d_v: int) -> None:
    """2rd + r·d_v − d²: the gauge is one of queries and keys. One coordinate of values is enough for it."""
    draw = Draw(3)
    case = Case(draw.normal(1, 60, 5), weights_for(draw, 5, 2, d_v))
    assert_structure(case, 2 * 5 * 2 + 5 * d_v - 4)


@pytest.mark.parametrize("tokens", TOKENS)
def test_rotary_attention(tokens: str) -> None:
    """3rd − d: only complex numbers, one for each pair, commute with all rotations; a constant shifts nothing alike."""
    draw = Draw(4)
    make, missing, _ = TOKENS[tokens]
    case = Case(make(draw, LONG, 6)[None], weights_for(draw, 6, 4), rotary=True)
    assert_structure(case, 3 * (6 - missing) * 4 - 4)


@pytest.mark.parametrize(("norm", "eps"), [("l2", 0.0), ("rms", 1e-8), ("rms", 1e-6), ("rms", 1e-5)])
@pytest.mark.parametrize("gain", [False, True])
@pytest.mark.parametrize("tokens", ["generic", "layer-norm-bias"])
def test_query_key_norm(norm: str, eps: float, gain: bool, tokens: str) -> None:
    """3Dd − d(d−1)/2 − 2: rotations of both together, and the lengths of W_Q and of W_K; with a gain only these."""
    draw = Draw(5)
    inputs, d = 5, 3
    x = TOKENS[tokens][0](draw, LONG, inputs)
    gains = draw.positive(d) if gain else None
    case = Case(x[None], weights_for(draw, inputs, d), norm=norm, eps=eps, gain=gains, scale=1.0)
    # A gain on both sides is the metric G² between them: W_Q → W_Q A must keep lengths and A G² Bᵀ = G², so A and B are
    # rotations with A = G² B G⁻², which leaves none for generic G.
    expected = 3 * inputs * d - (0 if gain else d * (d - 1) // 2) - 2
    assert_structure(case, expected)


def test_query_key_norm_of_sequences_just_long_enough() -> None:
    """D = 4, d = 2: 21 directions, so 11 tokens suffice; σ at the structural rank is then small, but not zero."""
    for seed in [*range(30), 391]:
        draw = Draw(seed)
        case = Case(draw.normal(1, 11, 4), weights_for(draw, 4, 2), norm="l2")
        assert clear_rank(case) in (21, None), "the formula itself"
        assert jacobian.spectrum(case.head()).structural_rank == 21, seed


@pytest.mark.parametrize(("inputs", "d"), [(5, 3), (6, 4), (12, 6)])
@pytest.mark.parametrize("eps", [1e-8, 1e-6, 1e-5])  # 1e-5 is the default of `nn.LayerNorm`
def test_query_key_layer_norm(inputs: int, d: int, eps: float) -> None:
    """3Dd − 2D − (d−1)(d−2)/2 − 2: means of q and k are lost (2D), then as ℓ2-norm in d − 1 coordinates."""
    draw = Draw(6)
    case = Case(draw.normal(1, 80, inputs), weights_for(draw, inputs, d), norm="layer", eps=eps, scale=1.0)
    assert_structure(case, 3 * inputs * d - 2 * inputs - (d - 1) * (d - 2) // 2 - 2)


@pytest.mark.parametrize("tokens", ["generic", "layer-norm", "layer-norm-bias"])
@pytest.mark.parametrize("roles", [("query",), ("key",), ("value",), ("key", "value"), ("query", "key", "value")])
def test_biases(tokens: str, roles: tuple[str, ...]) -> None:
    """A query bias b that the tokens cannot express leaves only M with bᵀM = 0 without effect, d(d−1) of d².

    Key and value biases shift all logits of a row and all outputs alike. Where 1 is in the span, W_Q can express b.
    """
    draw = Draw(7)
    inputs, d = 5, 2
    make, missing, constant = TOKENS[tokens]
    biases = {role: draw.normal(d) for role in roles}
    case = Case(make(draw, LONG, inputs)[None], weights_for(draw, inputs, d), biases=biases)
    gauge = d * d + d if constant else d * d - (d if "query" in roles else 0)
    assert_structure(case, 3 * (inputs - missing) * d - gauge)


def test_a_bias_of_zeros_is_none() -> None:
    draw = Draw(8)
    case = Case(draw.normal(1, LONG, 5), weights_for(draw, 5, 2), biases={"query": torch.zeros(2, dtype=torch.float64)})
    assert_structure(case, 30 - 4)


@pytest.mark.parametrize("tokens", ["generic", "layer-norm-bias"])
def test_a_soft_cap_sees_shifts(tokens: str) -> None:
    """tanh does not shift all logits of a row alike: the gauge of M remains, that of the constant does not."""
    draw = Draw(9)
    case = Case(TOKENS[tokens][0](draw, LONG, 5)[None], weights_for(draw, 5, 2), softcap=1.0)
    assert_structure(case, 30 - 4)


@pytest.mark.parametrize("tokens", ["generic", "layer-norm-bias"])
def test_a_relative_bias_changes_nothing(tokens: str) -> None:
    draw = Draw(10)
    make, _, constant = TOKENS[tokens]
    case = Case(make(draw, LONG, 5)[None], weights_for(draw, 5, 2), bias=draw.normal(LONG, LONG))
    assert_structure(case, 30 - 4 - (2 if constant else 0))


@pytest.mark.parametrize("tokens", ["generic", "layer-norm-bias"])
def test_a_scale_per_row_changes_nothing(tokens: str) -> None:
    draw = Draw(11)
    make, _, constant = TOKENS[tokens]
    case = Case(make(draw, LONG, 5)[None], weights_for(draw, 5, 2), scale=draw.positive(LONG, 1))
    assert_structure(case, 30 - 4 - (2 if constant else 0))


@pytest.mark.parametrize("tokens", ["generic", "layer-norm-bias"])
def test_a_scale_per_key_sees_shifts(tokens: str) -> None:
    """Logits s_t q·k_t: a shift of all keys alike now changes each logit of a row by another amount."""
    draw = Draw(12)
    case = Case(TOKENS[tokens][0](draw, LONG, 5)[None], weights_for(draw, 5, 2), scale=draw.positive(LONG))
    assert_structure(case, 30 - 4)


# ---------------------------------------------------------------------------------------------------------------------
# Masks, batches, memories


@pytest.mark.parametrize("constant", [False, True])
def test_padding(constant: bool) -> None:
    """Of a sequence half of whose keys are hidden, keys and values have the span of the others; queries have all."""
    draw = Draw(13)
    inputs, d, n = 5, 2, 50
    x = draw.normal(1, n, inputs)
    x[:, :25, 0] = 0.0  # what is seen has rank 4
    if constant:
        x[:, :25, 1] = 1.0
    bias = torch.zeros(n).masked_fill(torch.arange(n) >= 25, float("-inf"))
    expected = inputs * d + 2 * (inputs - 1) * d - d * d - (d if constant else 0)
    assert_structure(Case(x, weights_for(draw, inputs, d), bias=bias), expected)


@pytest.mark.parametrize("tokens", ["generic", "layer-norm", "layer-norm-bias"])
@pytest.mark.parametrize("masked", [False, True])
def test_batches_have_the_rank_of_all_their_tokens(tokens: str, masked: bool) -> None:
    draw = Draw(14)
    inputs, d, n = 6, 2, 12
    make, missing, constant = TOKENS[tokens]
    x = make(draw, 4 * n, inputs).view(4, n, inputs)
    case = Case(x, weights_for(draw, inputs, d), bias=causal_mask(n, n) if masked else None)
    assert_structure(case, 3 * (inputs - missing) * d - d * d - (d if constant else 0))


def test_a_constant_for_each_sequence_counts_as_often_as_there_are_sequences() -> None:
    """A coordinate that numbers the sequence: keys may be shifted in each by an amount of its own."""
    draw = Draw(15)
    x = draw.normal(2, 40, 6)
    x[0, :, :2] = torch.tensor([1.0, 0.0])
    x[1, :, :2] = torch.tensor([0.0, 1.0])
    assert_structure(Case(x, weights_for(draw, 6, 2)), 36 - 4 - 2 * 2)


@pytest.mark.parametrize("constant", [False, True])
def test_cross_attention_with_a_long_memory(constant: bool) -> None:
    """r_X d + 2 r_Y d − d² − e, where only a constant in the span of the memory shifts keys."""
    draw = Draw(16)
    memory = draw.normal(1, 40, 4)
    if constant:
        memory[..., 0] = 1.0
    x = draw.normal(1, 40, 5)
    x[..., 0] = 1.0  # of no consequence
    case = Case(x, weights_for(draw, 5, 2, memory=4), memory=memory)
    assert_structure(case, 5 * 2 + 2 * 4 * 2 - 4 - (2 if constant else 0))


@pytest.mark.parametrize(("n", "inputs"), [(4, 6), (6, 6), (20, 6)])
def test_stacked_vertically_the_rank_is_that_of_the_tokens_times_the_width(n: int, inputs: int) -> None:
    """All three blocks kill what is orthogonal to the tokens, and J_V alone keeps the rest where P is regular."""
    draw = Draw(17)
    case = Case(draw.normal(1, n, inputs), weights_for(draw, inputs, 2))
    sigma = torch.linalg.svdvals(case.vertical())
    rank = min(n, inputs) * 2
    assert int((sigma > ZERO * sigma[0]).sum()) == rank
    found = jacobian.spectrum(case.head(), convention="vertical")
    assert (found.structural_rank, found.rank, found.status) == (rank, rank, "ok")
    assert found.value == pytest.approx(float(sigma[0] / sigma[rank - 1]), rel=1e-5)


@pytest.mark.parametrize(("n", "t", "inputs"), [(3, 5, 12), (5, 3, 12), (5, 6, 8), (4, 20, 6), (20, 20, 6)])
def test_cross_attention_can_be_stacked_vertically(n: int, t: int, inputs: int) -> None:
    """Queries reach the span of the tokens, keys and values that of the memory; together that of both."""
    draw = Draw(18)
    case = Case(draw.normal(1, n, inputs), weights_for(draw, inputs, 2), memory=draw.normal(1, t, inputs))
    sigma = torch.linalg.svdvals(case.vertical())
    rank = int((sigma > ZERO * sigma[0]).sum())
    found = jacobian.spectrum(case.head(), convention="vertical")
    assert (found.structural_rank, found.rank, found.status) == (rank, rank, "ok")
    assert found.value == pytest.approx(float(sigma[0] / sigma[rank - 1]), rel=1e-5)


# ---------------------------------------------------------------------------------------------------------------------
# Against differentiated heads


def clear_rank(case: Case) -> int | None:
    """The rank of a differentiated head, None where float64 cannot tell it."""
    sigma = torch.linalg.svdvals(case.side_by_side())
    sigma = sigma / sigma[0]
    unclear = (sigma > 1e-14 * len(sigma)) & (sigma < 1e-7)
    return None if unclear.any() else int((sigma >= 1e-7).sum())


def generic_rank(case: Case, seed: int, *, draws: int = 2) -> int | None:
    """The largest rank of heads with the same tokens and random weights."""
    found = []
    for number in range(draws):
        draw = Draw(1000 * seed + number)
        w_q, w_k, w_v = case.weights
        weights = weights_for(draw, w_q.shape[0], w_q.shape[1], w_v.shape[1], w_k.shape[0])
        found.append(clear_rank(replace(case, weights=weights)))
    return None if None in found else max(rank for rank in found if rank is not None)


def draw_case(data: Any, *, narrow: bool) -> tuple[Case, int]:
    """Tokens of rank at least d and d_v, or of a smaller one."""
    seed, batch, n = data.draw(st.tuples(st.integers(0, 2**16), st.integers(1, 2), st.integers(1, 14)))
    r, constant, masked = data.draw(st.tuples(st.integers(1, 4), st.booleans(), st.booleans()))
    inputs = data.draw(st.integers(r, 5))
    widths = st.integers(1, 5 if narrow else r)
    d, d_v = data.draw(st.tuples(widths, widths))
    draw = Draw(seed)
    factors = draw.normal(batch * n, r)
    if constant:
        factors[:, 0] = 1.0
    x = (factors @ draw.normal(r, inputs)).view(batch, n, inputs)
    return Case(x, weights_for(draw, inputs, d, d_v), bias=causal_mask(n, n) if masked else None), seed


@pytest.mark.parametrize("narrow", [False, True], ids=["tokens-span-the-head", "tokens-of-any-rank"])
@settings(max_examples=120)
@given(data=st.data())
def test_the_structural_rank_is_that_of_random_weights_on_the_same_tokens(narrow: bool, data: Any) -> None:
    """Few or many tokens of any rank, wide and narrow heads, with and without a constant in the span."""
    case, seed = draw_case(data, narrow=narrow)
    expected, rank = generic_rank(case, seed), clear_rank(case)
    assume(expected is not None and rank == expected)
    found = jacobian.spectrum(case.head())
    assert (found.structural_rank, found.rank, found.status) == (expected, expected, "ok")


@pytest.mark.parametrize(
    ("n", "inputs", "r", "d", "d_v"), [(12, 6, 2, 4, 4), (30, 3, 3, 4, 4), (5, 3, 3, 2, 5), (3, 1, 1, 2, 1)]
)
def test_heads_wider_than_the_rank_of_their_tokens(n: int, inputs: int, r: int, d: int, d_v: int) -> None:
    """For r ≤ d the logits have r² degrees of freedom, not 2rd − d²; values of more coordinates than r reach r of them.

    So the rank is at most r·d_v + min(2rd − d², r²) and at most r·d_v + (N − r)·r; here it is the smaller.
    """
    draw = Draw(20)
    x = draw.normal(n, r) @ draw.normal(r, inputs)
    gauge_free = r * r if r <= d else 2 * r * d - d * d
    assert_structure(Case(x[None], weights_for(draw, inputs, d, d_v)), r * d_v + min(gauge_free, (n - r) * min(r, d_v)))


def test_a_constant_in_the_span_leaves_values_one_direction_fewer() -> None:
    """Differences of tokens span r − 1 dimensions; a last coordinate of d_v = r is reached by J_V alone, r times."""
    draw = Draw(21)
    x = draw.normal(1, 4, 3)
    x[..., 0] = 1.0
    assert_structure(Case(x, weights_for(draw, 3, 2, 3)), 4 * 2 + 3)


@settings(max_examples=60)
@given(
    seed=st.integers(0, 2**16),
    feature=st.sampled_from(
        [name for name in FEATURES if "rms" not in name and "layer" not in name and "left" not in name]
    ),
    n=st.integers(2, 20),
    t=st.integers(2, 20),
    cross=st.booleans(),
)
def test_the_structural_rank_with_any_feature(seed: int, feature: str, n: int, t: int, cross: bool) -> None:
    """The norms with an eps are left out: what the eps leaves is neither zero nor not."""
    draw = Draw(seed)
    d = 2
    memory = draw.normal(1, t, 3) if cross else None
    case = Case(draw.normal(1, n, 4), weights_for(draw, 4, d, memory=3 if cross else None), memory=memory)
    case = FEATURES[feature](case, draw)
    expected, rank = generic_rank(case, seed), clear_rank(case)
    assume(expected is not None and rank == expected)
    found = jacobian.spectrum(case.head())
    assert (found.structural_rank, found.rank, found.status) == (expected, expected, "ok")


@settings(max_examples=40)
@given(seed=st.integers(0, 2**16), n=st.integers(2, 16), data=st.data())
def test_the_structural_rank_of_some_rows(seed: int, n: int, data: Any) -> None:
    draw = Draw(seed)
    case = Case(draw.normal(1, n, 3), weights_for(draw, 3, 2))
    rows = data.draw(st.lists(st.integers(0, n - 1), min_size=1, max_size=n, unique=True).map(sorted))
    sigma = torch.linalg.svdvals(case.side_by_side(rows))
    sigma = sigma / sigma[0]
    assume(not ((sigma > 1e-13) & (sigma < 1e-7)).any())
    found = jacobian.spectrum(case.head(), rows=rows)
    assert found.structural_rank == found.rank == int((sigma > 1e-7).sum())


# ---------------------------------------------------------------------------------------------------------------------
# Real layers


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("bias", [False, True])
def test_a_pre_norm_layer_has_the_structural_rank_of_its_layer_norm(dtype: torch.dtype, bias: bool) -> None:
    """r = D − 1 without a bias, a constant in the span with one; in float32 too, whose rounding is no direction."""
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(6, 2, 8, norm_first=True, batch_first=True, dtype=dtype)
    if bias:
        nn.init.normal_(layer.norm1.bias)
    x = torch.randn(1, 60, 6, dtype=dtype)
    found = jacobian.spectrum(jacobian.head_of(wc.attention_layers(layer)[0], x, 0))
    assert found.structural_rank == (3 * 6 * 3 - 9 - 3 if bias else 3 * 5 * 3 - 9)
    assert found.status == "ok"
