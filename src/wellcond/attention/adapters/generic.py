"""Any module that looks like attention structurally: a fused or separate Q, K, V by name, and a head count.

Names decide only where the weights are; whether the guess is right is for `AttentionLayer.verify` to show.
"""

from __future__ import annotations

import math
import re
from dataclasses import replace

from torch import nn

from wellcond.attention.adapters import build
from wellcond.attention.adapters.guessed_replay import GUESSED
from wellcond.attention.adapters.registry import adapter
from wellcond.attention.blocks import in_out, is_linear
from wellcond.attention.paths import children, resolve
from wellcond.attention.projection import Projection
from wellcond.attention.view import AttentionLayer
from wellcond.errors import WeightError

HEADS = ("num_heads", "n_heads", "n_head", "heads", "num_attention_heads", "nhead", "nheads", "num_head", "h")
KV_HEADS = ("num_kv_heads", "num_key_value_heads", "n_kv_heads", "n_kv_head", "kv_heads", "n_head_kv")
WIDTH = ("head_dim", "dim_head", "head_size", "attention_head_size", "d_head", "head_width", "dim_heads")
SCALE = ("scale", "scaling", "softmax_scale", "scale_factor")
FUSED = ("qkv", "to_qkv", "in_proj", "c_attn", "query_key_value", "Wqkv", "qkv_proj", "wqkv", "in_proj_qkv", "W_qkv")
HEAD_MAJOR = ("query_key_value",)  # Megatron's name comes with Megatron's order
TEMPLATES = (
    *("{}", "{}_proj", "to_{}", "w{}", "w_{}", "W_{}", "W{}"),
    *("{}_lin", "{}_linear", "linear_{}", "fc_{}", "proj_{}"),
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


@adapter(priority=100)
def describe_by_structure(module: nn.Module, name: str) -> AttentionLayer | None:
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
    query, _, value = parts
    scale = _scale(module)
    found = build.layer(
        name,
        parts,
        find_output(module, name, heads, value),
        GUESSED,
        scale=query.width**-0.5 if scale is None or math.isclose(scale, query.width**0.5) else scale,
        cross="cross" in f"{name} {type(module).__name__}".lower(),
    )
    return replace(found, standing="guessed")


def looks_like_attention(module: nn.Module) -> bool:
    """Return whether a module's class name or children suggest attention."""
    named = re.search(r"Attention|Attn|XCA", type(module).__name__) is not None
    return (named and any(True for _ in module.parameters())) or find_storage(module) is not None


def why_not(module: nn.Module) -> str:
    """Return why `describe_by_structure` returned None for a look-alike."""
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
    """Return the first positive whole number among a module's, or its configuration's, attributes."""
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
