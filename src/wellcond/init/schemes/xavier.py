"""Xavier (Glorot) baseline with explicit fans."""

from __future__ import annotations

from dataclasses import dataclass

from wellcond._core.argument_types import Positive
from wellcond.attention.view import AttentionLayer
from wellcond.init.fan_laws import Distribution, Granularity, xavier_law
from wellcond.init.registry import register_scheme
from wellcond.init.scheme import Laws, Scheme


@register_scheme(
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

    distribution: Distribution = "uniform"
    gain: Positive = 1.0
    granularity: Granularity = "projection"

    def laws(self, layer: AttentionLayer) -> Laws:
        """One law per role, by its fans."""
        options = self.gain, self.distribution, self.granularity
        return {(role,): xavier_law(role, projection, *options) for role, projection in layer.projections()}
