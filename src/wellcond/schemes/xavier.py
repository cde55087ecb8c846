"""Xavier (Glorot) baseline with explicit fans."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from wellcond.attention.view import AttentionLayer, Projection
from wellcond.errors import SchemeError
from wellcond.schemes.base import Laws, Scheme, fans, register
from wellcond.schemes.laws import Law, Normal, Uniform

Granularity = Literal["projection", "head", "matrix"]


@register(
    "xavier",
    citation="Glorot & Bengio 2010",
    published="uniform, gain 1; the fans of a fused matrix give 1/√2 of the separate scale in nn.MultiheadAttention",
)
@dataclass(frozen=True)
class Xavier(Scheme):
    """Q, K, V and O with variance 2 gain² ÷ (fan_in + fan_out).

    Args:
        distribution: `"uniform"` or `"normal"`.
        gain: factor on the standard deviation.
        granularity: whose fans: the role's `"projection"` (D × heads·d), each `"head"` (D × d), or the stored
            `"matrix"`, which for a fused weight counts Q, K and V together.

    >>> import torch, wellcond as wc
    >>> plan = wc.plan(torch.nn.MultiheadAttention(8, 2), "xavier", granularity="matrix")
    >>> plan.entries[0].law, plan.entries[3].law                    # the fused matrix is 8 × 24, the output 8 × 8
    ('U(±0.433) (fan 8 + 24)', 'U(±0.6124) (fan 8 + 8)')
    """

    distribution: Literal["uniform", "normal"] = "uniform"
    gain: float = 1.0
    granularity: Granularity = "projection"

    def __post_init__(self) -> None:
        """A gain is positive."""
        if self.gain <= 0:
            raise SchemeError(f"'xavier' takes a positive gain, got {self.gain}")

    def laws(self, layer: AttentionLayer) -> Laws:
        """One law per role, by its fans."""
        return {
            (role,): xavier(role, p, self.gain, self.distribution, self.granularity) for role, p in layer.projections()
        }


def xavier(
    role: str, projection: Projection, gain: float, distribution: str = "uniform", granularity: str = "projection"
) -> Law:
    """Return the Xavier law of one map."""
    fan_in, fan_out = fans(role, projection, granularity)
    std = gain * math.sqrt(2 / (fan_in + fan_out))
    return (Uniform if distribution == "uniform" else Normal)(std, f"fan {fan_in} + {fan_out}")
