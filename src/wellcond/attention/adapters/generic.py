"""Any module that looks like attention structurally: a fused or separate Q, K, V by name, and a head count.

Names decide only where the weights are; whether the guess is right is for `AttentionLayer.verify` to show. The mixing
is taken to be softmax attention, plain or causal, whichever reproduces what the module's output projection was given.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator

import torch
from torch import Tensor, nn

from wellcond.attention.adapters import build
from wellcond.attention.blocks import in_out, is_linear
from wellcond.attention.paths import children, resolve
from wellcond.attention.replay import (
    Call,
    Mixing,
    Replay,
    Softmax,
    additive,
    as_sequences,
    causal,
    concatenate_heads,
    project,
)
from wellcond.attention.storage import split
from wellcond.attention.view import AttentionLayer, Projection
from wellcond.errors import WeightError

HEADS = ("num_heads", "n_heads", "n_head", "heads", "num_attention_heads", "nhead", "nheads", "num_head", "h")
KV_HEADS = ("num_kv_heads", "num_key_value_heads", "n_kv_heads", "n_kv_head", "kv_heads", "n_head_kv")
WIDTH = ("head_dim", "dim_head", "head_size", "attention_head_size", "d_head", "head_width", "dim_heads")
SCALE = ("scale", "scaling", "softmax_scale", "scale_factor")
FUSED = ("qkv", "to_qkv", "in_proj", "c_attn", "query_key_value", "Wqkv", "qkv_proj", "wqkv", "in_proj_qkv", "W_qkv")
HEAD_MAJOR = ("query_key_value",)  # Megatron's name comes with Megatron's order
TEMPLATES = (
    "{}",
    "{}_proj",
    "to_{}",
    "w{}",
    "w_{}",
    "W_{}",
    "W{}",
    "{}_lin",
    "{}_linear",
    "linear_{}",
    "fc_{}",
    "proj_{}",
)
LETTERS = (("q", "k", "v"), ("query", "key", "value"), ("queries", "keys", "values"), ("Q", "K", "V"))
STORAGES: tuple[tuple[str, ...], ...] = (
    *((name,) for name in FUSED),
    *(("qk", "v"), ("to_qk", "to_v")),
    *(
        tuple(template.format(part) for part in parts)
        for template in TEMPLATES
        for q, k, v in LETTERS
        for parts in ((q, k, v), (q, k + v))
    ),
)
OUTPUT = (
    *("proj", "out_proj", "o_proj", "to_out", "c_proj", "dense", "o", "wo", "out", "fc_out", "out_lin", "output"),
    *("linear_out", "proj_out", "W_o", "w_o", "W_O", "Wo", "fc_o", "fc", "o_lin", "unifyheads"),
    *("projection", "projection_layer", "output.dense"),
)


def describe(module: nn.Module, name: str) -> AttentionLayer | None:
    """Return a view if the names, sizes and head count fit together."""
    heads = _number(module, HEADS)
    if heads is None or find_storage(module) is None:
        return None
    try:
        parts = _projections(module, name, heads)
    except WeightError:
        return None
    if parts is None:
        return None
    query, key, value = parts
    scale = _scale(module)
    return AttentionLayer(
        name,
        "softmax",
        query,
        key,
        value,
        find_output(module, name, heads, value),
        scale=query.width**-0.5 if scale is None or math.isclose(scale, query.width**0.5) else scale,
        cross="cross" in f"{name} {type(module).__name__}".lower(),
        replay=Replay(_mixing, _tokens, finish=_finish),
    )


def looks_like_attention(module: nn.Module) -> bool:
    """Whether a module's class name or children suggest attention."""
    named = re.search(r"Attention|Attn|XCA", type(module).__name__) is not None
    return (named and any(True for _ in module.parameters())) or find_storage(module) is not None


def why_not(module: nn.Module) -> str:
    """Why `describe` returned None for a look-alike."""
    storage = find_storage(module)
    if storage is None:
        children = ", ".join(n for n, c in module.named_children() if any(True for _ in c.parameters())) or "none"
        return f"no query, key and value projections by a known name (children with weights: {children})"
    heads = _number(module, HEADS)
    if heads is None:
        return f"has {'/'.join(storage)} but no head count ({', '.join(HEADS[:5])}, …)"
    try:
        _projections(module, "", heads)
    except WeightError as error:
        return str(error)
    return f"{'/'.join(storage)}: sizes {_sizes(module, storage)} do not split into {heads} heads"


def _sizes(module: nn.Module, storage: tuple[str, ...]) -> str:
    return ", ".join(str(in_out(resolve(module, child))) for child in storage)


def _number(module: nn.Module, names: tuple[str, ...]) -> int | None:
    """The first positive whole number among a module's, or its configuration's, attributes."""
    for source in (module, getattr(module, "config", None)):
        for name in names:
            value = getattr(source, name, None)
            if isinstance(value, int) and not isinstance(value, bool) and value > 0:
                return value
    return None


def _scale(module: nn.Module) -> float | None:
    values = (getattr(module, name, None) for name in SCALE)
    return next((value for value in values if isinstance(value, float) and value > 0), None)


def find_storage(module: nn.Module) -> tuple[str, ...] | None:
    """Names of the children that hold Q, K, V: one fused, `q` and a fused `kv`, or three."""
    linear = {name for name, child in children(module) if is_linear(child)}
    return next((names for names in STORAGES if linear.issuperset(names)), None) if linear else None


def _projections(module: nn.Module, name: str, heads: int) -> list[Projection] | None:
    storage = find_storage(module)
    assert storage is not None
    given, kv = _number(module, WIDTH), _number(module, KV_HEADS) or heads
    sizes = [in_out(resolve(module, child))[1] for child in storage]
    if len(storage) == 1:
        width, rest = divmod(sizes[0], heads + 2 * kv)
        if rest or (given and given != width):
            return None
        order = "head" if storage[0] in HEAD_MAJOR else "block"
        return build.fused(module, name, storage[0], heads, width, kv, order)
    if storage[0].endswith("qk"):
        width, rest = divmod(sizes[0], 2 * heads)
        if rest or sizes[1] % heads:
            return None
        query, key = build.fused(module, name, storage[0], heads, width, parts=2)
        return [query, key, build.separate(module, name, storage[1], heads)]
    width, rest = divmod(sizes[0], heads)
    if rest or (given and given != width):
        return None
    query = build.separate(module, name, storage[0], heads, width)
    if len(storage) == 2:
        kv, rest = divmod(sizes[1], 2 * width)
        declared = _number(module, KV_HEADS)
        if rest or not kv or heads % kv or (declared and declared != kv):
            return None
        return [query, *build.fused(module, name, storage[1], kv, width, parts=2)]
    kv, rest = divmod(sizes[1], width)
    declared = _number(module, KV_HEADS)
    if rest or heads % kv or sizes[2] % kv or (declared and declared != kv):
        return None
    return [query, *(build.separate(module, name, child, kv) for child in storage[1:])]


def find_output(module: nn.Module, name: str, heads: int, value: Projection) -> Projection | None:
    """The output projection by name, if it reads what the heads write; it may sit in a Sequential."""
    for child in OUTPUT:
        for path in (child, f"{child}.0"):
            try:
                linear = resolve(module, path)
            except KeyError:
                continue
            if is_linear(linear) and in_out(linear)[0] == heads * value.width:
                return build.output(module, name, path, heads)
    return None


def _tokens(call: Call) -> dict[str, Tensor]:
    """What the projections read; a convolution has its channels first."""
    return {
        role: _channels_last(call.reads[role]) if _convolves(call, projection) else as_sequences(call.reads[role])
        for role, projection in call.layer.projections("query", "key", "value")
    }


def _finish(call: Call, x: Tensor) -> Tensor:
    return x.mT if call.layer.output is not None and _convolves(call, call.layer.output) else x


def _channels_last(x: Tensor) -> Tensor:
    return x.flatten(2).mT


def _convolves(call: Call, projection: Projection) -> bool:
    assert call.layer.root is not None
    owner = resolve(call.layer.root, split(projection.weight.path)[0])
    return isinstance(owner, (nn.Conv1d, nn.Conv2d))


def _mixing(call: Call) -> Mixing:
    """Choose the softmax attention that gives what the module itself handed to its output projection."""
    tokens, truth = _tokens(call), call.reads.get("output", call.output)
    q, k, v = (project(p, tokens[role]) for role, p in call.layer.projections("query", "key", "value"))
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
    future = causal(n, t, q)
    biases: list[Tensor | None] = [None, future, *masks, *(mask + future for mask in masks)]
    scales = {call.layer.scale or 1.0, q.shape[-1] ** -0.5, 1.0}
    yield from (Softmax(scale, bias) for scale in sorted(scales) for bias in biases)
