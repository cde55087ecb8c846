"""Which conditioning is active in each layer of a model, so that advice does not repeat what was done."""

from __future__ import annotations

from torch import nn

from wellcond.attention.find import AttentionLayers
from wellcond.diagnose.records import AppliedRecord
from wellcond.errors import CheckpointError
from wellcond.spectral.handle import handles_of

Applied = dict[str, tuple[AppliedRecord, ...]]  # by name of the layer


def applied_to(model: nn.Module, layers: AttentionLayers) -> Applied:
    """What `wc.condition_` has applied to each layer.

    Layers are compared by their modules: a handle may be of a part of the model, where they have other names.

    >>> import wellcond as wc
    >>> model = nn.Sequential(nn.TransformerEncoderLayer(8, 2, batch_first=True))
    >>> _ = wc.condition_(model[0], "polar", roles="qk")
    >>> applied_to(model, wc.attention_layers(model))["0.self_attn"]
    (AppliedRecord(method='polar', mode='live', strength={'query': 1.0, 'key': 1.0}),)
    """
    try:
        handles = [handle for handle in handles_of(model) if handle.active]
    except CheckpointError:  # a copy of a folded model: nobody knows any more what was added
        return {}
    inside = {id(layer.module): layer.name for layer in layers}
    found: Applied = {}
    for handle in handles:
        record = AppliedRecord(handle.method, handle.mode, dict(handle.strength))
        for layer in handle.layers:
            name = inside.get(id(layer.module))
            if name is not None:
                found[name] = (*found.get(name, ()), record)
    return found
