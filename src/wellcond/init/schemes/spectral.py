"""The spectral condition for feature learning (Yang, Simon & Bernstein 2023)."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from wellcond._core.argument_types import Positive
from wellcond.attention.layers import AttentionLayers
from wellcond.attention.projection import Projection
from wellcond.attention.view import AttentionLayer
from wellcond.init.block_schemes import mlp_targets
from wellcond.init.fan_laws import fans
from wellcond.init.laws import Law, SemiOrthogonal
from wellcond.init.registry import register_scheme
from wellcond.init.scheme import Laws, Scheme, Target
from wellcond.init.spectral_law import GaussianOfNorm


@register_scheme(
    "spectral",
    citation="Yang, Simon & Bernstein 2023 (A Spectral Condition for Feature Learning), arXiv 2310.17813",
    published="‖W‖ of the order of √(fan_out/fan_in) for every matrix; gain 1 and the split into heads are ours",
)
@dataclass(frozen=True)
class Spectral(Scheme):
    r"""Q, K, V and O with spectral norm gain · √(d_out ÷ d_in), exactly.

    A map of this norm takes inputs whose entries are of size 1 to outputs of that size, also where training has aligned
    the inputs with its leading directions. A head of Q, K or V reads the model's width and is used by itself:
    $d_\mathrm{out}/d_\mathrm{in} = d/D$. The heads of the output are summed, so each is part of one map that reads
    all of them: $D/(H d)$ for every head, not $D/d$, with which the sum would be up to H times too large.

    Args:
        gain: factor on every norm.
        draw: `"gaussian"` scaled to the norm, or `"orthogonal"`: semi-orthogonal, all singular values equal.
        granularity: the norm of each `"head"`, or of the whole `"projection"`, $Hd/D$ for Q, K, V (all their heads).
        mlp: whether to set the MLPs' matrices too.

    >>> import torch, wellcond as wc
    >>> model = torch.nn.MultiheadAttention(64, 4)
    >>> plan = wc.init_(model, "spectral", seed=0)
    >>> layer = wc.attention_layers(model)[0]
    >>> [round(float(torch.linalg.matrix_norm(p.read()[0], 2)), 4) for _, p in layer.projections()]
    [0.5, 0.5, 0.5, 1.0]
    """

    gain: Positive = 1.0
    draw: Literal["gaussian", "orthogonal"] = "gaussian"
    granularity: Literal["head", "projection"] = "head"
    mlp: bool = False

    def laws(self, layer: AttentionLayer) -> Laws:
        """One law per role, by what it reads and writes."""
        return {(role,): self._law(role, projection) for role, projection in layer.projections()}

    def beyond(self, layers: AttentionLayers) -> Iterator[Target]:
        """The MLP's matrices, if asked."""
        return mlp_targets(layers, lambda block, role, matrix: self._law(role, matrix)) if self.mlp else iter(())

    def _law(self, role: str, projection: Projection) -> Law:
        whole = self.granularity == "projection"
        fan_in, fan_out = fans(role, projection, "projection" if whole or role == "output" else "head")
        norm = self.gain * math.sqrt(fan_out / fan_in)
        return SemiOrthogonal(norm, whole) if self.draw == "orthogonal" else GaussianOfNorm(norm, whole)
