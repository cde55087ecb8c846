"""Orthogonal initialisation of every projection."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from wellcond._core.argument_types import Positive
from wellcond.attention.view import AttentionLayer
from wellcond.init.laws import SemiOrthogonal
from wellcond.init.registry import register_scheme
from wellcond.init.scheme import Laws, Scheme


@register_scheme("orthogonal", citation="Saxe, McClelland & Ganguli 2014", published="gain 1")
@dataclass(frozen=True)
class Orthogonal(Scheme):
    """Q, K, V and O semi-orthogonal, each head by itself or each projection as one matrix.

    Args:
        gain: all singular values.
        granularity: `"head"`: heads are independent; `"projection"`: the matrix D × heads·d is orthogonal, so heads are
            mutually orthogonal too. A fused Q, K, V weight is never orthogonalised as one matrix.
    """

    gain: Positive = 1.0
    granularity: Literal["head", "projection"] = "head"

    def laws(self, layer: AttentionLayer) -> Laws:
        """One law for all roles."""
        law = SemiOrthogonal(self.gain, whole=self.granularity == "projection")
        return {(role,): law for role, _ in layer.projections()}
