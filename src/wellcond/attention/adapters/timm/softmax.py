"""Replays of timm's softmax attentions: what scales, biases and masks the logits, and how the tokens are arranged."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn

from wellcond.attention.adapters import windows
from wellcond.attention.replay import Call, Replay, Softmax, additive, causal_mask, concatenate_heads, tokens_from

unit = partial(nn.functional.normalize, dim=-1)


def plain_softmax(call: Call) -> Softmax:
    """Scaled dot products and nothing else (DaViT, PVT-v2, Twins, VOLO, class tokens)."""
    return Softmax(call.module.scale)


def vit_softmax(call: Call) -> Softmax:
    """ViT and EVA: QK-norm, then rotary embedding of all but the prefix tokens; a mask or causality if asked for."""
    module, angles = call.module, call.argument("rope")

    def through(norm: nn.Module) -> Callable[[Tensor], Tensor]:
        def prepare(x: Tensor) -> Tensor:
            x = norm(x)
            half = getattr(module, "rotate_half", False)
            return x if angles is None else _rotate(x, angles, module.num_prefix_tokens, half=half)

        return prepare

    return Softmax(module.scale, _mask(call), through(module.q_norm), through(module.k_norm))


def _rotate(x: Tensor, angles: Tensor, prefix: int, *, half: bool) -> Tensor:
    """Rotate pairs of channels by `angles` (sines, then cosines): channel `i` with `i + 1`, or with `i + d/2`."""
    sines, cosines = angles.chunk(2, -1)
    rest = x[:, :, prefix:]
    if half:
        first, second = rest.chunk(2, -1)
        turned = torch.cat([-second, first], -1)
    else:
        turned = torch.stack([-rest[..., 1::2], rest[..., ::2]], -1).flatten(-2)
    return torch.cat([x[:, :, :prefix], (rest * cosines + turned * sines).to(x.dtype)], 2)


def _mask(call: Call) -> Tensor | None:
    x, mask = call.arguments["x"], call.argument("attn_mask")
    if call.argument("is_causal"):
        return causal_mask(x.shape[1], x.shape[1], x)
    return None if mask is None else additive(mask, x)


def _normed_and_gated(call: Call, mixed: Tensor) -> Tensor:
    """ViT's and EVA's optional norm over all heads (`scale_norm`) and sigmoid gate."""
    x = concatenate_heads(call, mixed)
    norm, gate = (getattr(call.module, child, None) for child in ("norm", "gate"))  # neither in older timm
    x = x if norm is None else norm(x)
    return x if gate is None else x * gate(call.arguments["x"]).sigmoid()


def relative_softmax(call: Call) -> Softmax:
    """MaxViT, CoAtNet and ViT with relative positions: a bias of the layer's own or else one shared by all layers."""
    module, bias = call.module, call.argument("shared_rel_pos")
    if module.rel_pos is not None:
        bias = module.rel_pos.get_bias()
    same = nn.Identity()
    return Softmax(module.scale, bias, getattr(module, "q_norm", same), getattr(module, "k_norm", same))


def beit_softmax(call: Call) -> Softmax:
    """BEiT: the sum of a table of the layer's own and a bias shared by all layers, where they exist."""
    module, shared = call.module, call.argument("shared_rel_pos_bias")
    if module.relative_position_bias_table is None:
        return Softmax(module.scale, shared)
    own = _look_up(module.relative_position_bias_table, module.relative_position_index)
    return Softmax(module.scale, own if shared is None else own + shared)


def swin_softmax(call: Call) -> Softmax:
    """Swin: a table, and the mask that keeps what a cyclic shift brought together apart."""
    module = call.module
    table = _look_up(module.relative_position_bias_table, module.relative_position_index)
    return Softmax(module.scale, _shifted(call, table))


def swin_v2_softmax(call: Call) -> Softmax:
    """Swin-V2: cosines, scaled by a learned number per head, and a table that an MLP makes from coordinates."""
    module = call.module
    table = module.cpb_mlp(module.relative_coords_table).reshape(-1, module.num_heads)
    bias = 16 * _look_up(table, module.relative_position_index).sigmoid()
    return Softmax(module.logit_scale.clamp(max=math.log(100)).exp(), _shifted(call, bias), unit, unit)


def _look_up(table: Tensor, index: Tensor) -> Tensor:
    """A bias for each pair of positions, `(1, H, N, N)`, from a table `(distances, H)` and an index `(N, N)`."""
    return table[index].permute(2, 0, 1)[None]


def _shifted(call: Call, bias: Tensor) -> Tensor:
    mask = call.argument("mask")
    return bias if mask is None else bias + windows.per_window(mask, call.arguments["x"].shape[0])


def _class_token_asks(call: Call) -> dict[str, Tensor]:
    x = call.arguments["x"]
    return {"query": x[:, :1], "key": x, "value": x}


def _pixels(call: Call) -> dict[str, Tensor]:
    x = call.reads["query"].flatten(2).mT
    return {"query": x, "key": x, "value": x}


def _grouped_tokens(call: Call) -> dict[str, Tensor]:
    x = call.reads["query"].flatten(3, 4).flatten(0, 2)  # from (B, rows, columns, h, w, D)
    return {"query": x, "key": x, "value": x}


def _ungroup(call: Call, mixed: Tensor) -> Tensor:
    """Twins puts its windows together, and cuts the padding off, before the output projection."""
    _, rows, columns, *size, _ = call.reads["query"].shape
    height, width = call.arguments["size"]
    grid = windows.merge(concatenate_heads(call, mixed), size, rows * size[0], columns * size[1])
    return grid[:, :height, :width].flatten(1, 2)


# EVA, BEiT and Swin-V2 use the weight of their fused projection without calling the module: tokens from the argument.
VIT = Replay(vit_softmax, tokens_from("x"), assemble=_normed_and_gated)
BEIT = Replay(beit_softmax, tokens_from("x"))
SWIN_V2 = Replay(swin_v2_softmax, tokens_from("x"))
CLASS_TOKEN = Replay(plain_softmax, _class_token_asks)
CONVOLUTIONAL = Replay(relative_softmax, _pixels, finish=lambda call, x: x.mT)
GROUPED = Replay(plain_softmax, _grouped_tokens, assemble=_ungroup)
