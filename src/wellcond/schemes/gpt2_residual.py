"""GPT-2's scaled residual outputs."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from wellcond.attention.view import Block, Projection
from wellcond.errors import SchemeError
from wellcond.schemes.base import register
from wellcond.schemes.depth import BlockScheme, writes_to_stream
from wellcond.schemes.laws import Law, Normal


@register(
    "gpt2_residual",
    citation="Radford et al. 2019 (GPT-2)",
    published="std 0.02; attention and MLP outputs 0.02/√(2L)",
)
@dataclass(frozen=True)
class GPT2Residual(BlockScheme):
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

    def law(self, block: Block, role: str, projection: Projection) -> Law:
        """What writes to the stream is scaled, the rest is not."""
        if not writes_to_stream(role):
            return Normal(self.std)
        depth = block.depth if self.depth == "total" else block.index + 1
        return Normal(self.std / math.sqrt(2 * depth), f"residual output, ÷ √{2 * depth}")
