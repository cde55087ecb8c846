"""The replay of a module known by its structure alone: softmax attention, plain, masked or causal.

Of these it is the one that reproduces what the module itself handed to its output projection.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor, nn

from wellcond.attention.paths import resolve
from wellcond.attention.projection import Projection
from wellcond.attention.replay import (
    Call,
    Mixing,
    Replay,
    Softmax,
    additive,
    as_sequences,
    causal_mask,
    concatenate_heads,
    project,
)
from wellcond.attention.roles import QKV
from wellcond.attention.storage import split_path


def _tokens(call: Call) -> dict[str, Tensor]:
    """Tokens that the projections read; a convolution has its channels first."""
    return {
        role: _channels_last(call.reads[role]) if _convolves(call, projection) else as_sequences(call.reads[role])
        for role, projection in call.layer.projections(*QKV)
    }


def _finish(call: Call, x: Tensor) -> Tensor:
    return x.mT if call.layer.output is not None and _convolves(call, call.layer.output) else x


def _channels_last(x: Tensor) -> Tensor:
    return x.flatten(2).mT


def _convolves(call: Call, projection: Projection) -> bool:
    assert call.layer.root is not None
    owner = resolve(call.layer.root, split_path(projection.weight.path)[0])
    return isinstance(owner, (nn.Conv1d, nn.Conv2d))


def _mixing(call: Call) -> Mixing:
    """Choose the softmax attention that gives what the module itself handed to its output projection."""
    tokens, truth = _tokens(call), call.reads.get("output", call.output)
    q, k, v = (project(p, tokens[role]) for role, p in call.layer.projections(*QKV))
    candidates = list(_candidates(call, q, k))
    if not isinstance(truth, Tensor):
        return candidates[0]
    if call.layer.output is not None and _convolves(call, call.layer.output):
        truth = _channels_last(truth)
    return min(candidates, key=lambda softmax: _distance(concatenate_heads(call, softmax(q, k, v)), truth))


def _distance(mixed: Tensor, truth: Tensor) -> float:
    return float((mixed.flatten() - truth.flatten()).abs().max()) if mixed.numel() == truth.numel() else math.inf


def _candidates(call: Call, q: Tensor, k: Tensor) -> Iterator[Softmax]:
    n, t = q.shape[2], k.shape[2]
    masks: list[Tensor] = []
    mask = call.argument("attn_mask", "attention_mask", "mask")
    if isinstance(mask, Tensor) and mask.shape[-1] == t:
        shaped = [mask]  # (N, T), (heads, N, T) and (B, 1, N, T) as they are; (B, T) and (B, N, T) per sequence
        if mask.ndim < 4 and mask.shape[0] == q.shape[0]:
            shaped.append(mask.reshape(q.shape[0], *[1] * (4 - mask.ndim), *mask.shape[1:]))
        whole = (q.shape[0], q.shape[1], n, t)
        for each in shaped:
            if each.ndim > 4 or any(a not in (1, b) for a, b in zip(each.shape[::-1], whole[::-1], strict=False)):
                continue
            if mask.dtype == torch.bool:
                masks += [additive(each, q), additive(~each, q)]
            else:
                masks += [additive(each != 0, q)] + ([each] if each.is_floating_point() else [])
    future = causal_mask(n, t, q)
    biases: list[Tensor | None] = [None, future, *masks, *(mask + future for mask in masks)]
    scales = {call.layer.scale or 1.0, q.shape[-1] ** -0.5, 1.0}
    yield from (Softmax(scale, bias) for scale in sorted(scales) for bias in biases)


GUESSED = Replay(_mixing, _tokens, finish=_finish, guess=True)
