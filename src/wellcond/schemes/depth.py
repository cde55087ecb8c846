"""Schemes whose law of a matrix depends on the block it is in: its depth, its stack."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator

from wellcond.attention.find import AttentionLayers
from wellcond.attention.view import ROLES, AttentionLayer, Block, Projection
from wellcond.schemes.base import Laws, Scheme, Target
from wellcond.schemes.laws import Law

ALL = frozenset([*ROLES, "mlp"])


class BlockScheme(Scheme, ABC):
    """Sets Q, K, V, O and the MLP of every block, each matrix by itself."""

    @abstractmethod
    def law(self, block: Block, role: str, projection: Projection) -> Law:
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


def mlp_targets(layers: AttentionLayers, law: Callable[[Block, str, Projection], Law]) -> Iterator[Target]:
    """Yield the MLP matrices of every block, each with `law(block, "mlp_in" or "mlp_out", matrix)`."""
    for block in layers.blocks:
        for role, matrices in (("mlp_in", block.mlp_in), ("mlp_out", block.mlp_out)):
            for index, matrix in enumerate(matrices):
                yield Target(block.name, f"{role}.{index}", matrix, law(block, role, matrix))


def writes_to_stream(role: str) -> bool:
    """Whether a matrix writes to the residual stream."""
    return role in ("output", "mlp_out")
