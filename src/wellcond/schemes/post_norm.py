"""Schemes that scale the skip of a post-norm block: LN(α x + f(x))."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import Literal

from wellcond.attention.view import AttentionLayer, Block
from wellcond.schemes.depth import ALL, BlockScheme


@dataclass(frozen=True)
class PostNormScheme(BlockScheme):
    """Fold the skip's factor into the matrices that write to the stream: LN(α x + f) = LN(x + f/α)."""

    residual: Literal["fold", "slot"] = "fold"
    post_norm: bool | None = None

    @abstractmethod
    def skip(self, block: Block) -> float:
        """The factor of the skip."""

    def fold(self, block: Block) -> float:
        """What the matrices that write to the stream are divided by."""
        return self.skip(block) if self.residual == "fold" else 1.0

    def applies(self, layer: AttentionLayer) -> str | None:
        """Needs a post-norm block."""
        if layer.block is None:
            return super().applies(layer)
        position = {True: "post", False: "pre", None: layer.block.norm_position}[self.post_norm]
        if position == "post":
            return None
        if not position:
            return "the class does not say whether it normalises after the residual sum; pass post_norm=True if it does"
        return "the block normalises before its branches (pre-norm), so scaling the skip has no meaning"

    def zeroed(self) -> frozenset[str]:
        """All biases: a folded factor would have to divide them too."""
        return ALL
