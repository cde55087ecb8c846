"""Which conditioning is active in each layer of a model, so that advice does not repeat what was done."""

from __future__ import annotations

from torch import nn

from wellcond.attention.layers import AttentionLayers
from wellcond.conditioning.existing_handles import handles_around
from wellcond.diagnosis.records import AppliedRecord

Applied = dict[str, tuple[AppliedRecord, ...]]  # by name of the layer


def applied_to(model: nn.Module, layers: AttentionLayers) -> Applied:
    """Find what `wc.condition_` has applied to each layer.

    Layers are compared by their modules: a handle may be of a part of the model, where they have other names.

    >>> import wellcond as wc
    >>> model = nn.Sequential(nn.TransformerEncoderLayer(8, 2, batch_first=True))
    >>> _ = wc.condition_(model[0], "polar", roles="qk")
    >>> applied_to(model, wc.attention_layers(model))["0.self_attn"]
    (AppliedRecord(method='polar', mode='live', strength={'query': 1.0, 'key': 1.0}),)
    """
    handles = [handle for handle in handles_around(model) if handle.active]
    inside = {id(layer.module): layer.name for layer in layers}
    found: Applied = {}
    for handle in handles:
        record = AppliedRecord(handle.method, handle.mode, dict(handle.strength))
        for layer in handle.layers:
            name = inside.get(id(layer.module))
            if name is not None:
                found[name] = (*found.get(name, ()), record)
    return found
