r"""One Transformer block in mean field: what it does to the size q and the similarity p of tokens.

q is the mean of $|x_t|^2/D$, p the mean of $x_t \cdot x_u/D$ over different tokens. Both, and the gains, may be
tensors: every cell of a diagram is one element.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from wellcond.propagation.activation_kernels import Kernel
from wellcond.propagation.attention_statistics import Attention, Statistics, Value


@dataclass(frozen=True)
class Architecture:
    """The parameters of one block, as the recursion takes them; `wc.propagate` says what each means."""

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
        """Variance of a logit of unit tokens, σ_a² = β² log T."""
        return self.beta**2 * math.log(self.tokens)

    @cached_property
    def kept(self) -> tuple[Value, Value]:
        """Shares of the stream's size that the two skips keep."""
        return self.skip_attention**2, self.skip_mlp**2


@dataclass(frozen=True)
class State:
    """The stream before and inside a block; pairs are (q, p)."""

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
    """Return (q, p) after a block, and its state; a q that is 1 everywhere is the number 1."""
    stream = (q, p)
    q_in, p_in = read = _read(q, p, m.norm, m.offset[0])
    spread = (q_in - p_in).clamp_min(0.0)
    shift = spread * m.self_bias if is_present(m.self_bias) else spread.new_zeros(())
    seen = statistics(_times(q_in, m.temperature * spread).sqrt(), cosine_of(q_in, p_in), shift)
    if m.centred:
        q_add = m.incoherent * spread * (seen.participation - 1 / m.tokens)
        p_add = m.incoherent * spread * (seen.overlap - 1 / m.tokens)
    else:
        common, differing = _plus(m.bias[0], _times(m.coherent, p_in)), _times(m.incoherent, spread)
        q_add = common + differing * seen.participation
        p_add = common + differing * seen.overlap if is_present(seen.overlap) else common
    q, p = m.kept[0] * q + q_add, m.kept[0] * p + p_add
    if is_present(m.trace):
        along = 2 * m.skip_attention * m.trace * (stream[0] ** 0.5 if m.norm == "pre" else 1.0)
        own, other = mean_weights(seen.own, m)
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


def is_present(value: Value) -> bool:
    """Return whether a number may differ from zero."""
    return isinstance(value, Tensor) or value != 0.0


def _times(factor: Value, x: Tensor) -> Tensor:
    """The product; a pass over all cells is saved where it is one."""
    return factor * x if isinstance(factor, Tensor) or factor != 1.0 else x


def _plus(term: Value, x: Tensor) -> Tensor:
    """The sum; a pass over all cells is saved where it is zero."""
    return term + x if is_present(term) else x


def mean_weights(own: Value, m: Architecture) -> tuple[Value, Value]:
    """Return the mean weight of the own token, and of another; less 1/T where attention is centred."""
    other, less = (1 - own) / (m.tokens - 1), 1 / m.tokens if m.centred else 0.0
    return own - less, other - less


def _read(q: Value, p: Tensor, norm: str, offset: Value) -> tuple[Value, Tensor]:
    """The (q, p) that a branch reads: with a norm before it, tokens of unit size, and the norm's own bias in common."""
    return (1.0 + offset, p / q + offset) if norm == "pre" else (q, p)


def _settle(q: Tensor, p: Tensor, norm: str) -> tuple[Value, Tensor]:
    """The (q, p) behind half a block: with a norm behind it, tokens of unit size; p ≤ q whatever rounding says."""
    return (1.0, (p / q).clamp_max(1.0)) if norm == "post" else (q, torch.minimum(p, q))


def cosine_of(q: Value, p: Tensor) -> Tensor:
    """Return p/q, at most 1; tokens of no size are alike."""
    if not isinstance(q, Tensor):
        return (p / q if q != 1.0 else p).clamp_max(1.0)
    return torch.where(q > 0, p / q, 1.0).clamp_max(1.0)
