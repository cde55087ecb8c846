"""timm: where each attention class keeps its weights, and which replay is its own.

Classes are recognised by name, never imported; one that is not in `CLASSES` is left to the structural adapter. Other
names for what is here: DeiT and DeiT-3 are ViT's class, XCiT attends from its class token with CaiT's, Twins-PCPVT uses
Twins-SVT's global attention throughout, CoAtNet is MaxViT's convolutional class.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from torch import nn

from wellcond.attention.adapters import build, generic
from wellcond.attention.adapters.registry import adapter
from wellcond.attention.adapters.timm import other_mixing as mixing
from wellcond.attention.adapters.timm import softmax
from wellcond.attention.blocks import in_out
from wellcond.attention.layouts import contiguous
from wellcond.attention.paths import join, resolve
from wellcond.attention.projection import Projection
from wellcond.attention.replay import Replay
from wellcond.attention.view import AttentionLayer


@adapter(priority=20)
def describe_timm(module: nn.Module, name: str) -> AttentionLayer | str | None:
    """Claim an instance of one of the `CLASSES`; leave the `STRUCTURAL` ones to the generic adapter.

    Any other class of timm's is refused: several store heads in an order of their own under the usual names.
    """
    classes = build.origin(module, "timm")
    known = next((CLASSES[cls] for cls in CLASSES if cls in classes), None)
    if known is not None:
        return known(module, name)
    own = f"{type(module).__module__}.{type(module).__qualname__}"
    if own not in classes or own in STRUCTURAL or generic.find_storage(module) is None:
        return None
    return f"{own} is not described yet, and where its heads lie cannot be told from names; use wc.register_attention"


def _layer(module: Any, name: str, replay: Replay, kind: str = "softmax", roles: str = "qkv") -> AttentionLayer:
    """Nearly every class: `num_heads`, projections by one of three namings, `proj` last, `scale` if it is one number.

    `roles` says which of the source code's q, k and v play query, key and value.
    """
    heads = module.num_heads if hasattr(module, "num_heads") else module.groups
    parts = dict(zip("qkv", _projections(module, name, heads), strict=True))
    output = build.output(module, name, "proj", heads)
    ordered = (parts[letter] for letter in roles)
    return build.layer(name, ordered, output, replay, kind=kind, scale=getattr(module, "scale", None))


def _projections(module: Any, name: str, heads: int) -> list[Projection]:
    """Q, K and V in `qkv`, in `q` and `kv`, or in three children; an optional one that is off is None in timm."""
    children = {child for child, value in module._modules.items() if value is not None}
    if "qkv" in children:
        width = in_out(resolve(module, "qkv"))[1] // (3 * heads)
        order = "head" if getattr(module, "head_first", False) else "block"
        parts = build.fused(module, name, "qkv", heads, width, order=order)
        return _with_own_biases(module, name, parts)
    if "kv" in children:
        query = build.separate(module, name, "q", heads)
        return [query, *build.fused(module, name, "kv", heads, query.width, parts=2)]
    kv_heads = getattr(module, "num_kv_heads", heads)
    suffix = "_proj" if "q_proj" in children else ""
    counts = {"q": heads, "k": kv_heads, "v": kv_heads}
    return [build.separate(module, name, letter + suffix, n) for letter, n in counts.items()]


def _with_own_biases(module: Any, name: str, parts: list[Projection]) -> list[Projection]:
    """BEiT, EVA and Swin-V2 keep `q_bias` and `v_bias` beside the fused weight; their `k_bias` is a constant zero."""
    if getattr(module, "q_bias", None) is None:
        return parts
    query, key, value = parts
    layout = contiguous(query.heads, query.width)

    def own(projection: Projection, bias: str) -> Projection:
        return replace(projection, bias=join(name, bias), bias_layout=layout)

    return [own(query, "q_bias"), key, own(value, "v_bias")]


def _outlook(module: Any, name: str) -> AttentionLayer:
    """VOLO's outlooker has values only: the weights of the average are a linear map of the token itself."""
    value = build.separate(module, name, "v", module.num_heads)
    output = build.output(module, name, "proj", module.num_heads)
    return AttentionLayer(name, "outlook", None, None, value, output, scale=module.scale, replay=Replay(mixing.outlook))


def _parallel(module: Any, name: str) -> AttentionLayer | None:
    """ViT-22B's block is its own attention module: `in_proj` holds the MLP's rows, then Q, K and V.

    With `fuse_out_proj` the output projection is one matrix with the MLP's, and the block stays unclaimed.
    """
    if module.attn_out_proj is None:
        return None
    heads, width, hidden = module.num_heads, module.head_dim, module.in_split[0]
    firsts = (hidden + index * heads * width for index in range(3))
    parts = (build.part(module, name, "in_proj", contiguous(heads, width, first)) for first in firsts)
    output = build.output(module, name, "attn_out_proj", heads)
    return build.layer(name, parts, output, Replay(softmax.vit_softmax), scale=module.scale)


_VIT = partial(_layer, replay=softmax.VIT)
_PLAIN = partial(_layer, replay=Replay(softmax.plain_softmax))

# Softmax attention by the usual names and in the usual order: the structural adapter verifies on them.
STRUCTURAL = {
    "timm.layers.attention_pool.AttentionPoolLatent",
    "timm.layers.attention_pool2d.AttentionPool2d",
    "timm.models.convit.MHSA",
    "timm.models.crossvit.CrossAttention",
    "timm.models.fastvit.Attention",
    "timm.models.hieradet_sam2.MultiScaleAttention",
    "timm.models.metaformer.Attention",
    "timm.models.nextvit.EfficientAttention",
    "timm.models.tnt.Attention",
    "timm.models.visformer.Attention",
}

CLASSES: dict[str, Callable[[nn.Module, str], AttentionLayer | None]] = {
    "timm.layers.attention.Attention": _VIT,
    "timm.layers.attention.AttentionRope": _VIT,
    "timm.models.vision_transformer.Attention": _VIT,  # where older versions keep it
    "timm.models.vision_transformer.ParallelScalingBlock": _parallel,
    "timm.models.vision_transformer_relpos.RelPosAttention": partial(_layer, replay=Replay(softmax.relative_softmax)),
    "timm.models.eva.EvaAttention": _VIT,
    "timm.models.beit.Attention": partial(_layer, replay=softmax.BEIT),
    "timm.models.swin_transformer.WindowAttention": partial(_layer, replay=Replay(softmax.swin_softmax)),
    "timm.models.swin_transformer_v2.WindowAttention": partial(_layer, replay=softmax.SWIN_V2),
    "timm.models.cait.ClassAttn": partial(_layer, replay=softmax.CLASS_TOKEN),
    "timm.models.cait.TalkingHeadAttn": partial(_layer, replay=Replay(mixing.talking_heads), kind="talking-heads"),
    "timm.models.xcit.XCA": partial(_layer, replay=Replay(mixing.xca), kind="xca"),
    "timm.models.davit.WindowAttention": _PLAIN,
    # DaViT-1 averages what it calls q, with weights softmax(kᵀ v): k indexes the rows of the weights, v the columns.
    "timm.models.davit.ChannelAttention": partial(_layer, replay=Replay(mixing.channel), kind="channel", roles="kvq"),
    "timm.models.davit.ChannelAttentionV2": partial(_layer, replay=Replay(mixing.channel), kind="channel"),
    "timm.models.volo.OutlookAttention": _outlook,
    "timm.models.volo.Attention": _PLAIN,
    "timm.models.volo.ClassAttention": partial(_layer, replay=softmax.CLASS_TOKEN),
    "timm.models.maxxvit.AttentionCl": partial(_layer, replay=Replay(softmax.relative_softmax)),
    "timm.models.maxxvit.Attention2d": partial(_layer, replay=softmax.CONVOLUTIONAL),
    "timm.models.pvt_v2.Attention": _PLAIN,
    "timm.models.twins.LocallyGroupedAttn": partial(_layer, replay=softmax.GROUPED),
    "timm.models.twins.GlobalSubSampleAttn": _PLAIN,
}
