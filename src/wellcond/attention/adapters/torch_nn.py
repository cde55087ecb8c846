"""`torch.nn.MultiheadAttention`, alone and inside torch's Transformer layers."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from wellcond.attention.adapters import build
from wellcond.attention.layouts import contiguous
from wellcond.attention.paths import join
from wellcond.attention.replay import Call, Mixing, Replay, Softmax, causal
from wellcond.attention.view import AttentionLayer, Projection, Slot


def describe(module: nn.Module, name: str) -> AttentionLayer | None:
    """Packed (`in_proj_weight`) and separate (`q_proj_weight`, …, when kdim or vdim differ) storage."""
    if not isinstance(module, nn.MultiheadAttention):
        return None
    heads, width = module.num_heads, module.head_dim
    packed = module.in_proj_weight is not None
    bias = join(name, "in_proj_bias") if module.in_proj_bias is not None else None
    parts = []
    for index, role in enumerate("qkv"):
        block = contiguous(heads, width, first=index * heads * width)
        path = "in_proj_weight" if packed else f"{role}_proj_weight"
        layout = block if packed else contiguous(heads, width)
        parts.append(Projection(Slot(join(name, path), layout), bias, block if bias else None))
    query, key, value = parts
    return AttentionLayer(
        name,
        "softmax",
        query,
        key,
        value,
        build.output(module, name, "out_proj", heads),
        scale=width**-0.5,
        cross=name.rpartition(".")[2] == "multihead_attn",  # the decoder layer's name for attention to a memory
        replay=Replay(_mixing, _tokens, finish=_finish, target=_target),
    )


def _tokens(call: Call) -> dict[str, Tensor]:
    batched = call.arguments["query"].ndim == 3
    return {
        role: _batch_first(call, call.arguments[role]) if batched else call.arguments[role][None]
        for role in ("query", "key", "value")
    }


def _batch_first(call: Call, x: Tensor) -> Tensor:
    return x if call.module.batch_first else x.transpose(0, 1)


def _finish(call: Call, x: Tensor) -> Tensor:
    return _batch_first(call, x) if call.arguments["query"].ndim == 3 else x[0]


def _target(call: Call) -> Tensor:
    output, _weights = call.output
    assert isinstance(output, Tensor)
    return output


def _mixing(call: Call) -> Mixing:
    module = call.module

    def mix(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        bias = _mask(call, q, k)
        for extra_k, extra_v in _extra_keys(module, k, v):
            k, v = torch.cat([k, extra_k], 2), torch.cat([v, extra_v], 2)
            if bias is not None:
                bias = nn.functional.pad(bias, (0, 1))
        return Softmax(module.head_dim**-0.5, bias)(q, k, v)

    return mix if module.bias_k is not None or module.add_zero_attn else _plain(call)


def _plain(call: Call) -> Softmax:
    tokens = _tokens(call)
    q, k = tokens["query"], tokens["key"]
    return Softmax(call.module.head_dim**-0.5, _mask(call, q[:, None], k[:, None]))


def _extra_keys(module: nn.MultiheadAttention, k: Tensor, v: Tensor) -> list[tuple[Tensor, Tensor]]:
    """The learned key/value (`add_bias_kv`) and the zero one (`add_zero_attn`), in the order the module adds them."""
    batch, heads, _, width = k.shape
    extra = []
    if module.bias_k is not None and module.bias_v is not None:
        k_row, v_row = (b.reshape(1, heads, 1, width).expand(batch, -1, -1, -1) for b in (module.bias_k, module.bias_v))
        extra.append((k_row, v_row))
    if module.add_zero_attn:
        extra.append((torch.zeros_like(k[:, :, :1]), torch.zeros_like(v[:, :, :1])))
    return extra


def _mask(call: Call, q: Tensor, k: Tensor) -> Tensor | None:
    """Attention mask plus key padding, additive; in this module True means hidden."""
    batch, n, t = q.shape[0], q.shape[2], k.shape[2]
    mask, padding = call.argument("attn_mask"), call.argument("key_padding_mask")
    if mask is None and call.argument("is_causal"):
        mask = causal(n, t, q)
    parts = []
    if mask is not None:
        parts.append(_hidden(mask, q).reshape(batch if mask.ndim == 3 else 1, -1, n, t))
    if padding is not None:
        parts.append(_hidden(padding, q).reshape(-1, 1, 1, t))
    return sum(parts[1:], parts[0]) if parts else None


def _hidden(mask: Tensor, like: Tensor) -> Tensor:
    if mask.dtype != torch.bool:
        return mask
    return torch.zeros(mask.shape, dtype=like.dtype, device=like.device).masked_fill(mask, float("-inf"))
