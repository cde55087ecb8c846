"""Scale-matched Gaussians: the control that separates spectrum from scale."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from wellcond.attention.layers import AttentionLayers
from wellcond.attention.view import AttentionLayer
from wellcond.init.control_schemes import ControlScheme
from wellcond.init.laws import Normal
from wellcond.init.registry import register_scheme
from wellcond.init.scheme import Laws, Target


@register_scheme("scale_matched", citation="ours: a control for every comparison", published="none")
@dataclass(frozen=True)
class ScaleMatched(ControlScheme):
    """Gaussian with, for each role, the entry variance of another scheme, so that only the spectrum differs.

    Every role that the other scheme sets is matched, W_O included, and what it sets elsewhere.

    Args:
        of: the other scheme, in any form `init_` takes.

    >>> import torch, wellcond as wc
    >>> plan = wc.plan(torch.nn.MultiheadAttention(64, 2), "scale_matched", of="conditioned")
    >>> plan.entries[0].law                                            # semi-orthogonal 64 × 32: variance 1/64
    'N(0, 0.125²) (scale of semi-orthogonal)'
    """

    def laws(self, layer: AttentionLayer) -> Laws:
        """A Gaussian of each law's scale."""
        laws: Laws = {}
        for roles, law in self.controlled.laws(layer).items():
            shapes = tuple(projection.shape for _, projection in layer.projections(*roles))
            for index, role in enumerate(roles):
                laws[(role,)] = Normal(law.rms(index, shapes), f"scale of {law}")
        return laws

    def beyond(self, layers: AttentionLayers) -> Iterator[Target]:
        """Gaussians of the same scale for what the other scheme sets elsewhere."""
        for target in super().beyond(layers):
            scale = target.law.rms(0, (target.projection.shape,))
            yield replace(target, law=Normal(scale, f"scale of {target.law}"))
