"""Everything that is measured of one layer, in one record."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from torch import Tensor

from wellcond.diagnosis.measure.attention import attention_records, is_causal, token_measures
from wellcond.diagnosis.measure.jacobians import JacobianOptions, jacobian_records
from wellcond.diagnosis.measure.probe import Seen
from wellcond.diagnosis.measure.weights import weight_records
from wellcond.diagnosis.records import AppliedRecord, HeadRecord, JacobianRecord, LayerRecord, WeightRecord
from wellcond.errors import NotFiniteError

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
    conditioning: tuple[AppliedRecord, ...] = (),
) -> LayerRecord:
    """Measure one layer.

    Args:
        seen: what a pass showed of it.
        weights: whether to measure the weights.
        attention: whether to measure how it attends, and its tokens.
        jacobian: which Jacobians to measure; none if None.
        trained: W where W + C is used.
        gradients: of a loss.
        brief: whether to leave out the fused weights, and all singular values but the first and the last.
        conditioning: what is applied to the layer.
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
    elif layer.replay is None:
        note = "no replay: weights only"
    else:
        if attention:
            heads, visible = attention_records(layer, call)
            tokens, stable_rank, cosine = token_measures(layer, call, visible)
            note = "" if heads[0].entropy is not None else f"{layer.kind}: no softmax over tokens"
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
        causal=call is not None and layer.replay is not None and is_causal(layer, call),
        conditioning=conditioning,
    )
