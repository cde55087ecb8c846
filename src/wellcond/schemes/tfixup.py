"""T-Fixup."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from torch import nn

from wellcond.attention.find import AttentionLayers
from wellcond.attention.layouts import contiguous
from wellcond.attention.paths import join, walk
from wellcond.attention.view import AttentionLayer, Block, Projection, Slot
from wellcond.schemes.base import Laws, Scheme, Target, mlp_targets, outside_block, register
from wellcond.schemes.laws import Law, Normal
from wellcond.schemes.xavier import xavier


@register(
    "tfixup",
    citation="Huang et al. 2020 (T-Fixup)",
    published="no LayerNorm, no warm-up; encoder ×0.67 N^−¼, decoder and embeddings ×(9N)^−¼",
)
@dataclass(frozen=True)
class TFixup(Scheme):
    r"""Xavier-uniform; V, O and the MLP scaled by 0.67 N^−¼ (encoder) or (9N)^−¼ (decoder); biases zero.

    Token embeddings are $N(0, 1/D)$ times $(9N)^{-1/4}$. The method is meant for blocks whose LayerNorms were removed.

    Args:
        stack: which rule a model with a single stack follows.
        embeddings: whether to draw the token embeddings too.
    """

    stack: Literal["encoder", "decoder"] = "encoder"
    embeddings: bool = True

    def applies(self, layer: AttentionLayer) -> str | None:
        """Needs a depth."""
        return outside_block(layer)

    def laws(self, layer: AttentionLayer) -> Laws:
        """Q and K unscaled, V and O scaled."""
        assert layer.block is not None
        return {(role,): self._law(layer.block, role, p) for role, p in layer.projections()}

    def beyond(self, layers: AttentionLayers) -> Iterator[Target]:
        """The MLP scaled, and the embeddings."""
        yield from mlp_targets(layers, self._law)
        if self.embeddings and layers:
            yield from self._embeddings(layers)

    def zeroed(self) -> frozenset[str]:
        """All biases."""
        return frozenset(["query", "key", "value", "output", "mlp"])

    def _law(self, block: Block, role: str, projection: Projection) -> Law:
        return xavier(role, projection, 1.0 if role in ("query", "key") else self._factor(block))

    def _factor(self, block: Block) -> float:
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
            rows, width = module.weight.shape
            projection = Projection(Slot(join(path, "weight"), contiguous(1, width, axis=1)), root=root)
            yield Target(path, "embedding", projection, Normal(width**-0.5 * (9 * depth) ** -0.25, f"{rows} tokens"))
