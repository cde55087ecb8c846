"""Kernels of activations against quadrature, known values and Price's theorem."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from scipy import integrate
from torch import Tensor
from torch.nn import functional

from tests.propagation.oracles import SMOOTH, smooth_oracle
from wellcond.propagation.activation_kernels import kernel

MOMENTS = [(1.0, 0.0), (1.0, 0.5), (1.0, -0.5), (1.0, 0.99), (1.0, -0.99), (0.2, 0.1), (1.5, 1.45), (0.6, -0.25)]


def double(value: float) -> Tensor:
    return torch.tensor(value, dtype=torch.float64)


def quadrant_oracle(power: int, q: float, p: float) -> float:
    """E[(uv)^power; u, v > 0]: ReLU's kernels, adaptively where the integrand is smooth."""
    det = q * q - p * p
    scale = 1 / (2 * math.pi * math.sqrt(det))

    def density(v: float, u: float) -> float:
        return (u * v) ** power * scale * math.exp(-(q * u * u - 2 * p * u * v + q * v * v) / (2 * det))

    far = 9 * math.sqrt(q)
    return integrate.dblquad(density, 0, far, 0, far, epsabs=1e-12, epsrel=1e-11)[0]


@pytest.mark.parametrize("name", ["gelu", "erf", "tanh"])
@pytest.mark.parametrize(("q", "p"), MOMENTS)
def test_a_smooth_kernel_agrees_with_dense_quadrature(name: str, q: float, p: float) -> None:
    phi, derivative = SMOOTH[name]
    found = kernel(name)
    # 180 Gauss–Hermite nodes: below 1e-11 for φ, 1e-10 for φ', whose poles are double.
    assert float(found.value(double(q), double(p))) == pytest.approx(smooth_oracle(phi, q, p), abs=1e-10)
    assert float(found.slope(double(q), double(p))) == pytest.approx(smooth_oracle(derivative, q, p), abs=1e-9)


@pytest.mark.parametrize(("q", "p"), [(1.0, 0.0), (1.0, 0.5), (1.0, -0.5), (1.5, 1.2), (0.2, -0.15)])
def test_the_relu_kernel_agrees_with_adaptive_quadrature(q: float, p: float) -> None:
    found = kernel("relu")
    assert float(found.value(double(q), double(p))) == pytest.approx(quadrant_oracle(1, q, p), abs=1e-10)
    assert float(found.slope(double(q), double(p))) == pytest.approx(quadrant_oracle(0, q, p), abs=1e-10)


def test_the_relu_kernel_has_its_known_values() -> None:
    value = kernel("relu").value
    for q in (0.3, 1.0, 7.0):
        assert float(value(double(q), double(q))) == pytest.approx(q / 2, rel=1e-14)
        assert float(value(double(q), double(-q))) == pytest.approx(0.0, abs=1e-14 * q)
    assert float(value(double(1.0), double(0.0))) == pytest.approx(1 / (2 * math.pi), rel=1e-14)


@pytest.mark.parametrize("name", ["relu", "gelu", "erf", "tanh"])
@pytest.mark.parametrize(("q", "p"), [(1.0, 0.4), (1.0, -0.4), (0.5, 0.05), (2.0, 1.5)])
def test_the_slope_is_the_derivative_of_the_value_by_prices_theorem(name: str, q: float, p: float) -> None:
    found, h = kernel(name), 1e-4
    difference = float(found.value(double(q), double(p + h)) - found.value(double(q), double(p - h))) / (2 * h)
    assert float(found.slope(double(q), double(p))) == pytest.approx(difference, abs=1e-7)  # h² and eps/h


@pytest.mark.parametrize("name", ["relu", "gelu", "erf", "tanh"])
def test_kernels_work_element_by_element(name: str) -> None:
    q, p = double(1.3), torch.linspace(-1.2, 1.3, 7, dtype=torch.float64)
    found = kernel(name)
    for part in (found.value, found.slope):
        together = part(q.expand_as(p), p)
        for k in range(len(p)):
            assert float(together[k]) == pytest.approx(float(part(q, p[k])), rel=1e-13, abs=1e-15)


@pytest.mark.parametrize(("name", "phi"), [("tanh", torch.tanh), ("erf", torch.erf), ("gelu", functional.gelu)])
@pytest.mark.parametrize(("q", "p"), [(1.0, 0.5), (0.8, -0.7), (1.0, 1.0), (0.3, 0.0)])
def test_a_function_has_the_kernels_of_its_name(name: str, phi: Callable[[Tensor], Tensor], q: float, p: float) -> None:
    named, given = kernel(name), kernel(phi)
    for part in ("value", "slope"):
        expected = float(getattr(named, part)(double(q), double(p)))
        # The uniform rule of 65 nodes: 7e-14 for tanh; erf is the steepest of the three.
        assert float(getattr(given, part)(double(q), double(p))) == pytest.approx(expected, abs=1e-10)
