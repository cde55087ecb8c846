"""Structured (impulse) initialisation, closed form."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from wellcond._core.argument_types import Positive
from wellcond._core.keyed_random import Draw
from wellcond._core.linalg import svd, wide
from wellcond.attention.layers import AttentionLayers
from wellcond.attention.view import AttentionLayer
from wellcond.init.laws import Check, Law, Normal, Shape
from wellcond.init.positions import PositionEmbedding, find_positions, positions_of
from wellcond.init.products import ValueOutputProduct, query_key_refusal, value_output_refusal
from wellcond.init.registry import register_scheme
from wellcond.init.scheme import Laws, Scheme, Target

CELLS = (4, 1, 5, 3, 7, 0, 2, 6, 8)  # cells of a 3×3 window in the order heads take them: centre, edges, corners
EMBEDDING_STD = 0.02
HITS = 0.95  # share of positions whose largest probability is on the target


@register_scheme(
    "impulse",
    citation="structured (convolutional) initialisation, arXiv 2505.19985, after 2401.12511 and 2404.01139",
    published="3×3 impulses, position embedding × 18, target 1000 H + 3 T, Frobenius norm 7; value–output mimetic 0.4",
)
@dataclass(frozen=True)
class Impulse(Scheme):
    r"""Each head attends one fixed neighbour on the grid of tokens.

    $\operatorname{softmax}(P W_Q W_K^\top P^\top) \approx H_i$. With $P = \mathrm{LN}(\text{positions})$ and the rank-d
    pseudo-inverse $P^+$, $A = P^+ G (P^+)^\top$ for $G = 1000 H + 3 T$ (T truncated normal, where H is 0); W_Q and W_K
    are the even split of its SVD, scaled to Frobenius norm 7. The position embedding is drawn anew,
    N(0, (18 · 0.02)²). Value and output follow the mimetic product α Z − α I.

    Args:
        position_scale: factor on the position embedding's std of 0.02.
        norm: Frobenius norm of each head's W_Q and W_K.
        vo_alpha: α of the value–output product.
    """

    position_scale: Positive = 18.0
    norm: Positive = 7.0
    vo_alpha: float = 0.4

    def applies(self, layer: AttentionLayer) -> str | None:
        """Needs a grid with position embedding, ungrouped heads wide enough to tell the positions apart."""
        if layer.kind != "softmax":
            return f"{layer.kind} attention is not a plain softmax over tokens"
        found = find_positions(layer)
        if isinstance(found, str):
            return found
        if layer.qk_norm or layer.rotary:
            return f"queries and keys are {'normalised' if layer.qk_norm else 'rotated'} after W_Q and W_K"
        reason = query_key_refusal(layer) or value_output_refusal(layer)
        if reason is None and layer.width != found.width:
            reason = f"reads width {layer.width}, the positions have {found.width}"
        return reason or _too_narrow(found, layer.head_dim)

    def laws(self, layer: AttentionLayer) -> Laws:
        """Q and K jointly from the positions; V and O as mimetic."""
        std = EMBEDDING_STD * self.position_scale
        return {
            ("query", "key"): ImpulseProduct(positions_of(layer), std, self.norm),
            ("value", "output"): ValueOutputProduct(self.vo_alpha, -self.vo_alpha, "uniform"),
        }

    def beyond(self, layers: AttentionLayers) -> Iterator[Target]:
        """The position embedding itself."""
        if layers:
            positions = positions_of(layers[0])
            law = Normal(EMBEDDING_STD * self.position_scale, "position embedding")
            yield Target(positions.path, "position", positions.projection, law)


def _too_narrow(positions: PositionEmbedding, d: int) -> str | None:
    """Refuse a head too narrow to tell its N positions apart.

    A rank-d map leaves d/N of each impulse's amplitude on its target and spreads noise of 1/√N of it elsewhere, so the
    target stands d/√N standard deviations above the rest, of which the largest of N reaches about √(2 ln N).
    """
    count = positions.grid[0] * positions.grid[1]
    needed = min(count, math.ceil(math.sqrt(count) * (math.sqrt(2 * math.log(count)) + 1)))
    return f"a head of width {d} cannot tell {count} positions apart (it needs {needed})" if d < needed else None


@dataclass(frozen=True)
class ImpulseProduct(Law):
    """Q and K of every head from the position embedding drawn with the same seed."""

    positions: PositionEmbedding
    std: float
    norm: float

    def sample(self, draw: Draw, roles: tuple[str, ...], shapes: tuple[Shape, ...]) -> tuple[Tensor, ...]:
        """Solve in the d leading singular directions of P, where A lives."""
        heads, width, d = shapes[0]
        drawn = Draw(draw.seed, self.positions.path).normal("position", *self.positions.projection.shape)[0]
        grid = normalised(drawn * self.std, self.positions.prefix)
        u, s, vt = svd(grid)
        rank = min(d, int((s > s[0] * 1e-10).sum()))
        inverse = u[:, :rank] / s[:rank]  # (tokens, rank): P⁺ = V inverseᵀ
        query, key = torch.zeros(heads, width, d), torch.zeros(heads, width, d)
        for head in range(heads):
            goal = self._goal(draw, roles[0], head)
            left, sigma, right = svd(inverse.T @ goal @ inverse)
            root = sigma.sqrt()
            for slot, factor in ((query, left * root), (key, right.T * root)):
                full = vt[:rank].T @ factor
                slot[head, :, :rank] = (full * (self.norm / full.norm())).to(torch.float32)
        return query, key

    def _goal(self, draw: Draw, role: str, head: int) -> Tensor:
        """G = 1000 H + 3 T off the impulses."""
        target = impulse_matrix(self.positions.grid, head)
        noise = torch.empty(target.shape, dtype=torch.float64)
        nn.init.trunc_normal_(noise, 0.0, 0.6, -2.0, 2.0, generator=draw.generator(role, head))
        return 1000 * target + 3 * noise * (target == 0)

    def checks(self, weights: tuple[Tensor, ...], eps: float) -> Iterator[Check]:
        """Frobenius norms, and how many on-grid rows of the attention on the stored positions hit their neighbour."""
        stored = wide(self.positions.projection.read())[0]
        grid = normalised(stored, self.positions.prefix)
        for head, (query, key) in enumerate(zip(*weights, strict=True)):
            for role, weight in enumerate((query, key)):
                norm = float(weight.norm())
                yield Check(role, head, "Frobenius norm", norm, self.norm, 8 * eps * self.norm, spectral=True)
            target = impulse_matrix(self.positions.grid, head)
            rows = target.sum(1) > 0
            hits = (grid @ query @ key.T @ grid.T).argmax(1)[rows] == target.argmax(1)[rows]
            # On a small grid two misses are already more than 5 %.
            allowed = max(1 - HITS, 2 / len(hits))
            yield Check(0, head, "share of rows on target", float(hits.double().mean()), 1.0, allowed)

    def __str__(self) -> str:
        return f"impulse on a {self.positions.grid[0]}×{self.positions.grid[1]} grid"


def normalised(table: Tensor, prefix: int) -> Tensor:
    """LayerNorm without gain of the grid's rows, float64: `(tokens, D)`."""
    return nn.functional.layer_norm(wide(table)[prefix:], table.shape[-1:])


def impulse_matrix(grid: tuple[int, int], head: int) -> Tensor:
    """`(tokens, tokens)`: 1 where the column is the row's neighbour for this head, a zero row off the grid.

    >>> impulse_matrix((1, 3), head=2)                                # to the right
    tensor([[0., 1., 0.],
            [0., 0., 1.],
            [0., 0., 0.]], dtype=torch.float64)
    """
    rows, columns = grid
    cell = CELLS[head % len(CELLS)]
    down, right = cell // 3 - 1, cell % 3 - 1
    matrix = torch.zeros(rows * columns, rows * columns, dtype=torch.float64)
    for r in range(max(0, -down), min(rows, rows - down)):
        for c in range(max(0, -right), min(columns, columns - right)):
            matrix[r * columns + c, (r + down) * columns + c + right] = 1
    return matrix
