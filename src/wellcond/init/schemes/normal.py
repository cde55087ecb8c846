"""Gaussian baseline."""

from __future__ import annotations

from dataclasses import dataclass

from wellcond._core.argument_types import Positive
from wellcond.attention.view import AttentionLayer
from wellcond.init.laws import Normal
from wellcond.init.registry import register_scheme
from wellcond.init.scheme import Laws, Scheme


@register_scheme("normal", citation="the default of BERT and GPT-2", published="std 0.02")
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

    std: Positive = 0.02

    def laws(self, layer: AttentionLayer) -> Laws:
        """One law for all roles."""
        return {(role,): Normal(self.std) for role, _ in layer.projections()}
