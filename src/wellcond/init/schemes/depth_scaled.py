"""Depth-scaled initialisation (DS-Init)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from wellcond._core.argument_types import Positive
from wellcond.attention.projection import Projection
from wellcond.attention.view import ResidualBlock
from wellcond.init.block_schemes import BlockScheme
from wellcond.init.fan_laws import fans
from wellcond.init.laws import Law, Uniform
from wellcond.init.registry import register_scheme


@register_scheme(
    "depth_scaled",
    citation="Zhang, Titov & Sennrich 2019, arXiv 1908.11365",
    published="α = 1; the released code passes α/√l as a variance scale, so its std falls as l^(−1/4)",
)
@dataclass(frozen=True)
class DepthScaled(BlockScheme):
    r"""All matrices of layer l (from 1) uniform on ±γα/√l.

    $\gamma = \sqrt{6/(\mathrm{fan_{in}} + \mathrm{fan_{out}})}$ is Xavier's bound.

    Args:
        alpha: α.
        variant: `"paper"`, or `"code"`: what the released code does, $\gamma\sqrt{\alpha}\,l^{-1/4}$.
    """

    alpha: Positive = 1.0
    variant: Literal["paper", "code"] = "paper"

    def law(self, block: ResidualBlock, role: str, projection: Projection) -> Law:
        """By fans and depth."""
        depth = block.index + 1
        factor = self.alpha / math.sqrt(depth)
        scale = factor if self.variant == "paper" else math.sqrt(factor)
        return Uniform(scale * math.sqrt(2 / sum(fans(role, projection))), f"layer {depth}")
