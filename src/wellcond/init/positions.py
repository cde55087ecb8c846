"""The position embedding of a model that has a grid of tokens."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from wellcond.attention.layouts import contiguous
from wellcond.attention.paths import join, walk
from wellcond.attention.projection import Projection, Slot
from wellcond.attention.view import AttentionLayer

_NAMES = ("pos_embed", "pos_embedding", "position_embeddings", "position_embedding", "positional_embedding")


@dataclass(frozen=True)
class PositionEmbedding:
    """A learned absolute position embedding `(1, prefix + rows·columns, D)`.

    Args:
        path: canonical path of the parameter.
        projection: the table as `(1, tokens, D)`.
        grid: `(rows, columns)`.
        prefix: class and register tokens before the grid.
    """

    path: str
    projection: Projection
    grid: tuple[int, int]
    prefix: int

    @property
    def width(self) -> int:
        """D."""
        return self.projection.shape[2]


def positions_of(layer: AttentionLayer) -> PositionEmbedding:
    """Return the position embedding of a layer's model, which has one: `find_positions` was asked before."""
    found = find_positions(layer)
    assert isinstance(found, PositionEmbedding)
    return found


def find_positions(layer: AttentionLayer) -> PositionEmbedding | str:
    """Return the position embedding of a layer's model, or why it has none."""
    root = layer.root
    assert root is not None
    for path, module in walk(root):
        for name, value in module._parameters.items():
            if value is not None and name in _NAMES and value.ndim == 3 and value.shape[0] == 1:
                tokens, width = value.shape[1:]
                grid = _grid(root, tokens)
                if grid is None:
                    return f"the {tokens} positions of '{join(path, name)}' are not a grid"
                slot = Slot(join(path, name), contiguous(1, width, axis=1))
                return PositionEmbedding(slot.path, Projection(slot, root=root), grid, tokens - grid[0] * grid[1])
    return "the model has no learned position embedding over a grid of tokens"


def _grid(root: nn.Module, tokens: int) -> tuple[int, int] | None:
    """The patch grid a model declares, else the largest square that leaves at most a few prefix tokens."""
    for _, module in walk(root):
        size = getattr(module, "grid_size", None)
        if isinstance(size, (tuple, list)) and len(size) == 2 and 0 <= tokens - size[0] * size[1] <= 16:
            return int(size[0]), int(size[1])
    side = math.isqrt(tokens)
    return (side, side) if side > 1 and tokens - side * side <= 2 else None


def sincos(positions: PositionEmbedding, temperature: float = 10_000.0) -> Tensor:
    """2-D sine–cosine embedding `(1, tokens, D)`: sine and cosine of x and of y, D/4 each; prefix rows are zero.

    Frequency exponents j/(D/4 − 1), as in SimpleViT.
    """
    rows, columns = positions.grid
    quarter = positions.width // 4
    omega = temperature ** -(torch.arange(quarter, dtype=torch.float64) / max(1, quarter - 1))
    steps = [torch.arange(size, dtype=torch.float64) for size in positions.grid]
    y, x = (axis.flatten()[:, None] * omega for axis in torch.meshgrid(steps, indexing="ij"))
    table = torch.zeros(positions.prefix + rows * columns, positions.width, dtype=torch.float64)
    table[positions.prefix :, : 4 * quarter] = torch.cat([x.sin(), x.cos(), y.sin(), y.cos()], dim=1)
    return table[None]
