"""GPT-2's scaled residual outputs."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from wellcond.attention.find import AttentionLayers
from wellcond.attention.view import AttentionLayer, Block, Projection
from wellcond.errors import SchemeError
from wellcond.schemes.base import Laws, Scheme, Target, mlp_targets, outside_block, register
from wellcond.schemes.laws import Law, Normal


@register(
    "gpt2_residual",
    citation="Radford et al. 2019 (GPT-2)",
    published="std 0.02; attention and MLP outputs 0.02/√(2L)",
)
@dataclass(frozen=True)
class GPT2Residual(Scheme):
    r"""N(0, std²) everywhere, and std ÷ √(2L) for the matrices that write to the residual stream.

    Args:
        std: of all other matrices.
        depth: `"total"`: L is the number of blocks, as in GPT-2; `"layer"`: the block's own number from 1, as timm's
            `fix_init` divides.
    """

    std: float = 0.02
    depth: Literal["total", "layer"] = "total"

    def __post_init__(self) -> None:
        """A spread is positive."""
        if self.std <= 0:
            raise SchemeError(f"'gpt2_residual' takes a positive std, got {self.std}")

    def applies(self, layer: AttentionLayer) -> str | None:
        """Needs a depth."""
        return outside_block(layer)

    def laws(self, layer: AttentionLayer) -> Laws:
        """The output is scaled, the rest is not."""
        assert layer.block is not None
        return {(role,): self._law(layer.block, role, p) for role, p in layer.projections()}

    def beyond(self, layers: AttentionLayers) -> Iterator[Target]:
        """The MLP likewise."""
        return mlp_targets(layers, self._law)

    def _law(self, block: Block, role: str, projection: Projection) -> Law:
        if role not in ("output", "mlp_out"):
            return Normal(self.std)
        depth = block.depth if self.depth == "total" else block.index + 1
        return Normal(self.std / math.sqrt(2 * depth), f"residual output, ÷ √{2 * depth}")
