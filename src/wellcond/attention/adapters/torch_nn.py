"""`torch.nn.MultiheadAttention`, alone and inside torch's Transformer layers."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from wellcond.attention.adapters import build
from wellcond.attention.adapters.registry import adapter
from wellcond.attention.layouts import contiguous
from wellcond.attention.paths import join
from wellcond.attention.projection import Projection, Slot
from wellcond.attention.replay import Call, Replay, Softmax, causal_mask
from wellcond.attention.roles import QKV
from wellcond.attention.view import AttentionLayer


@adapter(priority=0)
def describe_torch(module: nn.Module, name: str) -> AttentionLayer | None:
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
    return build.layer(
        name,
        parts,
        build.output(module, name, "out_proj", heads),
        Replay(_mixing, _tokens, finish=_finish, target=_target),
        scale=width**-0.5,
        cross=name.rpartition(".")[2] == "multihead_attn",  # the decoder layer's name for attention to a memory
    )


def _tokens(call: Call) -> dict[str, Tensor]:
    batched = call.arguments["query"].ndim == 3
    return {role: _batch_first(call, call.arguments[role]) if batched else call.arguments[role][None] for role in QKV}


def _batch_first(call: Call, x: Tensor) -> Tensor:
    return x if call.module.batch_first else x.transpose(0, 1)


def _finish(call: Call, x: Tensor) -> Tensor:
    return _batch_first(call, x) if call.arguments["query"].ndim == 3 else x[0]


def _target(call: Call) -> Tensor:
    output, _weights = call.output
    assert isinstance(output, Tensor)
    return output


@dataclass(frozen=True, kw_only=True)
class ExtendedSoftmax(Softmax):
    """Softmax with more keys and values than tokens, `(1, heads, extra, d)`: learned, or zero; none is masked."""

    keys: Tensor
    values: Tensor

    def logits(self, q: Tensor, k: Tensor) -> Tensor:
        """`(B, H, N, T + extra)`."""
        return super().logits(q, torch.cat([k, self.keys.expand(len(k), -1, -1, -1)], 2))

    def __call__(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Mix the values: `(B, H, N, d_v)`."""
        return self.probabilities(q, k) @ torch.cat([v, self.values.expand(len(v), -1, -1, -1)], 2)


def _mixing(call: Call) -> Softmax:
    module, tokens = call.module, _tokens(call)
    scale = module.head_dim**-0.5
    bias = _mask(call, tokens["query"][:, None], tokens["key"][:, None])
    extra = _extra_keys(module, tokens["key"])
    if not extra:
        return Softmax(scale, bias)
    keys, values = (torch.cat(rows, 2) for rows in zip(*extra, strict=True))
    padded = None if bias is None else nn.functional.pad(bias, (0, len(extra)))
    return ExtendedSoftmax(scale, padded, keys=keys, values=values)


def _extra_keys(module: nn.MultiheadAttention, like: Tensor) -> list[tuple[Tensor, Tensor]]:
    """The learned key/value (`add_bias_kv`) and the zero one (`add_zero_attn`), in the order the module adds them."""
    shape = (1, module.num_heads, 1, module.head_dim)
    extra = []
    if module.bias_k is not None and module.bias_v is not None:
        extra.append((module.bias_k.detach().reshape(shape), module.bias_v.detach().reshape(shape)))
    if module.add_zero_attn:
        extra.append((like.new_zeros(shape), like.new_zeros(shape)))
    return extra


def _mask(call: Call, q: Tensor, k: Tensor) -> Tensor | None:
    """Attention mask plus key padding, additive; in this module True means hidden."""
    batch, n, t = q.shape[0], q.shape[2], k.shape[2]
    mask, padding = call.argument("attn_mask"), call.argument("key_padding_mask")
    if mask is None and call.argument("is_causal"):
        mask = causal_mask(n, t, q)
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
