"""Zero output: every branch starts by writing nothing."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from wellcond._core.argument_types import Positive
from wellcond.attention.layers import AttentionLayers
from wellcond.attention.view import AttentionLayer
from wellcond.init.block_schemes import zero_mlp_outputs
from wellcond.init.fan_laws import Distribution, fan_in_law
from wellcond.init.laws import zeros
from wellcond.init.registry import register_scheme
from wellcond.init.scheme import Laws, Scheme, Target, missing_roles


@register_scheme(
    "zero_output",
    citation="nanochat (github.com/karpathy/nanochat)",
    published="gain 1: Q, K, V of std 1/√D, W_O and the MLP's output zero, no biases",
)
@dataclass(frozen=True)
class ZeroOutput(Scheme):
    r"""W_O and the MLP's output zero, biases too, so that a residual block starts as the identity; Q, K, V by fan-in.

    Only what writes to the stream learns at the first step: the gradients of everything before it contain
    $W_O = 0$ as a factor.

    Args:
        gain: Q, K and V have variance gain² ÷ D.
        distribution: `"normal"` or `"uniform"`.
        mlp: whether to clear the MLPs' outputs too.

    >>> import torch, wellcond as wc
    >>> model = torch.nn.TransformerEncoderLayer(16, 2, 32, dropout=0, batch_first=True, norm_first=True)
    >>> plan = wc.init_(model, "zero_output", seed=0)
    >>> x = torch.randn(1, 5, 16)
    >>> torch.equal(model(x), x)
    True
    """

    gain: Positive = 1.0
    distribution: Distribution = "normal"
    mlp: bool = True

    def applies(self, layer: AttentionLayer) -> str | None:
        """Needs an output projection."""
        return missing_roles(layer, "output")

    def laws(self, layer: AttentionLayer) -> Laws:
        """Q, K and V by what they read, O zero."""
        laws: Laws = {}
        for role, projection in layer.projections():
            read = role != "output"
            laws[(role,)] = (
                fan_in_law(role, projection, self.gain, self.distribution) if read else zeros(projection.shape)
            )
        return laws

    def beyond(self, layers: AttentionLayers) -> Iterator[Target]:
        """The MLPs' outputs, where a layer has a block."""
        return zero_mlp_outputs(layers) if self.mlp else iter(())

    def zeroed(self) -> frozenset[str]:
        """Biases of what is zero."""
        return frozenset(["output", "mlp"] if self.mlp else ["output"])
