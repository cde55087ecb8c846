"""A view of the laboratory's Nyström attention; its softmax attention needs no adapter."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from wellcond.attention.adapters import build
from wellcond.attention.find import register_attention
from wellcond.attention.replay import Call, Mixing, Replay
from wellcond.attention.view import AttentionLayer
from wellcond.lab.models.nystromformer import NystromAttention


def describe_nystrom(module: Any, name: str) -> AttentionLayer:
    """Return the view of a `NystromAttention`."""
    heads = module.num_heads
    query, key, value = (build.separate(module, name, child, heads) for child in ("query", "key", "value"))
    return AttentionLayer(
        name,
        "nystrom",
        query,
        key,
        value,
        build.output(module, name, "out", heads),
        scale=query.width**-0.5,
        replay=Replay(_mixing),
    )


def _mixing(call: Call) -> Mixing:
    """The module's own function of Q, K and V, with the mask it was given."""
    mask = call.argument("attention_mask")

    def mix(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        mixed: Tensor = call.module.mix(q, k, v, mask)
        return mixed

    return mix


register_attention(NystromAttention, describe_nystrom)
