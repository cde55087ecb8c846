r"""Rank collapse of a post-norm stack: the exponent with which tokens that are nearly alike become more so.

Close to $\rho = 1$ attention is uniform at any temperature, so what differs between tokens passes the attention half by
the skip alone, and the MLP half by the skip and by the slope of the activation:

$$\frac{1-\rho'}{1-\rho} = \frac{\alpha^2}{\alpha^2 + 2\alpha\tau + g + b} \chi, \qquad
\chi = \frac{\alpha_m^2 + w_1 w_2 E[\phi'(u)^2]}{\alpha_m^2 + w_2 E[\phi(u)^2] + b_2}, \quad Var\,u = w_1 + b_1,$$

with g the gain of what tokens have in common, τ the trace of $W_O W_V$ over D, and b, b₁, b₂ the variances of biases.
Its logarithm corresponds to the angle exponent of Cowsik et al. (arXiv 2403.02579).
"""

from __future__ import annotations

import math
from typing import Any

import torch

from wellcond._core.checked import checked
from wellcond._core.short_repr import short_repr
from wellcond.errors import ArgumentError, WellcondError
from wellcond.propagation.activation_kernels import Activation, kernel
from wellcond.propagation.parameters import MAX_NUMBER, is_number, triple

Triple = tuple[float, float, float]
NEUTRAL_GROWTH = 1e-12  # of χ − 1, below which the MLP neither spreads nor gathers: ReLU without biases, up to rounding


@checked
def collapse_exponent(
    value_gain: float | Triple = 1.0,
    mlp_gain: tuple[float, float] = (1.0, 1.0),
    residual_attention: float = 1.0,
    residual_mlp: float = 1.0,
    activation: Activation = "gelu",
    bias: float | Triple = 0.0,
) -> float:
    """Return λ of nearly equal tokens in a post-norm stack, whose 1 − cosine grows by e^λ per block.

    Below zero, tokens that are almost alike become alike; above, they come apart again. Neither the temperature nor the
    number of tokens matters.

    Args:
        value_gain: variance gain of W_O W_V; or the triple of the gain of what differs between tokens (which does not
            matter here), of what they have in common, and the trace of the product ÷ D.
        mlp_gain: variance gains of the MLP's two matrices, fan-in times entry variance.
        residual_attention: multiplies the skip around attention.
        residual_mlp: multiplies the skip around the MLP.
        activation: `"gelu"`, `"relu"`, `"tanh"`, `"erf"`, or a smooth function of a tensor.
        bias: variance of the biases; or three, of the value and of both MLP matrices.

    >>> round(collapse_exponent(activation="relu"), 4), round(collapse_exponent(0.01, activation="tanh"), 4)
    (-0.6931, 0.0391)
    """
    _check(value_gain, mlp_gain, bias, residual_attention=residual_attention, residual_mlp=residual_mlp)
    common, trace = _common(value_gain, bias)
    kept = residual_attention**2
    size = kept + 2 * residual_attention * trace + common
    if size <= 0:
        raise WellcondError("nothing is left of the stream behind attention: raise value_gain or residual_attention")
    growth = kept / size * _mlp_growth(mlp_gain, residual_mlp, activation, bias)
    return math.log(growth) if growth > 0 else -math.inf


@checked
def critical_residual(
    value_gain: float | Triple = 1.0,
    mlp_gain: tuple[float, float] = (1.0, 1.0),
    residual_mlp: float = 1.0,
    activation: Activation = "gelu",
    bias: float | Triple = 0.0,
) -> float:
    r"""Return the strength of the skip around attention below which tokens become alike, whatever the temperature.

    $\alpha_c = \sqrt{g/(\chi - 1)}$, post-norm, for a product W_O W_V without trace. Above it nearly equal tokens come
    apart; tokens that start far apart may stay so even below, if attention is sharp. `math.inf` where collapse attracts
    at every strength (ReLU without biases), 0 where it does at none. With a negative trace it may attract again at
    larger strengths than another.

    Args:
        value_gain: as in `collapse_exponent`, and so are all others.
        mlp_gain: variance gains of the MLP's two matrices.
        residual_mlp: multiplies the skip around the MLP.
        activation: a name or a smooth function.
        bias: variance of the biases, or three.

    >>> round(critical_residual(0.1), 4), critical_residual(0.1, activation="relu")
    (2.1571, inf)
    """
    _check(value_gain, mlp_gain, bias, residual_mlp=residual_mlp)
    common, trace = _common(value_gain, bias)
    excess = _mlp_growth(mlp_gain, residual_mlp, activation, bias) - 1
    excess = excess if abs(excess) > NEUTRAL_GROWTH else 0.0
    # The smallest root of α² (χ − 1) − 2 α τ − g, which is negative where collapse attracts.
    root = trace**2 + common * excess
    if root < 0:
        return math.inf
    if excess > 0 and trace >= 0:
        return (trace + math.sqrt(root)) / excess
    if common == trace == excess == 0:
        return 0.0  # nothing changes tokens at all
    below = math.sqrt(root) - trace
    return common / below if below > 0 else math.inf


def _common(value_gain: float | Triple, bias: float | Triple) -> tuple[float, float]:
    """The size of what attention adds to equal tokens, and how far it lies along the skip."""
    _, coherent, trace = triple(value_gain)
    return coherent + (bias[0] if isinstance(bias, tuple) else bias), trace


def _mlp_growth(mlp_gain: tuple[float, float], residual: float, activation: Activation, bias: float | Triple) -> float:
    """χ: by how much the MLP half multiplies 1 − ρ near ρ = 1."""
    (first, second), (_, hidden, output) = mlp_gain, bias if isinstance(bias, tuple) else (bias, bias, bias)
    moments, q = kernel(activation), torch.tensor(first + hidden, dtype=torch.float64)
    size = residual**2 + second * float(moments.value(q, q)) + output
    if size <= 0:
        raise WellcondError("nothing is left of the stream behind the MLP: raise mlp_gain or residual_mlp")
    return (residual**2 + first * second * float(moments.slope(q, q))) / size


def _check(value_gain: Any, mlp_gain: Any, bias: Any, **residuals: Any) -> None:
    """Refuse what has no meaning."""
    for name, value in residuals.items():
        if not is_number(value) or value < 0:
            raise ArgumentError(f"{name} is a number from 0 to {MAX_NUMBER:g}, got {short_repr(value)}")
    for name, value, lengths, shape in (
        ("value_gain", value_gain, (1, 3), "a number, or three: two gains of at least 0 and a trace"),
        ("mlp_gain", mlp_gain, (2,), "a pair of numbers of at least 0"),
        ("bias", bias, (1, 3), "a number of at least 0, or three"),
    ):
        parts = value if isinstance(value, tuple) else (value,)
        signed = parts[:2] if name == "value_gain" else parts
        if len(parts) not in lengths or not all(map(is_number, parts)) or min(signed) < 0:
            raise ArgumentError(f"{name} is {shape}, up to {MAX_NUMBER:g}; got {short_repr(value)}")
