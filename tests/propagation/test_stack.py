"""The recursion over blocks: golden values, what it keeps, and parameters out of range."""

from __future__ import annotations

import math
from typing import Any

import pytest

from tests.propagation.oracles import COARSE, INF, NAN, SMOOTH, smooth_oracle
from wellcond.errors import WellcondError
from wellcond.propagation.propagate import propagate


@pytest.mark.parametrize(
    ("beta", "theory", "cosines"),
    [
        (0.5, "asymptotic", (0.2355335976, 0.4067201419, 0.9200602500)),
        (0.5, "finite", (0.2358703177, 0.4081807740, 0.9207628458)),
        (1.8, "asymptotic", (0.2313294861, 0.3888656702, 0.9147121496)),
        (1.8, "finite", (0.2263152083, 0.3514940263, 0.8761695284)),
        (3.0, "asymptotic", (0.2200049227, 0.3110679360, 0.7713480630)),
        (3.0, "finite", (0.2192407569, 0.3063063255, 0.7490825071)),
    ],
)
def test_a_post_norm_relu_stack_has_its_golden_cosines(
    beta: float, theory: str, cosines: tuple[float, float, float]
) -> None:
    found = propagate(20, 256, beta, 0.2, (0.2, 0.2), 4e-4, norm="post", activation="relu", theory=theory).cosine
    tolerance = COARSE if theory == "finite" else 6e-11  # the asymptotic recursion has nothing to integrate
    assert [found[layer] for layer in (1, 5, 20)] == pytest.approx(cosines, abs=tolerance)


def test_a_pre_norm_gelu_stack_has_its_golden_size_and_similarity() -> None:
    found = propagate(20, 256, 2.0)
    # Sizes are sums of 20 layers, each with the error of one coarse pair.
    assert found.size[20] == pytest.approx(23.07561136, abs=20 * COARSE)
    assert found.size[20] * found.cosine[20] == pytest.approx(17.34562683, abs=20 * COARSE)


@pytest.mark.parametrize("norm", ["pre", "post", "none"])
@pytest.mark.parametrize("activation", ["relu", "gelu", "tanh", "erf"])
@pytest.mark.parametrize("theory", ["finite", "asymptotic"])
def test_equal_tokens_stay_equal(norm: str, activation: str, theory: str) -> None:
    found = propagate(4, 32, 1.5, 0.7, (0.9, 0.8), 0.01, norm=norm, activation=activation, cosine=1.0, theory=theory)
    assert found.cosine == pytest.approx([1.0] * 5, abs=1e-12)  # tanh's kernel is quadrature
    assert found.query_gradient == pytest.approx([0.0] * 4, abs=1e-12)


@pytest.mark.parametrize("norm", ["pre", "post"])
@pytest.mark.parametrize("cosine", [-0.02, 0.0, 0.5, 0.999999])
@pytest.mark.parametrize("beta", [0.0, 1.0, 4.0])
def test_no_similarity_exceeds_one(norm: str, cosine: float, beta: float) -> None:
    found = propagate(6, 32, beta, norm=norm, cosine=cosine)
    assert max(found.cosine) <= 1.0
    assert min(found.cosine) >= cosine - 1e-9  # β = 0 averages all tokens, more can only lessen that
    assert all(
        1 / 32 - 1e-9 <= y < 1 and 0 <= h <= 1 + 1e-9 for y, h in zip(found.participation, found.entropy, strict=True)
    )
    assert all(x <= y + COARSE for x, y in zip(found.overlap, found.participation, strict=True))


def test_without_a_residual_a_post_norm_forgets_the_gain_of_the_values() -> None:
    stacks = [
        propagate(6, 64, 1.5, gain, norm="post", residual_attention=0.0, activation="relu") for gain in (0.05, 1.0, 9.0)
    ]
    for stack in stacks[1:]:
        assert stack.cosine == pytest.approx(stacks[0].cosine, abs=1e-12)
        assert stack.participation == pytest.approx(stacks[0].participation, abs=1e-12)


@pytest.mark.parametrize("beta", [0.1, 1.0, 3.0])
@pytest.mark.parametrize("activation", ["gelu", "tanh", "relu"])
@pytest.mark.parametrize("skip", [0.5, 1.0])
def test_collapse_has_the_exponent_of_its_closed_form_at_any_temperature(
    beta: float, activation: str, skip: float
) -> None:
    gain, first, second, other = 0.4, 1.5, 2.0, 0.7
    near = 1 - 1e-8
    if activation == "relu":
        value, slope = first / 2, 0.5
    else:
        phi, derivative = SMOOTH[activation]
        value, slope = smooth_oracle(phi, first, first), smooth_oracle(derivative, first, first)
    chi = (other**2 + first * second * slope) / (other**2 + second * value)
    expected = math.log(skip**2 / (skip**2 + gain)) + math.log(chi)
    found = propagate(
        1, 64, beta, gain, (first, second), residual_attention=skip, residual_mlp=other, norm="post",
        activation=activation, cosine=near,
    ).cosine  # fmt: skip
    # ReLU's kernel has a term in (1 − ρ)^(3/2): 1e-4 of the linear one here. Others: rounding, eps/1e-8.
    tolerance = 3e-4 if activation == "relu" else 1e-6
    assert math.log((1 - found[1]) / (1 - found[0])) == pytest.approx(expected, abs=tolerance)


GOOD: dict[str, Any] = {"depth": 2, "tokens": 16, "beta": 1.0}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("depth", v) for v in (0, -1, 1.5, True, None, "2")),
        *(("tokens", v) for v in (1, 0, -4, 16.5, None, "16")),
        *(("beta", v) for v in (-0.1, NAN, INF, None, "1")),
        *(("value_gain", v) for v in (-1.0, NAN, INF, None, "1", (1.0, 1.0), (-1.0, 1.0, 0.0), (1.0, NAN, 0.0))),
        *(("mlp_gain", v) for v in ((-1.0, 1.0), (1.0, -1.0), (1.0, NAN), (INF, 1.0), (1.0,), 1.0, None)),
        *(("bias", v) for v in (-1e-4, NAN, INF, None)),
        *(("residual_attention", v) for v in (-1.0, NAN, INF, None)),
        *(("residual_mlp", v) for v in (-1.0, NAN, INF, None)),
        *(("norm", v) for v in ("middle", None, "")),
        *(("activation", v) for v in ("swish9", None, 3)),
        *(("cosine", v) for v in (1.1, -1.1, NAN, None, "0.2")),
        *(("self_bias", v) for v in (NAN, INF, None, "1")),
        *(("width", v) for v in (0, -1, 1.5)),
        *(("head_dim", v) for v in (0, -1, 1.5)),
        *(("attention", v) for v in ("linear", None)),
        *(("loss", v) for v in ("sum", None)),
        *(("theory", v) for v in ("exact", None)),
    ],
)
def test_a_parameter_out_of_range_is_named(name: str, value: Any) -> None:
    with pytest.raises(WellcondError, match=name):
        propagate(**{**GOOD, name: value})


def test_a_stream_that_overflows_is_reported() -> None:
    with pytest.raises(WellcondError, match="overflow"):
        propagate(400, 16, 0.1, 100.0, (100.0, 100.0), norm="none", activation="relu", theory="asymptotic")


@pytest.mark.parametrize("cosine", [-0.07, -0.5, -1.0])
def test_tokens_less_similar_than_geometry_allows_are_refused(cosine: float) -> None:
    """|Σ x_t|² ≥ 0: the mean cosine of T vectors of one size is at least −1/(T − 1), −0.0667 for 16."""
    with pytest.raises(WellcondError, match="cosine"):
        propagate(**GOOD, cosine=cosine)


@pytest.mark.parametrize("norm", ["pre", "post"])
def test_a_stream_of_nothing_is_reported_where_it_is_normalised(norm: str) -> None:
    with pytest.raises(WellcondError):
        propagate(**GOOD, value_gain=0.0, residual_attention=0.0, norm=norm)
