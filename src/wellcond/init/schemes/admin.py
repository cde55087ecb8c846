"""Admin (Liu et al. 2020), data-free."""

from __future__ import annotations

import math
from dataclasses import dataclass

from wellcond.attention.projection import Projection
from wellcond.attention.view import ResidualBlock
from wellcond.init.block_schemes import PostNormScheme, writes_to_stream
from wellcond.init.fan_laws import xavier_law
from wellcond.init.laws import Law
from wellcond.init.registry import register_scheme


@register_scheme(
    "admin",
    citation="Liu et al. 2020, arXiv 2004.08249",
    published="ω from a profiling pass, or data-free: ω = √((n+1)/ln(n+1) − 1) with n = 2L residual branches",
)
@dataclass(frozen=True)
class Admin(PostNormScheme):
    r"""Post-norm LN(ω x + f(x)) with Xavier-uniform weights and the data-free ω; biases zero.

    ω is folded into the matrices that write to the residual stream, as
    $\mathrm{LN}(\omega x + f) = \mathrm{LN}(x + f/\omega)$.

    Args:
        residual: `"fold"`; or `"slot"` if the model multiplies its own skip by ω.
        post_norm: say so for a class whose norm position is not known.
    """

    def skip(self, block: ResidualBlock) -> float:
        """ω; a decoder block has three branches: self-attention, cross-attention and MLP."""
        return omega((3 if block.stack == "decoder" else 2) * block.depth)

    def law(self, block: ResidualBlock, role: str, projection: Projection) -> Law:
        """Gain 1, and 1/ω for what writes to the stream."""
        return xavier_law(role, projection, 1 / self.fold(block) if writes_to_stream(role) else 1.0)


def omega(branches: int) -> float:
    """Data-free ω for a stack with this many residual branches.

    >>> round(omega(12), 3)
    2.017
    """
    return math.sqrt((branches + 1) / math.log(branches + 1) - 1)
