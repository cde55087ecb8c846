"""The replay of every transformers class that keeps to the shared vocabulary.

Everything is read when the replay runs: masks, positions and rotary angles from the call, scale, norms and tables from
the module.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial, reduce
from typing import Any

import torch
from torch import Tensor, nn

from wellcond.attention.adapters.transformers.vocabulary import (
    KEY_NORMS,
    MIXED_NORMS,
    QUERY_NORMS,
    ROTARY,
    ROTARY_VISION,
    forward_of,
    names,
)
from wellcond.attention.blocks import in_out, is_linear
from wellcond.attention.paths import children
from wellcond.attention.replay import Call, Softmax, additive, as_sequences, causal_mask, concatenate_heads
from wellcond.errors import WellcondError

Map = Callable[[Tensor], Tensor]


@dataclass(frozen=True, kw_only=True)
class SinkSoftmax(Softmax):
    """Softmax with one more logit per head, `sinks`, whose share of the probability is dropped (GPT-OSS)."""

    sinks: Tensor

    def normalise(self, logits: Tensor) -> Tensor:
        """`(B, H, N, T)`; rows sum to one minus the sink's share."""
        sinks = self.sinks.reshape(1, -1, 1, 1).expand(*logits.shape[:3], 1)
        return torch.cat([logits, sinks], -1).softmax(-1)[..., :-1]


def core_of(module: nn.Module) -> nn.Module:
    """The module that scores and mixes: the module itself, or the one that BERT puts beside an output module."""
    if "Attention" not in type(module).__name__ or "output" not in module._modules:
        return module
    inner = [child for name, child in children(module) if name in ("self", "attention", "att")]
    return inner[0] if len(inner) == 1 and not any(is_linear(child) for _, child in children(module)) else module


def scale_of(core: nn.Module, width: int) -> float:
    """The logit scale: an attribute, or `1/√d`."""
    for name in ("scaling", "scale", "inv_norm_factor"):
        value = getattr(core, name, None)
        if isinstance(value, (int, float)):
            return float(value)
    return float(width**-0.5)


def kernel_of(core: nn.Module) -> str:
    """The attention kernel in use, `eager` or `sdpa`; the masks of the others have forms of their own."""
    kernel = getattr(getattr(core, "config", None), "_attn_implementation", None) or "eager"
    if kernel not in ("eager", "sdpa"):
        raise WellcondError(
            f"{type(core).__name__} runs the '{kernel}' kernel, whose masks are not replayed; "
            "for measuring, switch with model.set_attn_implementation('sdpa') or 'eager'"
        )
    return str(kernel)


def standard(call: Call) -> Softmax:
    """Softmax attention with the mask, positions, norms, softcap and sinks that the shared vocabulary can express."""
    core = core_of(call.module)
    scale = scale_of(core, call.layer.head_dim)
    query_map, key_map = (_chain(list(_maps(call, core, norms))) for norms in (QUERY_NORMS, KEY_NORMS))
    softcap = getattr(core, "attn_logit_softcapping", None)
    sinks = core._parameters.get("sinks")
    if sinks is not None:
        return SinkSoftmax(scale, _bias(call, core), query_map, key_map, softcap, sinks=sinks.detach())
    return Softmax(scale, _bias(call, core), query_map, key_map, softcap)


def is_gated(core: nn.Module) -> bool:
    """Return whether `q_proj` also holds a gate for the mixed values, `[head, (query, gate), d]` (Qwen 3.5)."""
    query, output = core._modules.get("q_proj"), core._modules.get("o_proj")
    if query is None or output is None or "sigmoid" not in names(forward_of(core)):
        return False
    return in_out(query)[1] == 2 * in_out(output)[0]


def assemble(call: Call, mixed: Tensor) -> Tensor:
    """Concatenate the heads, then gate and normalise where the class does."""
    core, x = core_of(call.module), concatenate_heads(call, mixed)
    if is_gated(core):
        both = core.get_submodule("q_proj")(call.reads["query"])
        gates = both.unflatten(-1, (mixed.shape[1], 2, -1))[..., 1, :]
        x = x * gates.flatten(-2).sigmoid()
    norms = [core._modules[name] for name in MIXED_NORMS if core._modules.get(name) is not None]
    return _chain(norms)(x)


def _chain(maps: list[Any]) -> Map:
    return partial(reduce, lambda x, f: f(x), maps)


def _maps(call: Call, core: nn.Module, norms: tuple[str, ...]) -> Iterator[Map]:
    """Norm and rotation, in the order in which the forward names them."""
    angles = call.argument("position_embeddings")
    for name in names(forward_of(core)):
        if name in norms and core._modules.get(name) is not None:
            yield partial(_normalise, core._modules[name])
        elif name == ROTARY and angles is not None and _rotates(core):
            yield partial(_rotate, core, angles)
        elif name == ROTARY_VISION and angles is not None:
            yield partial(_rotate_vision, core, angles)


def _normalise(norm: Any, x: Tensor) -> Tensor:
    """Apply a norm to `(B, heads, N, d)`: per head, or over all heads together where it is as wide as they are."""
    if list(norm.children()):  # StableLM has one norm per head, and takes the heads apart itself
        out: Tensor = norm(x)
        return out
    heads, width = x.shape[1], x.shape[3]
    x = x.transpose(1, 2)
    weight = getattr(norm, "weight", None)
    joint = weight is not None and weight.ndim == 1 and weight.numel() == heads * width
    out = norm(x.flatten(2)).unflatten(2, (heads, width)) if joint else norm(x)
    return out.transpose(1, 2)


def _rotates(core: Any) -> bool:
    """Return whether this layer rotates; some models leave some layers without positions."""
    used = names(forward_of(core))
    asked = used[: used.index(ROTARY)]  # what is asked before the rotation decides on it
    if "is_sliding" in asked:  # EXAONE 4
        return bool(core.sliding_window is None or core.is_sliding)
    if "sliding_window" in asked:  # Cohere 2
        return core.sliding_window is not None
    return bool(getattr(core, "use_rope", True))  # SmolLM3


def _rotate(core: Any, angles: tuple[Tensor, Tensor], x: Tensor) -> Tensor:
    """Rotate as the class's own file does: halves or neighbours, all of `d` or its first part."""
    cos, sin = (angle[None] if angle.ndim == 2 else angle for angle in angles)
    forward = forward_of(core)
    width = core.rotary_ndims if "rotary_ndims" in names(forward) else x.shape[-1]
    turned = forward.__globals__[ROTARY](x[..., :width], x[..., :width], cos, sin)[0]
    return torch.cat([turned, x[..., width:]], -1)


def _rotate_vision(core: nn.Module, angles: tuple[Tensor, Tensor], x: Tensor) -> Tensor:
    """Rotate with the function of the vision towers, which takes `(…, N, heads, d)`."""
    tokens = x.transpose(1, 2)
    turned: Tensor = forward_of(core).__globals__[ROTARY_VISION](tokens, tokens, *angles)[0]
    return turned.transpose(1, 2)


def _bias(call: Call, core: nn.Module) -> Tensor | None:
    """Mask and relative positions, as they are added to the logits."""
    queries, keys = (as_sequences(call.reads[role]) for role in ("query", "key"))
    n, t, kernel = queries.shape[1], keys.shape[1], kernel_of(core)
    mask, bounds = _mask(call), call.argument("cu_seqlens")
    parts: list[Tensor] = []
    if isinstance(bounds, Tensor):  # packed sequences: each token sees its own
        sequence = torch.bucketize(torch.arange(n, device=bounds.device), bounds, right=True)
        parts.append(additive(sequence[:, None] == sequence, queries))
    elif isinstance(mask, Tensor):
        if mask.ndim == 3:  # one mask per window, windows innermost in the batch
            mask = mask.repeat(queries.shape[0] // mask.shape[0], 1, 1)[:, None]
        parts.append(additive(mask, queries)[..., :t])  # a static cache is longer than what was written
    elif n > 1 and _is_causal(call, core, kernel):
        parts.append(causal_mask(n, t, queries))
    parts.extend(_positions(call, core, n, t))
    return sum(parts[1:], parts[0]) if parts else None


def _mask(call: Call) -> Any:
    """The mask argument; a class that takes both kinds uses the encoder's where it attends to an encoder."""
    takes_both = "encoder_attention_mask" in inspect.signature(forward_of(call.module)).parameters
    if call.layer.cross and takes_both:
        return call.argument("encoder_attention_mask")
    return call.argument("attention_mask", "mask")


def _is_causal(call: Call, core: nn.Module, kernel: str) -> bool:
    """Return whether no mask means a causal one: `sdpa` follows `is_causal`, `eager` does not."""
    if not {"ALL_ATTENTION_FUNCTIONS", "is_causal"} & set(names(forward_of(core))):
        return False
    given = call.arguments.get("is_causal")
    return kernel == "sdpa" and bool(getattr(core, "is_causal", True) if given is None else given)


def _positions(call: Call, core: Any, n: int, t: int) -> Iterator[Tensor]:
    used = names(forward_of(core))
    given = call.argument("position_bias")
    if given is not None:
        yield given
    elif "compute_bias" in used and core.has_relative_attention_bias:  # T5's first layer; it hands the bias on
        yield core.compute_bias(n, t).detach()
    if "relative_position_bias" in used:  # Swin
        yield core.relative_position_bias().detach()
