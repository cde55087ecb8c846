"""Everything that is measured of one layer, in one record."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from torch import Tensor, nn

from wellcond.attention.layers import AttentionLayers
from wellcond.conditioning.existing_handles import handles_around
from wellcond.diagnosis.measure.attention import attention_records, is_causal, token_measures
from wellcond.diagnosis.measure.jacobians import JacobianOptions, jacobian_records
from wellcond.diagnosis.measure.probe import Seen
from wellcond.diagnosis.measure.weights import product_records, weight_records
from wellcond.diagnosis.records import REFUSED, AppliedRecord, HeadRecord, JacobianRecord, LayerRecord, WeightRecord
from wellcond.errors import NotFiniteError
from wellcond.scale.products import value_output_trace

Heads = Mapping[tuple[str, str], Tensor]  # (heads, D, d) by layer and role


def layer_record(
    seen: Seen,
    *,
    weights: bool = True,
    attention: bool = True,
    jacobian: JacobianOptions | None = None,
    trained: Heads | None = None,
    gradients: Heads | None = None,
    brief: bool = False,
) -> LayerRecord:
    """Measure one layer as a pass has seen it: its weights, how it attends and its tokens, some Jacobians.

    `trained`, `gradients` and `brief` are those of `weight_records`; a brief record has no spectrum of a Jacobian.
    """
    layer, call = seen.layer, seen.call
    of_weights: list[WeightRecord] = (
        weight_records(layer, seen.norm, trained or {}, gradients or {}, brief=brief) if weights else []
    )
    heads: list[HeadRecord] = [HeadRecord(head, None, None, None) for head in range(layer.num_heads)]
    jacobians: list[JacobianRecord] = []
    tokens, stable_rank, cosine, note = 0, None, None, ""
    if call is None:
        note = "not called on this batch" if attention or jacobian else ""
    elif call.replay is None:
        note = f"{REFUSED}, weights only: {call.refusal}"
    else:
        if attention:
            heads, visible = attention_records(layer, call)
            tokens, stable_rank, cosine = token_measures(layer, call, visible)
            note = "" if heads[0].entropy is not None else _without_entropy(layer.kind)
        if jacobian is not None:
            try:
                jacobians = list(jacobian_records(layer, call, jacobian))
            except NotFiniteError:
                note = "not finite: no Jacobian"
            jacobians = [replace(record, spectrum=()) for record in jacobians] if brief else jacobians
    shape = (layer.num_heads, layer.num_kv_heads, layer.head_dim, layer.width)
    return LayerRecord(
        layer.name,
        layer.kind,
        shape,
        tokens,
        stable_rank,
        cosine,
        tuple(of_weights),
        tuple(heads),
        tuple(jacobians),
        note=note,
        causal=call is not None and call.replay is not None and is_causal(call),
        branch=seen.joins.gain if attention and seen.joins is not None else None,
        trace=value_output_trace(layer) if weights else None,
        products=tuple(product_records(layer, brief=brief)) if weights else (),
    )


def _without_entropy(kind: str) -> str:
    if kind == "softmax":
        return "no entropy: rows have one key, or more than tokens, or lie in several products"
    return f"{kind}: no softmax over tokens"


def with_conditioning(model: nn.Module, layers: AttentionLayers, records: Iterable[LayerRecord]) -> list[LayerRecord]:
    """Add to records what `wc.condition_` has applied to their layers, so that advice does not repeat what was done.

    Layers are compared by their modules: a handle may be of a part of the model, where they have other names.

    >>> import wellcond as wc
    >>> model = nn.Sequential(nn.TransformerEncoderLayer(8, 2, batch_first=True))
    >>> _ = wc.condition_(model[0], "polar", roles="qk")
    >>> record = LayerRecord("0.self_attn", "softmax", (2, 2, 4, 8), 0, None, None, (), ())
    >>> with_conditioning(model, wc.attention_layers(model), [record])[0].conditioning
    (AppliedRecord(method='polar', mode='live', strength={'query': 1.0, 'key': 1.0}),)
    """
    inside = {id(layer.module): layer.name for layer in layers}
    applied: dict[str, tuple[AppliedRecord, ...]] = {}
    for handle in handles_around(model):
        for name in (inside.get(id(layer.module)) for layer in handle.layers if handle.active):
            if name is not None:
                one = AppliedRecord(handle.method, handle.mode, dict(handle.strength))
                applied[name] = (*applied.get(name, ()), one)
    return [replace(record, conditioning=applied.get(record.name, ())) for record in records]
