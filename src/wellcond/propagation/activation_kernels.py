r"""Kernels of activations, their second moments: $K(q, p) = E[\phi(u)\phi(v)]$ for u, v of variance q and covariance p.

The derivative with respect to p is the backward kernel: $\partial K/\partial p = E[\phi'(u)\phi'(v)]$ (Price 1958).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from wellcond._core.checked import checked
from wellcond._core.short_repr import short_repr
from wellcond.errors import ArgumentError

NODES, REACH = 65, 8.6  # of uniform quadrature, which beats Gauss–Hermite on functions that level off, such as tanh

Moment = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Kernel:
    """An activation's two kernels, both of `(q, p)` with |p| ≤ q, element by element."""

    value: Moment  # E[φ(u)φ(v)]
    slope: Moment  # E[φ'(u)φ'(v)]
    both: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]] | None = None  # the two at once, where they share work
    closed: bool = False  # whether they are closed forms, cheap at any number of points

    def moments(self, q: Tensor, p: Tensor) -> tuple[Tensor, Tensor]:
        """Return the value and the slope."""
        return self.both(q, p) if self.both is not None else (self.value(q, p), self.slope(q, p))


Activation = str | Callable[[Tensor], Tensor] | Kernel


@checked
def kernel(activation: Activation) -> Kernel:
    """Return the kernels of `"relu"`, `"gelu"`, `"erf"` in closed form, of `"tanh"` and smooth functions by quadrature.

    >>> one, half = torch.tensor(1.0, dtype=torch.float64), torch.tensor(0.5, dtype=torch.float64)
    >>> [round(float(kernel(name).value(one, half)), 6) for name in ("relu", "gelu", "erf", "tanh")]
    [0.304499, 0.227295, 0.216347, 0.186324]
    """
    if isinstance(activation, Kernel):
        return activation
    if isinstance(activation, str):
        if activation not in _NAMED:
            raise ArgumentError(f"activation is one of {', '.join(_NAMED)} or a function; got '{activation}'")
        return _NAMED[activation]
    found = Kernel(_quadrature(activation), _quadrature(_derivative(activation)))
    try:
        found.moments(torch.ones((), dtype=torch.float64), torch.full((), 0.5, dtype=torch.float64))
    except Exception as error:
        raise ArgumentError(
            f"activation is {', '.join(_NAMED)}, or a function of a tensor that autograd can differentiate; "
            f"{short_repr(activation)} raises {type(error).__name__}: {' '.join(str(error).split())[:200]}"
        ) from error
    return found


def gated(gate: Kernel, ratio: float) -> Kernel:
    r"""Return the kernels of $\phi(g) \cdot u$, as in SwiGLU: of the gate's (q, p), u having `ratio` times its moments.

    Gate and u are independent, so $K = K_\phi \cdot rp$ and $\partial K/\partial p = K_{\phi'} rp + K_\phi r$.
    The ratio r is the variance gain of the matrix that makes u ÷ that of the gate's.

    >>> one, half = torch.tensor(1.0, dtype=torch.float64), torch.tensor(0.5, dtype=torch.float64)
    >>> round(float(gated(kernel("relu"), 2.0).value(one, half)), 6)
    0.304499
    """
    return Kernel(
        lambda q, p: gate.value(q, p) * ratio * p, lambda q, p: gate.slope(q, p) * ratio * p + gate.value(q, p) * ratio
    )


def _cosine(q: Tensor, p: Tensor) -> Tensor:
    return (p / q.clamp_min(torch.finfo(torch.float64).tiny)).clamp(-1.0, 1.0)


def _relu_both(q: Tensor, p: Tensor) -> tuple[Tensor, Tensor]:
    """The arc-cosine kernels of first and zeroth order (Cho & Saul 2009)."""
    c = _cosine(q, p)
    slope = c.acos().mul_(-0.5 / math.pi).add_(0.5)
    sine = torch.addcmul(torch.ones_like(q), c, c, value=-1).sqrt_()
    return q * sine.mul_(0.5 / math.pi).addcmul_(c, slope), slope


def _relu(q: Tensor, p: Tensor) -> Tensor:
    return _relu_both(q, p)[0]


def _relu_slope(q: Tensor, p: Tensor) -> Tensor:
    return 0.5 - _cosine(q, p).acos() / (2 * math.pi)


def _gelu(q: Tensor, p: Tensor) -> Tensor:
    r"""$pF + J(q^2 + p^2(1-q)/(1+q))$ by Stein's lemma, $F = \frac14 + \frac{1}{2\pi}\arcsin\frac{p}{1+q}$."""
    f = 0.25 + (p / (1 + q)).asin() / (2 * math.pi)
    j = 1 / (2 * math.pi * ((1 + q) ** 2 - p * p).sqrt())
    return p * f + j * (q * q + p * p * (1 - q) / (1 + q))


def _gelu_slope(q: Tensor, p: Tensor) -> Tensor:
    """∂K/∂p of `_gelu`."""
    square, ratio = (1 + q) ** 2 - p * p, (1 - q) / (1 + q)
    f = 0.25 + (p / (1 + q)).asin() / (2 * math.pi)
    j = 1 / (2 * math.pi * square.sqrt())
    return f + p * j * (1 + 2 * ratio + (q * q + p * p * ratio) / square)


def _erf(q: Tensor, p: Tensor) -> Tensor:
    """The arcsine kernel (Williams 1997)."""
    return 2 / math.pi * (2 * p / (1 + 2 * q)).asin()


def _erf_slope(q: Tensor, p: Tensor) -> Tensor:
    return 4 / math.pi / ((1 + 2 * q) ** 2 - 4 * p * p).sqrt()


def _quadrature(phi: Callable[[Tensor], Tensor]) -> Callable[[Tensor, Tensor], Tensor]:
    """E_c[(E_e φ(√|p| c + √(q − |p|) e))²]; for p < 0 one of the two factors is read backwards."""

    def value(q: Tensor, p: Tensor) -> Tensor:
        x = torch.linspace(-REACH, REACH, NODES, dtype=torch.float64)
        weights = torch.exp(-0.5 * x * x)
        weights = weights / weights.sum()
        q, p = q + 0 * p, p + 0 * q
        size = p.abs()
        u = size.sqrt()[..., None, None] * x[:, None] + (q - size).clamp_min(0.0).sqrt()[..., None, None] * x
        inner = phi(u) @ weights
        other = torch.where((p < 0)[..., None], inner.flip(-1), inner)
        return (inner * other) @ weights

    return value


def _derivative(phi: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    def slope(x: Tensor) -> Tensor:
        with torch.enable_grad():
            leaf = x.detach().clone().requires_grad_()
            (found,) = torch.autograd.grad(phi(leaf).sum(), leaf)
        return found

    return slope


_NAMED: dict[str, Kernel] = {
    "gelu": Kernel(_gelu, _gelu_slope, closed=True),
    "relu": Kernel(_relu, _relu_slope, _relu_both, closed=True),
    "erf": Kernel(_erf, _erf_slope, closed=True),
    "tanh": Kernel(_quadrature(torch.tanh), _quadrature(lambda x: 1 - torch.tanh(x) ** 2)),
}
