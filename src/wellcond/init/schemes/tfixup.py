"""T-Fixup (Huang et al. 2020)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from torch import Tensor, nn

from wellcond._core.keyed_random import Draw
from wellcond.attention.layers import AttentionLayers
from wellcond.attention.layouts import contiguous
from wellcond.attention.paths import join, walk
from wellcond.attention.projection import Projection, Slot
from wellcond.attention.view import ResidualBlock
from wellcond.init.block_schemes import ALL_ROLES, BlockScheme
from wellcond.init.fan_laws import xavier_law
from wellcond.init.laws import Check, Law, Normal, Shape
from wellcond.init.registry import register_scheme
from wellcond.init.scheme import Target


@register_scheme(
    "tfixup",
    citation="Huang et al. 2020 (T-Fixup)",
    published="no LayerNorm, no warm-up; encoder ×0.67 N^−¼, decoder and embeddings ×(9N)^−¼",
)
@dataclass(frozen=True)
class TFixup(BlockScheme):
    r"""Xavier-uniform; V, O and the MLP scaled by 0.67 N^−¼ (encoder) or (9N)^−¼ (decoder); biases zero.

    Token embeddings are $N(0, 1/D)$ times $(9N)^{-1/4}$. The method is meant for blocks whose LayerNorms were removed.

    Args:
        stack: which rule a model with a single stack follows.
        embeddings: whether to draw the token embeddings too.
    """

    stack: Literal["encoder", "decoder"] = "encoder"
    embeddings: bool = True

    def law(self, block: ResidualBlock, role: str, projection: Projection) -> Law:
        """Q and K unscaled, the rest scaled."""
        return xavier_law(role, projection, 1.0 if role in ("query", "key") else self._factor(block))

    def beyond(self, layers: AttentionLayers) -> Iterator[Target]:
        """The MLP, and the embeddings unless only some layers were chosen."""
        yield from super().beyond(layers)
        if self.embeddings and layers and not layers.filtered:
            yield from self._embeddings(layers)

    def zeroed(self) -> frozenset[str]:
        """All biases."""
        return ALL_ROLES

    def _factor(self, block: ResidualBlock) -> float:
        decoder = (block.stack or self.stack) == "decoder"
        return float((9 * block.depth) ** -0.25 if decoder else 0.67 * block.depth**-0.25)

    def _embeddings(self, layers: AttentionLayers) -> Iterator[Target]:
        """Every `nn.Embedding` of the model's width but the tables of positions and token types."""
        root, depth = layers[0].root, max(block.depth for block in layers.blocks)
        assert root is not None
        for path, module in walk(root):
            name = path.rpartition(".")[2]
            if not isinstance(module, nn.Embedding) or module.embedding_dim != layers[0].width:
                continue
            if any(word in name for word in ("pos", "type", "wpe")):
                continue
            width = module.embedding_dim
            projection = Projection(Slot(join(path, "weight"), contiguous(1, width, axis=1)), root=root)
            law = TokenTable(width**-0.5 * (9 * depth) ** -0.25, padding=module.padding_idx)
            yield Target(path, "embedding", projection, law)


@dataclass(frozen=True)
class TokenTable(Normal):
    """Gaussian rows but for the padding token's, which is zero."""

    padding: int | None = None

    def draw(self, draw: Draw, role: str, shape: Shape) -> Tensor:
        """Draw all rows, then clear the padding token's."""
        table = super().draw(draw, role, shape)
        if self.padding is not None:
            table[:, self.padding] = 0
        return table

    def check(self, weight: Tensor, eps: float) -> Iterator[Check]:
        """The moments of the other rows."""
        rows = [row for row in range(weight.shape[1]) if row != self.padding]
        yield from super().check(weight[:, rows], eps)
