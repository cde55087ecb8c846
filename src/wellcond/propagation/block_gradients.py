r"""Gradients of one Transformer block in mean field, for the stream and for the block's weights.

Going back, a is the mean of $|g_t|^2$ and b that of $g_t \cdot g_u$ over different tokens, for g the gradient of the
loss with respect to the stream.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from wellcond.propagation.attention_statistics import Attention, Value
from wellcond.propagation.block import Architecture, State, is_present, mean_weights


@dataclass(frozen=True)
class Transfer:
    """How a block changes (a, b) on its way back: its MLP half multiplies each, then attention's half mixes them."""

    mlp: tuple[Tensor, Tensor]
    attention: tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]

    def back(self, a: Value, b: Value) -> tuple[Tensor, Tensor]:
        """Return (a, b) before the block from (a, b) behind it."""
        a, b = self.mlp[0] * a, self.mlp[1] * b
        (aa, ab), (ba, bb) = self.attention
        return aa * a + ab * b, ba * a + bb * b

    def ahead(self, row: tuple[Value, Value]) -> tuple[Tensor, Tensor]:
        """Return the coefficients with which (a, b) *behind* the block enter the input's a, from those before it.

        Taken block by block from the input they give the gradient's growth at every depth, and nothing is stored.
        """
        (aa, ab), (ba, bb) = self.attention
        return (row[0] * aa + row[1] * ba) * self.mlp[0], (row[0] * ab + row[1] * bb) * self.mlp[1]


def transfer(state: State, m: Architecture, floor: Value = 0.0) -> Transfer:
    """Return how gradients pass a block.

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
    if is_present(m.trace):
        along = 2 * m.skip_attention * m.trace / (state.stream[0] ** 0.5 if m.norm == "pre" else 1.0)
        mine, other = mean_weights(state.attention.own, m)
        aa, ab = aa + along * mine, ab + along * (passed - mine)
        ba, bb = ba + along * other, bb + along * (passed - other)
    return Transfer((own, cross), ((aa, ab), (ba, bb)))


@dataclass(frozen=True)
class Gradients:
    """Squared gradient norms of one block, for a stream gradient of (a, b) behind it."""

    query: Tensor  # E‖∂L/∂W_Q‖² ÷ (D T), and that of W_K for equal scales of both
    value: Tensor  # the same of W_V
    mlp: tuple[Tensor, Tensor]  # the same of the MLP's two matrices, the second ÷ (d_ff T)


def weight_gradients(
    a: Value, b: Value, state: State, passing: Transfer, m: Architecture, floor: Value = 0.0
) -> Gradients:
    """Return the gradients of a block's weights for (a, b) behind it."""
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


def _with_floor(seen: Attention, floor: Value) -> tuple[Value, Value]:
    """R and S, raised where attention is diffuse by what finite width adds."""
    if not is_present(floor):
        return seen.row_gradient, seen.pair_gradient
    diffuse = floor * (seen.participation < 0.1)
    return (
        seen.row_gradient + diffuse * (1 - seen.participation),
        seen.pair_gradient + diffuse * (1 - seen.overlap),
    )
