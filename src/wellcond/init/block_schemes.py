"""Base classes of schemes whose law of a matrix depends on its block: its depth, its stack, its skip."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

from wellcond.attention.layers import AttentionLayers
from wellcond.attention.projection import Projection
from wellcond.attention.roles import ROLES
from wellcond.attention.view import AttentionLayer, ResidualBlock
from wellcond.init.laws import Law, zeros
from wellcond.init.scheme import Laws, Scheme, Target

ALL_ROLES = frozenset([*ROLES, "mlp"])


class BlockScheme(Scheme, ABC):
    """Sets Q, K, V, O and the MLP of every block, each matrix by itself."""

    @abstractmethod
    def law(self, block: ResidualBlock, role: str, projection: Projection) -> Law:
        """The law of one matrix; `role` is one of the four, `"mlp_in"` or `"mlp_out"`."""

    def applies(self, layer: AttentionLayer) -> str | None:
        """Needs a block."""
        return None if layer.block is not None else "not inside a residual block with an MLP, so it has no depth"

    def laws(self, layer: AttentionLayer) -> Laws:
        """One law per role."""
        assert layer.block is not None
        return {(role,): self.law(layer.block, role, projection) for role, projection in layer.projections()}

    def beyond(self, layers: AttentionLayers) -> Iterator[Target]:
        """One law per MLP matrix."""
        return mlp_targets(layers, self.law)


@dataclass(frozen=True)
class PostNormScheme(BlockScheme):
    """Fold the skip's factor into the matrices that write to the stream: LN(α x + f) = LN(x + f/α)."""

    residual: Literal["fold", "slot"] = "fold"
    post_norm: bool | None = None

    @abstractmethod
    def skip(self, block: ResidualBlock) -> float:
        """The factor of the skip."""

    def fold(self, block: ResidualBlock) -> float:
        """Return the divisor of the matrices that write to the stream."""
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
        return ALL_ROLES


def mlp_targets(
    layers: AttentionLayers, law: Callable[[ResidualBlock, str, Projection], Law], *roles: str
) -> Iterator[Target]:
    """Yield the MLP matrices of every block (all unless roles are named), each with `law(block, role, matrix)`."""
    for block in layers.blocks:
        for role, matrices in (("mlp_in", block.mlp_in), ("mlp_out", block.mlp_out)):
            for index, matrix in enumerate(matrices if not roles or role in roles else ()):
                yield Target(block.name, f"{role}.{index}", matrix, law(block, role, matrix))


def zero_mlp_outputs(layers: AttentionLayers) -> Iterator[Target]:
    """Yield the matrices with which the MLPs write to the stream, as zeros."""
    return mlp_targets(layers, lambda block, role, matrix: zeros(matrix.shape), "mlp_out")


def writes_to_stream(role: str) -> bool:
    """Whether a matrix writes to the residual stream."""
    return role in ("output", "mlp_out")
