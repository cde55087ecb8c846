"""GPT-2's scaled residual outputs."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from wellcond._core.argument_types import Positive
from wellcond.attention.projection import Projection
from wellcond.attention.view import ResidualBlock
from wellcond.init.block_schemes import BlockScheme, writes_to_stream
from wellcond.init.laws import Law, Normal
from wellcond.init.registry import register_scheme


@register_scheme(
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

    std: Positive = 0.02
    depth: Literal["total", "layer"] = "total"

    def law(self, block: ResidualBlock, role: str, projection: Projection) -> Law:
        """Scale what writes to the stream alone."""
        if not writes_to_stream(role):
            return Normal(self.std)
        depth = block.depth if self.depth == "total" else block.index + 1
        return Normal(self.std / math.sqrt(2 * depth), f"residual output, ÷ √{2 * depth}")
