"""Fan-in baseline with a gain, as tuned training code of 2026 sets it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from wellcond._core.argument_types import Positive
from wellcond.attention.layers import AttentionLayers
from wellcond.attention.view import AttentionLayer
from wellcond.init.block_schemes import zero_mlp_outputs
from wellcond.init.fan_laws import Distribution, Granularity, fan_in_law
from wellcond.init.registry import register_scheme
from wellcond.init.scheme import Laws, Scheme, Target


@register_scheme(
    "fan_in",
    citation="modded-nanogpt (github.com/KellerJordan/modded-nanogpt)",
    published="uniform, gain 0.5 for Q, K, V, O and the MLP's first matrix, the MLP's output zero, no biases",
)
@dataclass(frozen=True)
class FanIn(Scheme):
    """Q, K, V and O with variance gain² ÷ fan_in, so that a map of unit inputs has outputs of size gain.

    `kaiming` has the same law with the gain √(2 ÷ (1 + a²)) of a rectifier, which attention does not have.

    Args:
        gain: standard deviation of what is written, where independent entries of variance 1 are read.
        distribution: `"normal"` or `"uniform"`.
        granularity: whose fan: `"projection"`, `"head"` or the stored `"matrix"`; only the output's depends on it.
        mlp_output: `"zero"` clears the matrices and biases with which the MLPs write to the stream.

    >>> import torch, wellcond as wc
    >>> model = torch.nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
    >>> speedrun = {"gain": 0.5, "distribution": "uniform", "mlp_output": "zero"}
    >>> [entry.law for entry in wc.plan(model, "fan_in", **speedrun).entries[2:]]
    ['U(±0.2165) (fan in 16)', 'U(±0.2165) (fan in 16)', 'zero']
    """

    gain: Positive = 1.0
    distribution: Distribution = "normal"
    granularity: Granularity = "projection"
    mlp_output: Literal["keep", "zero"] = "keep"

    def laws(self, layer: AttentionLayer) -> Laws:
        """One law per role, by its fan-in."""
        options = self.gain, self.distribution, self.granularity
        return {(role,): fan_in_law(role, projection, *options) for role, projection in layer.projections()}

    def beyond(self, layers: AttentionLayers) -> Iterator[Target]:
        """The MLPs' outputs, if asked."""
        return zero_mlp_outputs(layers) if self.mlp_output == "zero" else iter(())

    def zeroed(self) -> frozenset[str]:
        """Biases of the MLPs' outputs, if asked."""
        return frozenset(["mlp"] if self.mlp_output == "zero" else [])
