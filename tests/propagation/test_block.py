"""One block against its equations, forward and back."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from tests.propagation.oracles import COARSE, phi_gelu, smooth_oracle
from wellcond.propagation.activation_kernels import kernel
from wellcond.propagation.attention_statistics import exact_statistics
from wellcond.propagation.block import Architecture, forward
from wellcond.propagation.block_gradients import transfer
from wellcond.propagation.exact_pairs import exact_pair
from wellcond.propagation.exact_rows import exact_row
from wellcond.propagation.propagate import propagate


@pytest.mark.parametrize("cosine", [0.0, 0.2, 0.9])
def test_centred_attention_leaves_what_differs_from_the_mean(cosine: float) -> None:
    tokens, beta = 32, 1.5
    found = propagate(
        1, tokens, beta, residual_attention=0.0, mlp_gain=(0.0, 0.0), norm="none", cosine=cosine, attention="centred",
    )  # fmt: skip
    s = beta * math.sqrt(math.log(tokens) * (1 - cosine))
    y, x = exact_row(s, tokens).participation, exact_pair(s, cosine, tokens).overlap
    assert found.size[1] == pytest.approx((1 - cosine) * (y - 1 / tokens), rel=1e-9)
    # The coarse overlap is off by up to 8e-6 of itself, a small part of what is left after 1/T.
    assert found.size[1] * found.cosine[1] == pytest.approx((1 - cosine) * (x - 1 / tokens), abs=8e-6 * x + 1e-12)


def test_centred_attention_drops_the_bias_of_the_values() -> None:
    kwargs: dict[str, Any] = {"residual_attention": 0.0, "mlp_gain": (0.0, 0.0), "norm": "none", "attention": "centred"}
    plain, biased = propagate(1, 32, 1.5, **kwargs), propagate(1, 32, 1.5, bias=0.3, **kwargs)
    # The bias of the MLP's second matrix remains.
    assert biased.size[1] == pytest.approx(float(plain.size[1]) + 0.3, rel=1e-12)


def test_one_block_is_what_the_equations_say() -> None:
    tokens, beta, gain, bias, skip, other, rho = 48, 1.7, 0.6, 0.02, 0.8, 1.1, 0.3
    s = beta * math.sqrt(math.log(tokens) * (1 - rho))
    y, x = exact_row(s, tokens).participation, exact_pair(s, rho, tokens).overlap
    q = skip**2 + gain * (rho + (1 - rho) * y) + bias
    p = skip**2 * rho + gain * (rho + (1 - rho) * x) + bias
    one, cross = 0.7 + bias, 0.7 * p / q + bias
    end = other**2 * q + 1.3 * smooth_oracle(phi_gelu, one, one) + bias
    end_p = other**2 * p + 1.3 * smooth_oracle(phi_gelu, one, cross) + bias
    found = propagate(1, tokens, beta, gain, (0.7, 1.3), bias, residual_attention=skip, residual_mlp=other, cosine=rho)
    assert found.size[1] == pytest.approx(end, rel=1e-9)
    assert found.cosine[1] == pytest.approx(end_p / end, abs=COARSE)


def test_a_self_bias_is_a_planted_row() -> None:
    tokens, beta, cosine = 64, 0.8, 0.25
    row = exact_row(beta * math.sqrt(math.log(tokens) * 0.75), tokens, 0.75 * 5.0)
    found = propagate(1, tokens, beta, cosine=cosine, self_bias=5.0)
    assert found.own[0] == pytest.approx(row.own, rel=1e-9)
    assert found.participation[0] == pytest.approx(row.participation, rel=1e-9)
    assert found.entropy[0] == pytest.approx(row.entropy / math.log(tokens), rel=1e-9)


def test_finite_width_keeps_diffuse_query_gradients_from_vanishing() -> None:
    """§6.2: R + (1 − y)/D in place of R."""
    tokens, width, beta = 1024, 64, 0.3
    bare = propagate(1, tokens, beta, 1.0, (0.0, 0.0), norm="none", cosine=0.0)
    floored = propagate(1, tokens, beta, 1.0, (0.0, 0.0), norm="none", cosine=0.0, width=width)
    row = exact_row(beta * math.sqrt(math.log(tokens)), tokens)
    expected = (row.gradient + (1 - row.participation) / width) / row.gradient
    assert floored.query_gradient[0] / bare.query_gradient[0] == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("trace", [-0.4, 0.5])
def test_even_attention_along_the_skip_is_exact_on_the_way_back(trace: float) -> None:
    """β = 0 and W_V W_O = τ I: g ↦ α g + τ mean(g), so both moments gain (2ατ + τ²)(a + (T − 1) b) ÷ T."""
    n, skip, a, b = 8, 0.9, 1.3, 0.2
    block = Architecture(
        n, 0.0, trace**2, trace**2, kernel("gelu"), trace=trace, mlp=(0.0, 0.0), skip_attention=skip, norm="none"
    )
    one = torch.tensor(1.0, dtype=torch.float64)
    _, _, state = forward(one, 0.3 * one, block, exact_statistics(n))
    found = transfer(state, block).back(a * one, b * one)
    more = (2 * skip * trace + trace**2) * (a + (n - 1) * b) / n
    assert [float(x) for x in found] == pytest.approx([skip**2 * a + more, skip**2 * b + more], rel=1e-6)
