"""Depth-scaled initialisation (DS-Init)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from wellcond.attention.view import Block, Projection
from wellcond.errors import SchemeError
from wellcond.schemes.base import fans, register
from wellcond.schemes.depth import BlockScheme
from wellcond.schemes.laws import Law, Uniform


@register(
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

    alpha: float = 1.0
    variant: Literal["paper", "code"] = "paper"

    def __post_init__(self) -> None:
        """A scale is positive."""
        if self.alpha <= 0:
            raise SchemeError(f"'depth_scaled' takes a positive alpha, got {self.alpha}")

    def law(self, block: Block, role: str, projection: Projection) -> Law:
        """By fans and depth."""
        depth = block.index + 1
        factor = self.alpha / math.sqrt(depth)
        scale = factor if self.variant == "paper" else math.sqrt(factor)
        return Uniform(scale * math.sqrt(2 / sum(fans(role, projection, "projection"))), f"layer {depth}")
