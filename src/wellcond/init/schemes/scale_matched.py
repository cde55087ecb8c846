"""Scale-matched Gaussians: the control that separates spectrum from scale."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from wellcond.attention.layers import AttentionLayers
from wellcond.attention.view import AttentionLayer
from wellcond.errors import SchemeError
from wellcond.init.compose import as_scheme
from wellcond.init.laws import Normal
from wellcond.init.registry import register_scheme
from wellcond.init.scheme import Laws, Scheme, Target


@register_scheme("scale_matched", citation="ours: a control for every comparison", published="none")
@dataclass(frozen=True)
class ScaleMatched(Scheme):
    """Gaussian with, for each role, the entry variance of another scheme, so that only the spectrum differs.

    Args:
        of: the other scheme, in any form `init_` takes.

    >>> import torch, wellcond as wc
    >>> plan = wc.plan(torch.nn.MultiheadAttention(64, 2), "scale_matched", of="conditioned")
    >>> plan.entries[0].law                                            # semi-orthogonal 64 × 32: variance 1/64
    'N(0, 0.125²) (scale of semi-orthogonal)'
    """

    of: Any = "conditioned"

    def __post_init__(self) -> None:
        """Refuse a bad scheme at once."""
        if as_scheme(self.of).functional():
            raise SchemeError("'scale_matched' needs a scheme with a known scale; a function has none")

    def applies(self, layer: AttentionLayer) -> str | None:
        """Applies where the other scheme does."""
        return as_scheme(self.of).applies(layer)

    def laws(self, layer: AttentionLayer) -> Laws:
        """A Gaussian of each law's scale."""
        laws: Laws = {}
        for roles, law in as_scheme(self.of).laws(layer).items():
            shapes = tuple(projection.shape for _, projection in layer.projections(*roles))
            for index, role in enumerate(roles):
                laws[(role,)] = Normal(law.rms(index, shapes), f"scale of {law}")
        return laws

    def beyond(self, layers: AttentionLayers) -> Iterator[Target]:
        """Gaussians of the same scale for what the other scheme sets elsewhere."""
        for target in as_scheme(self.of).beyond(layers):
            scale = target.law.rms(0, (target.projection.shape,))
            yield replace(target, law=Normal(scale, f"scale of {target.law}"))

    def zeroed(self) -> frozenset[str]:
        """The biases that the other scheme zeroes."""
        return as_scheme(self.of).zeroed()

    def check_layers(self, layers: AttentionLayers) -> None:
        """Refuse a scheme that sets nothing by a law: there is no scale to match."""
        if layers and not any(self.laws(layer) for layer in layers):
            raise SchemeError(f"'scale_matched' needs a scheme that draws weights; '{as_scheme(self.of)}' draws none")
