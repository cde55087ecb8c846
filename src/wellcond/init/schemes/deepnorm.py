"""DeepNorm (Wang et al. 2022)."""

from __future__ import annotations

from dataclasses import dataclass

from wellcond.attention.projection import Projection
from wellcond.attention.view import ResidualBlock
from wellcond.init.block_schemes import PostNormScheme, writes_to_stream
from wellcond.init.fan_laws import xavier_law
from wellcond.init.laws import Law
from wellcond.init.registry import register_scheme


@register_scheme(
    "deepnorm",
    citation="Wang et al. 2022, arXiv 2203.00555",
    published="single stack α = (2N)^¼, β = (8N)^−¼; encoder–decoder by both depths; V, O, fc1, fc2 with gain β",
)
@dataclass(frozen=True)
class DeepNorm(PostNormScheme):
    r"""Post-norm LN(α x + f(x)), Xavier-normal weights with gain β on V, O and the MLP, 1 on Q and K.

    Since $\mathrm{LN}(\alpha x + f) = \mathrm{LN}(x + f/\alpha)$, α is folded into the matrices that
    write to the residual stream, and the model needs no change. Biases are zero.

    Args:
        residual: `"fold"`; or `"slot"` if the model multiplies its own skip by α.
        post_norm: say so for a class whose norm position is not known.
    """

    def skip(self, block: ResidualBlock) -> float:
        """α."""
        return constants(block)[0]

    def law(self, block: ResidualBlock, role: str, projection: Projection) -> Law:
        """Gain 1 for Q and K, β for the rest, β/α for what writes to the stream."""
        gain = 1.0 if role in ("query", "key") else constants(block)[1]
        return xavier_law(role, projection, gain / self.fold(block) if writes_to_stream(role) else gain, "normal")


def constants(block: ResidualBlock) -> tuple[float, float]:
    """(α, β) of the block's stack; a block with cross-attention has three branches, and a rule of its own."""
    if block.stack == "decoder":
        return (3 * block.depth) ** 0.25, (12 * block.depth) ** -0.25
    if block.stack == "encoder":
        joint = (block.depth**4 * block.other_depth) ** (1 / 16)
        return 0.81 * joint, 0.87 / joint
    return (2 * block.depth) ** 0.25, (8 * block.depth) ** -0.25
