"""Replays of transformers classes that score and mix in their own way: ALiBi, GPT-Neo, Nyströmformer."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from wellcond.attention.adapters.transformers.shared_replay import core_of, kernel_of, standard
from wellcond.attention.replay import Call, Mixing, Softmax


def alibi_mixing(call: Call) -> Softmax:
    """BLOOM and Falcon: a slope per head times the key's position, instead of rotation."""
    softmax, core, slopes = standard(call), call.module, call.argument("alibi")
    if slopes is None:
        return softmax
    if kernel_of(core) == "sdpa":  # Falcon adds them to the mask
        return Softmax(softmax.scale, softmax.bias)
    bias = slopes.reshape(-1, call.layer.num_heads, 1, slopes.shape[-1]) * core.beta
    return Softmax(softmax.scale, bias if softmax.bias is None else bias + softmax.bias)


def gpt_neo_mixing(call: Call) -> Softmax:
    """GPT-Neo: no scale, and a causal (or local) mask in a buffer besides the padding."""
    mask = call.argument("attention_mask")
    queries = call.reads["query"]
    n = queries.shape[1]
    hidden = queries.new_tensor(torch.finfo(torch.float32).min)  # not −inf: a padded query may see nothing else
    bias = torch.where(call.module.bias[:, :, :n, :n], queries.new_zeros(()), hidden)
    return Softmax(1.0, bias if mask is None else bias + mask)


def nystrom_mixing(call: Call) -> Mixing:
    """Nyströmformer: softmax attention through landmarks and an iterated pseudo-inverse, plus a convolution of V."""
    core: Any = core_of(call.module)
    mask = call.argument("attention_mask")

    def mix(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        q, k = q * q.shape[-1] ** -0.25, k * k.shape[-1] ** -0.25
        bias = 0 if mask is None else mask
        if core.num_landmarks == core.seq_len:
            mixed = (q @ k.mT + bias).softmax(-1) @ v
        else:
            q_marks, k_marks = (_means(x, core.num_landmarks) for x in (q, k))
            left, middle = (q @ k_marks.mT).softmax(-1), (q_marks @ k_marks.mT).softmax(-1)
            mixed = left @ core.iterative_inv(middle) @ ((q_marks @ k.mT + bias).softmax(-1) @ v)
        return mixed if core.conv_kernel_size is None else mixed + core.conv(v)

    return mix


def _means(x: Tensor, segments: int) -> Tensor:
    """Mean of each of `segments` runs of tokens of `(B, H, N, d)`."""
    return x.reshape(*x.shape[:2], segments, -1, x.shape[3]).mean(3)
