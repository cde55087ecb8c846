"""Gaussian baseline."""

from __future__ import annotations

from dataclasses import dataclass

from wellcond.attention.view import AttentionLayer
from wellcond.errors import SchemeError
from wellcond.schemes.base import Laws, Scheme, register
from wellcond.schemes.laws import Normal


@register("normal", citation="the default of BERT and GPT-2", published="std 0.02")
@dataclass(frozen=True)
class NormalScheme(Scheme):
    """Q, K, V and O with independent N(0, std²) entries.

    Args:
        std: standard deviation.

    >>> import torch, wellcond as wc
    >>> model = torch.nn.MultiheadAttention(64, 2)
    >>> wc.audit(model, "normal").passed
    False
    >>> _ = wc.init_(model, "normal", seed=0)
    >>> wc.audit(model, "normal").passed
    True
    """

    std: float = 0.02

    def __post_init__(self) -> None:
        """A spread is positive."""
        if self.std <= 0:
            raise SchemeError(f"'normal' takes a positive std, got {self.std}")

    def laws(self, layer: AttentionLayer) -> Laws:
        """The same law for every role."""
        return {(role,): Normal(self.std) for role, _ in layer.projections()}
