"""Calibrated: any scheme, then the sharpness of heads and the gain of branches set on a batch."""

from __future__ import annotations

from collections.abc import Container, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor

from wellcond._core.keyed_random import Draw
from wellcond.attention.layers import AttentionLayers
from wellcond.attention.view import AttentionLayer
from wellcond.conditioning.parameter_writes import ParameterWrites
from wellcond.init.compose import as_scheme
from wellcond.init.registry import register_scheme
from wellcond.init.scheme import Laws, Scheme, Target
from wellcond.scale.calibrate import calibrate_layers_


@register_scheme("calibrated", citation="ours", published="none; β = 0.35 and g = 0.06 are those of docs/study.md")
@dataclass(frozen=True)
class Calibrated(Scheme):
    r"""Any scheme, then W_Q, W_K and W_O scaled to a sharpness β of heads and a gain g of branches on a batch.

    What is scaled by a batch follows no law, so there is nothing for `wc.audit`: `wc.diagnose` shows β and g.

    Args:
        batch: for the model: a tensor, a tuple of positional or a dict of keyword arguments.
        base: the scheme that draws, in any form `init_` takes; `"keep"` scales the weights that are there.
        beta: target of the sharpness, as `wc.calibrate_` takes it.
        branch: target of the gain, as `wc.calibrate_` takes it.

    >>> import torch, wellcond as wc
    >>> x = torch.randn(4, 9, 16)
    >>> model = torch.nn.TransformerEncoderLayer(16, 2, batch_first=True, norm_first=True)
    >>> _ = wc.init_(model, "calibrated", batch=x, base="orthogonal", branch=0.5)
    >>> round(wc.diagnose(model, x, jacobian=False).layers[0].branch, 3)
    0.5
    """

    batch: Any
    base: Any = "keep"
    beta: Any = 0.35  # those of `wc.calibrate_`, as literals that a list of schemes reads without torch
    branch: Any = 0.06

    stand_ins: ClassVar = {"batch": None}
    composable: ClassVar = False
    runs_model: ClassVar = True

    def applies(self, layer: AttentionLayer) -> str | None:
        """Applies where the other scheme does."""
        return as_scheme(self.base).applies(layer)

    def laws(self, layer: AttentionLayer) -> Laws:
        """Those of the other scheme."""
        return as_scheme(self.base).laws(layer)

    def beyond(self, layers: AttentionLayers) -> Iterator[Target]:
        """As the other scheme."""
        return as_scheme(self.base).beyond(layers)

    def zeroed(self) -> frozenset[str]:
        """As the other scheme."""
        return as_scheme(self.base).zeroed()

    def parameters(
        self, layers: AttentionLayers, seed: int, wanted: Container[str] | None = None
    ) -> Iterator[tuple[str, Tensor]]:
        """As the other scheme."""
        return as_scheme(self.base).parameters(layers, seed, wanted)

    def functional(self) -> frozenset[str]:
        """As the other scheme."""
        return as_scheme(self.base).functional()

    def returned(self, layer: AttentionLayer, draw: Draw) -> dict[str, Tensor]:
        """As the other scheme."""
        return as_scheme(self.base).returned(layer, draw)

    def finish_(self, layers: AttentionLayers, writes: ParameterWrites) -> None:
        """Calibrate what was drawn."""
        if layers:
            calibrate_layers_(layers, self.batch, self.beta, self.branch, writes)
