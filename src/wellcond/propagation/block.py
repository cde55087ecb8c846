r"""One Transformer block in mean field: what it does to the size q and the similarity p of tokens, and to gradients.

q is the mean of $|x_t|^2/D$, p the mean of $x_t \cdot x_u/D$ over different tokens. Going back, a is the mean of
$|g_t|^2$ and b that of $g_t \cdot g_u$, for g the gradient of the loss with respect to the stream.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from wellcond.propagation.kernels import Kernel
from wellcond.propagation.statistics import Attention, Statistics


@dataclass(frozen=True)
class Architecture:
    """What all blocks share; see `wc.propagate` for the meaning of each."""

    tokens: int
    beta: float
    incoherent: float  # gain of what differs between tokens, Σ_h |W_O^h W_V^h|² / D
    coherent: float  # gain of what they have in common, |Σ_h W_O^h W_V^h|² / D
    trace: float  # tr(Σ_h W_O^h W_V^h) / D: how far the branch is along the skip
    mlp: tuple[float, float]
    bias: float
    skip_attention: float
    skip_mlp: float
    norm: str
    centred: bool
    self_bias: float

    @property
    def temperature(self) -> float:
        """σ_a² = β² log T, the variance of a logit of unit tokens."""
        return self.beta**2 * math.log(self.tokens)


@dataclass(frozen=True)
class State:
    """The stream before a block, and what happens inside."""

    q: float
    p: float
    attention: Attention
    middle: tuple[float, float]  # (q, p) between the two halves, after a post-norm
    raw_middle: float  # q before that post-norm
    hidden: tuple[float, float]  # (q, p) of what the activation reads
    activated: tuple[float, float]  # and of what it gives
    raw_end: float


def forward(
    q: float, p: float, architecture: Architecture, kernel: Kernel, statistics: Statistics
) -> tuple[float, float, State]:
    """(q, p) after one block, and its state."""
    a = architecture
    q_in, p_in = _read(q, p, a.norm)
    spread = max(q_in - p_in, 0.0)
    deviation = math.sqrt(max(a.temperature * q_in * spread, 0.0))
    correlation = min(1.0, p_in / q_in) if q_in > 0 else 1.0
    seen = statistics(deviation, correlation, spread * a.self_bias)
    if a.centred:
        q_add = a.incoherent * spread * (seen.participation - 1 / a.tokens)
        p_add = a.incoherent * spread * (seen.overlap - 1 / a.tokens)
    else:
        q_add = a.coherent * p_in + a.incoherent * spread * seen.participation + a.bias
        p_add = a.coherent * p_in + a.incoherent * spread * seen.overlap + a.bias
    along = 2 * a.skip_attention * a.trace * (math.sqrt(q) if a.norm == "pre" else 1.0)
    other = (1 - seen.own) / (a.tokens - 1)
    q_mid = a.skip_attention**2 * q + q_add + along * (p_in + spread * seen.own)
    p_mid = a.skip_attention**2 * p + p_add + along * (p_in + spread * other)
    raw_middle = q_mid
    q_mid, p_mid = _settle(q_mid, p_mid, a.norm)
    q_in, p_in = _read(q_mid, p_mid, a.norm)
    hidden = (a.mlp[0] * q_in + a.bias, a.mlp[0] * p_in + a.bias)
    activated = _at(kernel.value, *hidden)
    q_end = a.skip_mlp**2 * q_mid + a.mlp[1] * activated[0] + a.bias
    p_end = a.skip_mlp**2 * p_mid + a.mlp[1] * activated[1] + a.bias
    state = State(q, p, seen, (q_mid, p_mid), raw_middle, hidden, activated, q_end)
    return *_settle(q_end, p_end, a.norm), state


@dataclass(frozen=True)
class Gradients:
    """Squared gradient norms of one block, for a stream gradient of (a, b) behind it.

    Args:
        query: E‖∂L/∂W_Q‖² ÷ (D T), and that of W_K for equal scales of both.
        value: the same of W_V.
        mlp: the same of the MLP's two matrices, the second ÷ (d_ff T).
    """

    query: float
    value: float
    mlp: tuple[float, float]


def backward(
    a: float, b: float, state: State, architecture: Architecture, kernel: Kernel, floor: float = 0.0
) -> tuple[float, float, Gradients]:
    """(a, b) before the block from (a, b) behind it, and the gradients of its weights.

    `floor` is the relative variance of the tokens' overlaps, 1/D for random tokens: they keep the query's gradient from
    vanishing with T where attention is diffuse.
    """
    m, n = architecture, architecture.tokens
    q, p = state.middle
    if m.norm == "post":
        a, b = a / state.raw_end, b / state.raw_end
    q_in, p_in = _read(q, p, m.norm)
    own, cross = _at(kernel.slope, *state.hidden)
    second = state.activated[0] * a + state.activated[1] * (n - 1) * b
    first = m.mlp[1] * (own * q_in * a + cross * p_in * (n - 1) * b)
    scale = m.mlp[0] * m.mlp[1] / (q if m.norm == "pre" else 1.0)
    a, b = a * (m.skip_mlp**2 + scale * own), b * (m.skip_mlp**2 + scale * cross)
    if m.norm == "post":
        a, b = a / state.raw_middle, b / state.raw_middle
    q_in, p_in = _read(state.q, state.p, m.norm)
    spread = max(q_in - p_in, 0.0)
    seen, gain, heat = state.attention, m.incoherent, m.temperature
    y, x = seen.participation, seen.overlap
    r, s = seen.row_gradient, seen.pair_gradient
    if floor and y < 0.1:
        r, s = r + floor * (1 - y), s + floor * (1 - x)
    # Centred rows sum to zero: 1/T is taken off both moments, and nothing common passes.
    less, passed = (1 / n, 0.0) if m.centred else (0.0, 1.0)
    query = math.sqrt(heat) * gain * spread**2 * (q_in * r * a + p_in * s * (n - 1) * b)
    value = (passed * p_in + spread * (y - less)) * a + (passed * p_in + spread * (x - less)) * (n - 1) * b
    a_value = gain * ((y - less) * a + (n - 1) * (x - less) * b)
    b_value = (passed * gain * (a + (n - 1) * b) - a_value) / (n - 1)
    a_query, b_query = heat * gain * spread**2 * r * a, heat * gain * spread**2 * s * b
    a_key = heat * gain * spread * (q_in * r * a + p_in * (n - 1) * s * b)
    factor = 1 / state.q if m.norm == "pre" else 1.0
    before_a = m.skip_attention**2 * a + factor * (a_value + a_query + a_key)
    before_b = m.skip_attention**2 * b + factor * (b_value + b_query - a_key / (n - 1))
    return before_a, before_b, Gradients(query, value, (first, second))


def _read(q: float, p: float, norm: str) -> tuple[float, float]:
    """What a branch reads: with a norm before it, tokens of unit size."""
    return (1.0, p / q) if norm == "pre" else (q, p)


def _settle(q: float, p: float, norm: str) -> tuple[float, float]:
    """What a half leaves on the stream: with a norm behind it, tokens of unit size; p ≤ q whatever rounding says."""
    p = min(p, q)
    return (1.0, p / q) if norm == "post" else (q, p)


def _at(moment: Callable[[Tensor, Tensor], Tensor], q: float, p: float) -> tuple[float, float]:
    """A kernel at (q, q) and at (q, p)."""
    own, cross = moment(torch.tensor([q, q], dtype=torch.float64), torch.tensor([q, p], dtype=torch.float64)).tolist()
    return own, cross
