"""DeepNorm."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from wellcond.attention.find import AttentionLayers
from wellcond.attention.view import AttentionLayer, Block, Projection
from wellcond.schemes.base import Laws, Scheme, Target, mlp_targets, outside_block, register
from wellcond.schemes.laws import Law
from wellcond.schemes.xavier import xavier


@register(
    "deepnorm",
    citation="Wang et al. 2022, arXiv 2203.00555",
    published="single stack α = (2N)^¼, β = (8N)^−¼; encoder–decoder by both depths; V, O, fc1, fc2 with gain β",
)
@dataclass(frozen=True)
class DeepNorm(Scheme):
    r"""Post-norm LN(α x + f(x)), Xavier-normal weights with gain β on V, O and the MLP, 1 on Q and K.

    Since $LN(\alpha x + f) = LN(x + f/\alpha)$, α is folded into the matrices that write to the residual stream, and
    the model needs no change. Biases are zero.

    Args:
        residual: `"fold"`; or `"slot"` if the model multiplies its own skip by α.
        post_norm: say so for a class whose norm position is not known.
    """

    residual: Literal["fold", "slot"] = "fold"
    post_norm: bool | None = None

    def applies(self, layer: AttentionLayer) -> str | None:
        """Needs a post-norm block."""
        return outside_block(layer) or not_post_norm(layer, self.post_norm)

    def laws(self, layer: AttentionLayer) -> Laws:
        """Gain 1 for Q and K, β for V, β/α for O."""
        assert layer.block is not None
        depths = stack_depths(layer)
        return {(role,): self._law(layer.block, depths, role, p) for role, p in layer.projections()}

    def beyond(self, layers: AttentionLayers) -> Iterator[Target]:
        """Gain β for the first MLP matrix, β/α for the second."""
        depths = {block.name: stack_depths(layer) for layer in layers if (block := layer.block) is not None}
        return mlp_targets(layers, lambda block, role, p: self._law(block, depths[block.name], role, p))

    def zeroed(self) -> frozenset[str]:
        """All biases."""
        return frozenset(["query", "key", "value", "output", "mlp"])

    def _law(self, block: Block, depths: tuple[int, int], role: str, projection: Projection) -> Law:
        alpha, beta = constants(block.stack, *depths)
        gain = 1.0 if role in ("query", "key") else beta
        if role in ("output", "mlp_out") and self.residual == "fold":
            gain /= alpha
        return xavier(role, projection, gain, "normal")


def constants(stack: str, encoder: int, decoder: int) -> tuple[float, float]:
    """(α, β) for a stack of `encoder` or `decoder` blocks; one of the depths is 0 in a single-stack model.

    >>> [round(x, 4) for x in constants("", 12, 0)]
    [2.2134, 0.3195]
    """
    if not encoder or not decoder:
        depth = encoder or decoder
        return (2 * depth) ** 0.25, (8 * depth) ** -0.25
    if stack == "encoder":
        joint = (encoder**4 * decoder) ** (1 / 16)
        return 0.81 * joint, 0.87 / joint
    return (3 * decoder) ** 0.25, (12 * decoder) ** -0.25


def stack_depths(layer: AttentionLayer) -> tuple[int, int]:
    """(encoder, decoder) depths of the model a layer belongs to; (depth, 0) for a single stack."""
    from wellcond.attention.find import attention_layers

    assert layer.block is not None
    if not layer.block.stack:
        return layer.block.depth, 0
    assert layer.root is not None
    depths = {block.stack: block.depth for block in attention_layers(layer.root).blocks}
    return depths.get("encoder", 0), depths.get("decoder", 0)


def not_post_norm(layer: AttentionLayer, told: bool | None) -> str | None:
    """Say why a layer's block is not post-norm, or None."""
    assert layer.block is not None
    if told or (told is None and layer.block.norm_position == "post"):
        return None
    if told is None and not layer.block.norm_position:
        return "the class does not say whether it normalises after the residual sum; pass post_norm=True if it does"
    return "the block normalises before its branches (pre-norm), so scaling the skip has no meaning"
