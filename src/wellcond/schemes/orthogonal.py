"""Orthogonal initialisation of every projection."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from wellcond.attention.view import AttentionLayer
from wellcond.errors import SchemeError
from wellcond.schemes.base import Laws, Scheme, register
from wellcond.schemes.laws import SemiOrthogonal


@register("orthogonal", citation="Saxe, McClelland & Ganguli 2014", published="gain 1")
@dataclass(frozen=True)
class Orthogonal(Scheme):
    """Q, K, V and O semi-orthogonal, each head by itself or each projection as one matrix.

    Args:
        gain: all singular values.
        granularity: `"head"`: heads are independent; `"projection"`: the matrix D × heads·d is orthogonal, so heads are
            mutually orthogonal too. A fused Q, K, V weight is never orthogonalised as one matrix.
    """

    gain: float = 1.0
    granularity: Literal["head", "projection"] = "head"

    def __post_init__(self) -> None:
        """A gain is positive."""
        if self.gain <= 0:
            raise SchemeError(f"'orthogonal' takes a positive gain, got {self.gain}")

    def laws(self, layer: AttentionLayer) -> Laws:
        """The same law for every role."""
        law = SemiOrthogonal(self.gain, whole=self.granularity == "projection")
        return {(role,): law for role, _ in layer.projections()}
