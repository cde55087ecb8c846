"""Layers whose scale is to be measured or set: views of known classes, others as a pass shows them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from torch import nn

from wellcond.attention.find import chosen_layers, from_structure, require_layers
from wellcond.attention.layers import AttentionLayers, LayerFilter
from wellcond.attention.observe import observe
from wellcond.attention.paths import unwrap
from wellcond.attention.view import AttentionLayer


def views_on_batch(model: nn.Module, batch: Any, layers: LayerFilter) -> AttentionLayers:
    """Return the layers that a filter picks; a pass looks for them where a class is not known.

    A layer that its module's own recorded steps rebuild, and not its replay, comes without a replay.

    >>> import torch
    >>> model = nn.TransformerEncoderLayer(8, 2, batch_first=True)
    >>> views_on_batch(model, torch.randn(1, 5, 8), None)[0].standing
    'described'
    """
    root = unwrap(model)
    given = isinstance(layers, Sequence) and any(isinstance(one, AttentionLayer) for one in layers)
    views = chosen_layers(model, layers) if given else from_structure(model)
    if not len(views) or views.unclaimed or not all(map(_known, views)):
        observed = observe(root, views, batch, complete=not given)
        seen = zip(observed.layers, observed.calls, strict=True)
        shown = [replace(x, replay=None) if call and call.replay is not x.replay else x for x, call in seen]
        views = AttentionLayers(shown, observed.layers.unclaimed, filtered=observed.layers.filtered)
    return views if given else require_layers(root, views).select(layers)


def _known(layer: AttentionLayer) -> bool:
    """Whether a layer's logits follow from its class."""
    without = layer.query is None or layer.key is None
    return without or (layer.replay is not None and not layer.replay.guess)
