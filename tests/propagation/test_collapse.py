"""Exponents at the collapsed point against the recursion itself and the closed form without biases."""

from __future__ import annotations

import math
import re
from itertools import pairwise
from typing import Any

import pytest
import torch

from wellcond.errors import WellcondError
from wellcond.propagation.activation_kernels import kernel
from wellcond.propagation.collapse import collapse_exponent, critical_residual
from wellcond.propagation.propagate import propagate

START = 1e-6  # 1 − cosine; what the recursion adds at second order is as small


def named(value: Any) -> str:
    """An id without addresses: test processes must agree on it."""
    return re.sub(r"<function (\w+) at \w+>", r"\1", str(value))


def swish(x: torch.Tensor) -> torch.Tensor:
    return x * torch.sigmoid(x)


def slopes(tokens: int, beta: float, depth: int = 3, **kwargs: Any) -> list[float]:
    """log of the ratios of 1 − cosine behind and before each block of the recursion."""
    left = [1 - float(c) for c in propagate(depth, tokens, beta, norm="post", cosine=1 - START, **kwargs).cosine]
    return [math.log(after / before) for before, after in pairwise(left)]


SETTINGS: list[dict[str, Any]] = [
    {},
    {"value_gain": 0.1},
    {"value_gain": 0.4, "mlp_gain": (1.5, 2.0), "residual_attention": 0.5, "residual_mlp": 0.7, "activation": "tanh"},
    {"value_gain": 0.2, "mlp_gain": (0.2, 0.2), "activation": "gelu", "bias": 4e-4},
    {"value_gain": 0.05, "mlp_gain": (2.0, 1.0), "activation": "erf", "bias": 0.3},
    {"value_gain": 0.3, "mlp_gain": (3.0, 0.5), "residual_mlp": 0.0, "activation": swish, "bias": 0.1},
    {"value_gain": (2.0, 0.3, 0.0), "activation": "gelu"},
    {"value_gain": (0.5, 0.3, -0.4), "activation": "tanh", "bias": 0.05},
    {"value_gain": (0.5, 0.3, 0.4), "residual_attention": 1.7, "activation": swish},
]


@pytest.mark.parametrize("kwargs", SETTINGS, ids=named)
@pytest.mark.parametrize(("tokens", "beta"), [(2, 1.0), (64, 0.1), (64, 3.0), (1024, 1.0)])
def test_the_exponent_is_the_slope_of_the_recursion(kwargs: dict[str, Any], tokens: int, beta: float) -> None:
    # 1 − cosine is known to eps/1e-6, and y − x to (σ_a² log T) × 1e-6 of the terms that vanish.
    assert slopes(tokens, beta, **kwargs) == pytest.approx([collapse_exponent(**kwargs)] * 3, abs=2e-4)


@pytest.mark.parametrize("bias", [0.0, 0.2])
def test_the_exponent_of_relu_is_the_slope_of_the_recursion(bias: float) -> None:
    kwargs: dict[str, Any] = {"value_gain": 0.4, "mlp_gain": (1.5, 2.0), "activation": "relu", "bias": bias}
    # Its kernel has a term in (1 − ρ)^(3/2), √(2e-6)/π times the linear one.
    assert slopes(64, 1.0, **kwargs) == pytest.approx([collapse_exponent(**kwargs)] * 3, abs=2e-3)


def test_a_self_bias_does_not_matter() -> None:
    assert slopes(64, 1.0, value_gain=0.3, self_bias=5.0) == pytest.approx([collapse_exponent(0.3)] * 3, abs=2e-4)


@pytest.mark.parametrize("activation", ["gelu", "relu", "tanh"])
def test_without_biases_it_is_the_closed_form(activation: str) -> None:
    gain, first, second, skip, other = 0.4, 1.5, 2.0, 0.6, 0.7
    moments, q = kernel(activation), torch.tensor(first, dtype=torch.float64)
    chi = (other**2 + first * second * float(moments.slope(q, q))) / (other**2 + second * float(moments.value(q, q)))
    found = collapse_exponent(gain, (first, second), skip, other, activation)
    assert found == pytest.approx(math.log(skip**2 / (skip**2 + gain)) + math.log(chi), abs=1e-12)
    if chi > 1 + 1e-9:
        expected = math.sqrt(gain / (chi - 1))
        assert critical_residual(gain, (first, second), other, activation) == pytest.approx(expected, rel=1e-9)


def test_three_biases_are_those_of_their_matrices() -> None:
    alike = collapse_exponent(0.3, (0.8, 1.2), bias=0.1)
    assert collapse_exponent(0.3, (0.8, 1.2), bias=(0.1, 0.1, 0.1)) == alike
    # A bias of the values adds to equal tokens what a gain does.
    assert collapse_exponent(0.3, bias=(0.1, 0.0, 0.0)) == pytest.approx(collapse_exponent(0.4), abs=1e-14)
    # A bias of the output adds to the size alone.
    second = torch.tensor(1.0, dtype=torch.float64)
    size = 1 + float(kernel("gelu").value(second, second))
    difference = collapse_exponent(0.3, bias=(0.0, 0.0, 0.2)) - collapse_exponent(0.3)
    assert difference == pytest.approx(math.log(size / (size + 0.2)), abs=1e-12)


# ------------------------------------------------------------------------------------------------ critical residual


@pytest.mark.parametrize(
    "kwargs",
    [
        {"value_gain": 0.1},
        {"value_gain": 0.3, "mlp_gain": (2.0, 2.0), "activation": "tanh"},
        {"value_gain": 0.2, "mlp_gain": (2.0, 2.0), "activation": "tanh", "bias": 0.01},
        {"value_gain": (1.0, 0.2, 0.3), "mlp_gain": (3.0, 2.0), "activation": swish, "residual_mlp": 0.5},
        {"value_gain": (1.0, 0.2, -0.3), "mlp_gain": (2.0, 2.0), "activation": "erf"},
    ],
    ids=named,
)
def test_the_recursion_changes_its_sign_at_the_critical_residual(kwargs: dict[str, Any]) -> None:
    low, high = 0.0, 50.0
    for _ in range(30):
        middle = (low + high) / 2
        (slope,) = slopes(16, 1.0, 1, residual_attention=middle, **kwargs)
        low, high = (low, middle) if slope > 0 else (middle, high)
    found = critical_residual(**kwargs)
    # The slope is off by 1e-5, and as steep as the exponent itself is in α.
    step = 1e-3 * found
    steep = (collapse_exponent(residual_attention=found + step, **kwargs)
             - collapse_exponent(residual_attention=found - step, **kwargs)) / (2 * step)  # fmt: skip
    assert abs(found - low) <= 3e-5 / steep
    assert collapse_exponent(residual_attention=found, **kwargs) == pytest.approx(0.0, abs=1e-9)


@pytest.mark.parametrize(
    ("kwargs", "expected"),
    [
        ({"activation": "relu"}, math.inf),
        ({"activation": "relu", "mlp_gain": (3.7, 0.3), "residual_mlp": 0.3}, math.inf),
        ({"activation": "relu", "bias": 0.1}, math.inf),
        ({"value_gain": (1.0, 0.2, 0.1), "activation": "relu"}, math.inf),
        ({"value_gain": 0.0}, 0.0),
        ({"value_gain": 0.0, "mlp_gain": (0.0, 0.0)}, 0.0),
        ({"value_gain": 0.0, "activation": "relu", "bias": (0.0, 0.5, 0.5)}, math.inf),
        ({"value_gain": (1.0, 0.25, -0.5), "mlp_gain": (0.0, 0.0)}, 0.25),  # g = −2 α τ
    ],
    ids=named,
)
def test_collapse_attracts_always_or_never(kwargs: dict[str, Any], expected: float) -> None:
    assert critical_residual(**kwargs) == pytest.approx(expected)
    signs = [collapse_exponent(residual_attention=a, **kwargs) for a in (0.03, 0.2, 0.3, 1.0, 30.0)]
    for a, exponent in zip((0.03, 0.2, 0.3, 1.0, 30.0), signs, strict=True):
        assert (exponent < 0) == (a < expected) or exponent == pytest.approx(0, abs=1e-12)


def test_without_a_skip_tokens_collapse_at_once() -> None:
    assert collapse_exponent(residual_attention=0.0) == -math.inf


# ------------------------------------------------------------------------------------------------------ bad input

NAN, INF = math.nan, math.inf


@pytest.mark.parametrize("function", [collapse_exponent, critical_residual])
@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("value_gain", v) for v in (-1.0, NAN, INF, None, "1", (1.0, 1.0), (-1.0, 1.0, 0.0), (1.0, NAN, 0.0))),
        *(("mlp_gain", v) for v in ((-1.0, 1.0), (1.0, -1.0), (1.0, NAN), (INF, 1.0), (1.0,), 1.0, None)),
        *(("bias", v) for v in (-1e-4, NAN, INF, None, (0.1, 0.1), (0.0, 0.0, -1.0))),
        *(("residual_mlp", v) for v in (-1.0, NAN, INF, None, True)),
        *(("activation", v) for v in ("swish9", None, 3)),
    ],
)
def test_a_parameter_out_of_range_is_named(function: Any, name: str, value: Any) -> None:
    with pytest.raises(WellcondError, match=name):
        function(**{name: value})


@pytest.mark.parametrize("value", [-1.0, NAN, INF, None])
def test_a_residual_out_of_range_is_named(value: Any) -> None:
    with pytest.raises(WellcondError, match="residual_attention"):
        collapse_exponent(residual_attention=value)


def test_a_stream_of_nothing_is_reported() -> None:
    with pytest.raises(WellcondError, match="value_gain"):
        collapse_exponent(0.0, residual_attention=0.0)
    with pytest.raises(WellcondError, match="value_gain"):
        collapse_exponent((1.0, 1.0, -1.0))  # the branch takes off all that the skip brings
    with pytest.raises(WellcondError, match="mlp_gain"):
        collapse_exponent(1.0, (0.0, 0.0), residual_mlp=0.0)
