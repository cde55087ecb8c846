r"""One Transformer block in mean field: what it does to the size q and the similarity p of tokens, and to gradients.

q is the mean of $|x_t|^2/D$, p the mean of $x_t \cdot x_u/D$ over different tokens. Going back, a is the mean of
$|g_t|^2$ and b that of $g_t \cdot g_u$, for g the gradient of the loss with respect to the stream. All of them, and the
gains, may be tensors: every cell of a diagram is one element.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from wellcond.propagation.kernels import Kernel
from wellcond.propagation.statistics import Attention, Statistics, Value


@dataclass(frozen=True)
class Architecture:
    """What one block is made of; see `wc.propagate` for the meaning of each."""

    tokens: int
    beta: Value
    incoherent: Value  # gain of what differs between tokens, Σ_h |W_O^h W_V^h|² / D
    coherent: Value  # gain of what they have in common, |Σ_h W_O^h W_V^h|² / D
    kernel: Kernel
    trace: Value = 0.0  # tr(Σ_h W_O^h W_V^h) / D: how far the branch is along the skip
    mlp: tuple[Value, Value] = (1.0, 1.0)
    bias: tuple[Value, Value, Value] = (0.0, 0.0, 0.0)  # variances: of attention's output, the MLP's hidden and output
    offset: tuple[Value, Value] = (0.0, 0.0)  # mean square of the bias of the norm before attention, and the MLP
    skip_attention: Value = 1.0
    skip_mlp: Value = 1.0
    norm: str = "pre"
    centred: bool = False
    self_bias: Value = 0.0

    @cached_property
    def temperature(self) -> Value:
        """σ_a² = β² log T, the variance of a logit of unit tokens."""
        return self.beta**2 * math.log(self.tokens)

    @cached_property
    def kept(self) -> tuple[Value, Value]:
        """What the two skips leave of the stream's size."""
        return self.skip_attention**2, self.skip_mlp**2


@dataclass(frozen=True)
class State:
    """The stream before a block, and what happens inside; pairs are (q, p)."""

    stream: tuple[Value, Tensor]
    read: tuple[Value, Tensor]  # by attention
    attention: Attention
    middle: tuple[Value, Tensor]  # between the two halves, after a post-norm
    raw_middle: Tensor  # q before that post-norm
    read_mlp: tuple[Value, Tensor]
    activated: tuple[Tensor, Tensor]  # what the activation gives
    slopes: tuple[Tensor, Tensor]  # E[φ'(u)²], E[φ'(u)φ'(v)]
    raw_end: Tensor


def forward(q: Value, p: Tensor, m: Architecture, statistics: Statistics) -> tuple[Value, Tensor, State]:
    """(q, p) after a block, and its state; a q that is 1 everywhere is the number 1."""
    stream = (q, p)
    q_in, p_in = read = _read(q, p, m.norm, m.offset[0])
    spread = (q_in - p_in).clamp_min(0.0)
    shift = spread * m.self_bias if _is(m.self_bias) else spread.new_zeros(())
    seen = statistics(_times(q_in, m.temperature * spread).sqrt(), cosine_of(q_in, p_in), shift)
    if m.centred:
        q_add = m.incoherent * spread * (seen.participation - 1 / m.tokens)
        p_add = m.incoherent * spread * (seen.overlap - 1 / m.tokens)
    else:
        common, differing = _plus(m.bias[0], _times(m.coherent, p_in)), _times(m.incoherent, spread)
        q_add = common + differing * seen.participation
        p_add = common + differing * seen.overlap if _is(seen.overlap) else common
    q, p = m.kept[0] * q + q_add, m.kept[0] * p + p_add
    if _is(m.trace):
        along = 2 * m.skip_attention * m.trace * (stream[0] ** 0.5 if m.norm == "pre" else 1.0)
        own, other = _mean_weights(seen.own, m)
        passed = 0.0 if m.centred else 1.0
        q, p = q + along * (passed * p_in + spread * own), p + along * (passed * p_in + spread * other)
    raw_middle = q
    q, p = middle = _settle(q, p, m.norm)
    q_in, p_in = read_mlp = _read(q, p, m.norm, m.offset[1])
    hidden = torch.as_tensor(m.mlp[0] * q_in + m.bias[1], dtype=p.dtype, device=p.device)
    (k_own, s_own), (k_cross, s_cross) = (
        m.kernel.moments(hidden, hidden),
        m.kernel.moments(hidden, _plus(m.bias[1], _times(m.mlp[0], p_in))),
    )
    q = m.kept[1] * q + (m.mlp[1] * k_own + m.bias[2])
    p = _times(m.kept[1], p) + _plus(m.bias[2], _times(m.mlp[1], k_cross))
    state = State(stream, read, seen, middle, raw_middle, read_mlp, (k_own, k_cross), (s_own, s_cross), q)
    return *_settle(q, p, m.norm), state


@dataclass(frozen=True)
class Transfer:
    """What a block does to (a, b) on its way back: its MLP half multiplies each, then attention's half mixes them."""

    mlp: tuple[Tensor, Tensor]
    attention: tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]

    def back(self, a: Value, b: Value) -> tuple[Tensor, Tensor]:
        """(a, b) before the block from (a, b) behind it."""
        a, b = self.mlp[0] * a, self.mlp[1] * b
        (aa, ab), (ba, bb) = self.attention
        return aa * a + ab * b, ba * a + bb * b

    def ahead(self, row: tuple[Value, Value]) -> tuple[Tensor, Tensor]:
        """The coefficients with which (a, b) *behind* the block enter the input's a, from those before it.

        Taken block by block from the input they give the gradient's growth at every depth, and nothing is stored.
        """
        (aa, ab), (ba, bb) = self.attention
        return (row[0] * aa + row[1] * ba) * self.mlp[0], (row[0] * ab + row[1] * bb) * self.mlp[1]


def transfer(state: State, m: Architecture, floor: Value = 0.0) -> Transfer:
    """How gradients pass a block.

    `floor` is the relative variance of the tokens' overlaps, 1/D for random tokens: they keep the query's gradient from
    vanishing with T where attention is diffuse.
    """
    n = m.tokens
    scale = m.mlp[0] * m.mlp[1] / (state.middle[0] if m.norm == "pre" else 1.0)
    own, cross = (m.kept[1] + scale * slope for slope in state.slopes)
    if m.norm == "post":
        normed = state.raw_end * state.raw_middle
        own, cross = own / normed, cross / normed
    q_in, p_in = state.read
    spread = (q_in - p_in).clamp_min(0.0)
    r, s = _with_floor(state.attention, floor)
    # Centred rows sum to zero: 1/T is taken off both moments, and nothing common passes.
    less, passed = (1 / n, 0.0) if m.centred else (0.0, 1.0)
    factor = m.incoherent / state.stream[0] if m.norm == "pre" else m.incoherent
    value_a = state.attention.participation - less
    value_b = (n - 1) * (state.attention.overlap - less)
    key = m.temperature * spread
    key_a, key_b = key * q_in * r, key * p_in * s
    aa = m.kept[0] + factor * (value_a + key * spread * r + key_a)
    ab = factor * (value_b + (n - 1) * key_b)
    ba = factor * (passed - value_a - key_a) / (n - 1)
    bb = m.kept[0] + factor * (passed - value_b / (n - 1) + key * spread * s - key_b)
    if _is(m.trace):
        along = 2 * m.skip_attention * m.trace / (state.stream[0] ** 0.5 if m.norm == "pre" else 1.0)
        mine, other = _mean_weights(state.attention.own, m)
        aa, ab = aa + along * mine, ab + along * (passed - mine)
        ba, bb = ba + along * other, bb + along * (passed - other)
    return Transfer((own, cross), ((aa, ab), (ba, bb)))


@dataclass(frozen=True)
class Gradients:
    """Squared gradient norms of one block, for a stream gradient of (a, b) behind it.

    Args:
        query: E‖∂L/∂W_Q‖² ÷ (D T), and that of W_K for equal scales of both.
        value: the same of W_V.
        mlp: the same of the MLP's two matrices, the second ÷ (d_ff T).
    """

    query: Tensor
    value: Tensor
    mlp: tuple[Tensor, Tensor]


def weight_gradients(
    a: Value, b: Value, state: State, passing: Transfer, m: Architecture, floor: Value = 0.0
) -> Gradients:
    """The gradients of a block's weights for (a, b) behind it."""
    n, seen = m.tokens, state.attention
    half = passing.mlp[0] * a, passing.mlp[1] * b  # behind attention
    if m.norm == "post":
        a, b = a / state.raw_end, b / state.raw_end
    q_in, p_in = state.read_mlp
    (own, cross), (k_own, k_cross) = state.slopes, state.activated
    second = k_own * a + k_cross * (n - 1) * b
    first = m.mlp[1] * (own * q_in * a + cross * p_in * (n - 1) * b)
    a, b = half
    q_in, p_in = state.read
    spread = (q_in - p_in).clamp_min(0.0)
    r, s = _with_floor(seen, floor)
    less, passed = (1 / n, 0.0) if m.centred else (0.0, 1.0)
    query = m.temperature**0.5 * m.incoherent * spread**2 * (q_in * r * a + p_in * s * (n - 1) * b)
    value_a = passed * p_in + spread * (seen.participation - less)
    value_b = passed * p_in + spread * (seen.overlap - less)
    return Gradients(query, value_a * a + value_b * (n - 1) * b, (first, second))


def _is(value: Value) -> bool:
    """Whether a number may differ from zero."""
    return isinstance(value, Tensor) or value != 0.0


def _times(factor: Value, x: Tensor) -> Tensor:
    """The product; a pass over all cells is saved where it is one."""
    return factor * x if isinstance(factor, Tensor) or factor != 1.0 else x


def _plus(term: Value, x: Tensor) -> Tensor:
    """The sum; a pass over all cells is saved where it is zero."""
    return term + x if _is(term) else x


def _mean_weights(own: Value, m: Architecture) -> tuple[Value, Value]:
    """The mean weight of the own token, and of another; less 1/T where attention is centred."""
    other, less = (1 - own) / (m.tokens - 1), 1 / m.tokens if m.centred else 0.0
    return own - less, other - less


def _with_floor(seen: Attention, floor: Value) -> tuple[Value, Value]:
    """R and S, raised where attention is diffuse by what finite width adds."""
    if not _is(floor):
        return seen.row_gradient, seen.pair_gradient
    diffuse = floor * (seen.participation < 0.1)
    return (
        seen.row_gradient + diffuse * (1 - seen.participation),
        seen.pair_gradient + diffuse * (1 - seen.overlap),
    )


def _read(q: Value, p: Tensor, norm: str, offset: Value) -> tuple[Value, Tensor]:
    """What a branch reads: with a norm before it, tokens of unit size, and the norm's own bias in common."""
    return (1.0 + offset, p / q + offset) if norm == "pre" else (q, p)


def _settle(q: Tensor, p: Tensor, norm: str) -> tuple[Value, Tensor]:
    """What a half leaves on the stream: with a norm behind it, tokens of unit size; p ≤ q whatever rounding says."""
    return (1.0, (p / q).clamp_max(1.0)) if norm == "post" else (q, torch.minimum(p, q))


def cosine_of(q: Value, p: Tensor) -> Tensor:
    """p/q, at most 1; tokens of no size are alike."""
    if not isinstance(q, Tensor):
        return (p / q if q != 1.0 else p).clamp_max(1.0)
    return torch.where(q > 0, p / q, 1.0).clamp_max(1.0)
