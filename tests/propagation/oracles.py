"""Tolerances of the theory's quadrature, oracles on dense rules, and how a random sample is judged."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from scipy import special
from torch import Tensor

Array = np.ndarray[Any, Any]
# The trapezoid rule is off by 2|Γ(k + 2πi/h)|/Γ(k), k the power of w: 2e-10 for the k = 4 of E[Y₂²] at h = 0.3 (rows),
# 6e-9 for the k = 2 of S at h = 0.4 (pairs).
ROW, PAIR = 1e-9, 1e-8
COARSE = 1e-6  # exp(−π²/h) at the step of 0.65 that `propagate` takes for pairs
SE = 4  # standard errors a seeded Monte-Carlo mean may be off


def hermite(count: int) -> tuple[Array, Array]:
    """Gauss–Hermite for the standard normal."""
    x, w = np.polynomial.hermite_e.hermegauss(count)
    return x, w / w.sum()


def phi_gelu(x: Array) -> Array:
    return x * special.ndtr(x)


SMOOTH: dict[str, tuple[Callable[[Array], Array], Callable[[Array], Array]]] = {
    "gelu": (phi_gelu, lambda x: special.ndtr(x) + x * np.exp(-x * x / 2) / math.sqrt(2 * math.pi)),
    "erf": (special.erf, lambda x: 2 / math.sqrt(math.pi) * np.exp(-x * x)),
    "tanh": (np.tanh, lambda x: 1 - np.tanh(x) ** 2),
}


def smooth_oracle(phi: Callable[[Array], Array], q: float, p: float) -> float:
    """E[φ(u)φ(v)] on the product of two dense Gauss–Hermite rules, u along the first, v by Cholesky."""
    x, w = hermite(180)
    u = math.sqrt(q) * x
    v = p / math.sqrt(q) * x[:, None] + math.sqrt(q - p * p / q) * x[None, :]
    return float((w * phi(u)) @ (phi(v) @ w))


def within(sample: Array, expected: float, extra: float = 0.0) -> None:
    """The mean of a sample is what was expected to within a few standard errors."""
    error = sample.std(ddof=1) / math.sqrt(len(sample))
    assert abs(sample.mean() - expected) <= SE * error + extra, (sample.mean(), expected, error)


def equicorrelated(tokens: int, width: int, cosine: float, generator: torch.Generator, dtype: Any) -> Tensor:
    """Tokens whose squares are exactly D and whose cosines are exactly the one given."""
    frame = torch.linalg.qr(torch.randn(width, tokens + 1, generator=generator, dtype=torch.float64))[0].mT
    x = math.sqrt(cosine) * frame[:1] + math.sqrt(1 - cosine) * frame[1:]
    return (math.sqrt(width) * x).to(dtype)


NAN, INF = math.nan, math.inf
