"""Hugging Face transformers, recognised by class origin and never imported.

One path for every class that keeps to the shared vocabulary (`vocabulary.py`), whatever the model is called; a
class that does not is refused with what was not understood, and never guessed at.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from torch import nn

from wellcond.attention.adapters import build, generic
from wellcond.attention.adapters.registry import adapter
from wellcond.attention.adapters.transformers.own_replays import alibi_mixing, gpt_neo_mixing, nystrom_mixing
from wellcond.attention.adapters.transformers.shared_replay import assemble, core_of, is_gated, scale_of, standard
from wellcond.attention.adapters.transformers.vocabulary import MISLEADING, unknown_names
from wellcond.attention.blocks import in_out
from wellcond.attention.layouts import contiguous, grouped, interleaved
from wellcond.attention.paths import children, join, resolve
from wellcond.attention.projection import Projection
from wellcond.attention.replay import Call, Mixing, Replay
from wellcond.attention.roles import QKV
from wellcond.attention.view import AttentionLayer

WIDTH = ("head_dim", "attention_head_size", "head_size", "key_value_proj_dim")
# Classes with a replay of their own: its kind, the logit scale where it is not the usual one, the replay.
OWN: dict[str, tuple[str, float | None, Callable[[Call], Mixing]]] = {
    "BloomAttention": ("softmax", None, alibi_mixing),
    "FalconAttention": ("softmax", None, alibi_mixing),
    "GPTNeoSelfAttention": ("softmax", 1.0, gpt_neo_mixing),
    "NystromformerSelfAttention": ("nystrom", None, nystrom_mixing),
}


@adapter(priority=30)
def describe_transformers(module: nn.Module, name: str) -> AttentionLayer | str | None:
    """Return a view, the reason why there is none, or None for what is not transformers' attention."""
    if not build.origin(module, "transformers"):
        return None
    core = core_of(module)
    storage = generic.find_storage(core)
    if storage is None:
        return None
    own = OWN.get(type(core).__name__)
    problem = None if own else _problem(module, core)
    # Three matrices of their own hold heads one after the other whatever the mixing; a fused one may not.
    if problem and len(storage) < 3:
        return f"{type(core).__name__} does more than the attention known here: {problem}"
    inside = next((child for child, owned in children(module) if owned is core), "")
    parts = _projections(core, join(name, inside), storage)
    if isinstance(parts, str):
        return parts
    query, _, value = parts
    kind, scale, mixing = own or ("softmax", None, standard)
    return build.layer(
        name,
        parts,
        generic.find_output(module, name, query.heads, value),
        None if problem else Replay(mixing, assemble=assemble),
        kind=kind,
        scale=None if problem else scale_of(core, query.width) if scale is None else scale,
        cross=_is_cross(module, core, name),
    )


def _problem(module: nn.Module, core: nn.Module) -> str | None:
    """Return what a class does that the shared replay does not, or None."""
    unknown = {*unknown_names(module), *unknown_names(core)} - ({"sigmoid"} if is_gated(core) else set())
    listed = ", ".join(sorted(unknown)[:5]) + (", …" if len(unknown) > 5 else "")
    return MISLEADING.get(type(core).__name__) or listed or None


def _is_cross(module: nn.Module, core: nn.Module, name: str) -> bool:
    if getattr(module, "is_cross_attention", False):
        return True
    said = f"{'.'.join(name.split('.')[-2:])} {type(module).__name__} {type(core).__name__}"
    return re.search("cross|encoder_attn|encdec|encoder_decoder", said, re.IGNORECASE) is not None


def _projections(core: nn.Module, name: str, storage: tuple[str, ...]) -> list[Projection] | str:
    """Q, K and V; the head width is the class's own, the head counts follow from the sizes."""
    sizes = [in_out(resolve(core, child))[1] for child in storage]
    width = next((value for a in WIDTH if isinstance(value := getattr(core, a, None), int)), 0)
    if not width and isinstance(heads := getattr(core, "num_heads", None), int):
        width = sum(sizes) // (3 * heads)
    if not width or any(size % width for size in sizes[:2]):
        return f"{'/'.join(storage)}: sizes {sizes} are no multiples of a head width ({', '.join(WIDTH)})"
    if len(storage) == 1:
        return _fused(core, name, storage[0], width, sizes[0] // width)
    if len(storage) == 2:
        return f"{'/'.join(storage)}: the order of a fused key and value is not known"
    gated = is_gated(core)
    heads, kv_heads = sizes[0] // width // (1 + gated), sizes[1] // width
    if heads % kv_heads or sizes[2] % kv_heads:
        return f"{'/'.join(storage)}: {heads} query heads of width {width} do not share {kv_heads} key heads"
    layout = interleaved(heads, width, 0, 2) if gated else contiguous(heads, width)
    key, value = (build.separate(core, name, child, kv_heads) for child in storage[1:])
    return [build.part(core, name, storage[0], layout), key, value]


def _fused(core: nn.Module, name: str, child: str, width: int, slots: int) -> list[Projection] | str:
    """The orders in use: GPT-2's keys and values beside a query, Megatron's by head or by group, and blocks."""
    if "q_attn" in core._modules:
        query = build.separate(core, name, "q_attn", slots // 2, width)
        return [query, *build.fused(core, name, child, slots // 2, width, parts=2)]
    shared = _queries_per_key(core)
    kv_heads, rest = divmod(slots, shared + 2)
    if rest:
        return f"{child}: {slots} heads of width {width} are no {shared} queries per key and value"
    if shared == 1 and (child in generic.HEAD_MAJOR or hasattr(core, "multi_query")):
        return build.fused(core, name, child, kv_heads, width, order="head")
    if getattr(core, "new_decoder_architecture", False):  # Falcon
        return [build.part(core, name, child, grouped(kv_heads, shared, width, role)) for role in QKV]
    return build.fused(core, name, child, shared * kv_heads, width, kv_heads)


def _queries_per_key(core: nn.Module) -> int:
    shared = getattr(core, "num_key_value_groups", None)
    if isinstance(shared, int):
        return shared
    heads, kv_heads = getattr(core, "num_heads", 1), getattr(core, "num_kv_heads", None)
    return heads // kv_heads if isinstance(kv_heads, int) else 1
