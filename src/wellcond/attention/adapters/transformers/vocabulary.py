"""The vocabulary that transformers' attention classes share, and how to see that a class uses nothing else.

Three hundred classes write the same forward with the same names. Whether a class is one of them is read off the
names in its code: if each is in the list below, the one replay of `shared_replay.py` describes it; if one is not
(`gate_proj`, `indexer`, `disentangled_attention_bias`), the class does something that is not described here.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from functools import cache
from types import CodeType
from typing import Any

from torch import nn

ROTARY = "apply_rotary_pos_emb"
ROTARY_VISION = "apply_rotary_pos_emb_vision"
QUERY_NORMS = ("q_norm", "q_layernorm", "query_layernorm")
KEY_NORMS = ("k_norm", "k_layernorm", "key_layernorm")
MIXED_NORMS = ("attn_sub_norm", "inner_attn_ln")
# Features that are known only while the attribute of this name (the module's or its configuration's) is off.
OFF = ("clip_qkv",)
# Classes that mean something else by known names.
MISLEADING = {
    "BltCrossAttention": "it normalises before it projects",
    "EfficientLoFTRAttention": "it rotates before it splits the heads",
    "OpenAIPrivacyFilterAttention": "it scales Q and K each",
    "SpeechT5Attention": "its position_bias multiplies Q",
}

KNOWN = frozenset(
    # what a forward is given
    """self args kwargs hidden_states attention_mask mask encoder_attention_mask position_embeddings position_ids
    position_bias key_value_states encoder_hidden_states cross_attention_states query_position_embeddings
    spatial_position_embeddings encoder_position_embeddings object_queries input_tensor queries keys values context
    height width residual past_key_values past_key_value layer_past use_cache cache_position output_attentions module
    cu_seqlens max_seqlen query_tensor key_tensor value_tensor layer_input"""
    # the language, and shapes
    """ torch nn functional F math sqrt dtype to type float32 float16 finfo min max full Tensor isinstance hasattr
    getattr ValueError zip tolist logger warning_once training view reshape transpose contiguous permute size shape
    split chunk unbind cat concat unsqueeze expand device zeros clone requires_grad gradient_checkpointing _shape
    _split_heads _separate_heads _recombine_heads transpose_for_scores repeat_kv"""
    # who mixes
    """ config _attn_implementation ALL_ATTENTION_FUNCTIONS get_interface eager_attention_forward is_causal
    is_flash_attention_requested deterministic_flash_attn get_max_seqlen sliding_window is_sliding matmul bmm softmax
    Softmax tanh scaling scale attn_logit_softcapping sinks _upcast_and_reordered_attn reorder_and_upcast_attn"""
    # the cache
    """ update layer_idx EncoderDecoderCache self_attention_cache cross_attention_cache is_updated layers get
    get_seq_length is_cross_attention is_decoder"""
    # sizes
    """ head_dim num_heads n_heads num_attention_heads num_key_value_heads attention_head_size all_head_size head_size
    embed_dim hidden_size inner_dim split_size key_value_proj_dim num_key_value_groups multi_query kv_dim"""
    # projections, and what stands before them or after the last
    """ q_proj k_proj v_proj query key value q k v q_lin k_lin v_lin linear_q linear_k linear_v qkv qkv_proj Wqkv
    query_key_value c_attn q_attn o_proj out_proj dense Wo o out_lin c_proj proj projection projection_layer linear_out
    sequence_reduction sequence_reduction_ratio LayerNorm dropout attention_dropout p dropout_p dropout_prob
    output_dropout resid_dropout residual_dropout attn_dropout attn_drop proj_drop projection_dropout out_drop output
    attention"""
    # positions and norms
    f""" {ROTARY} {ROTARY_VISION} rotary_ndims use_rope {" ".join(QUERY_NORMS + KEY_NORMS + MIXED_NORMS)} use_qk_norm
    qk_layernorm has_relative_attention_bias compute_bias relative_position_bias clip_qkv clamp clamp_""".split()
)


def forward_of(module: nn.Module) -> Callable[..., Any]:
    """The function that a class wrote as its forward, without decorators."""
    forward: Callable[..., Any] = inspect.unwrap(type(module).forward)
    return forward


def unknown_names(module: nn.Module) -> list[str]:
    """Names that a module's forward uses and this adapter does not know, and features that are on but must be off."""
    forward = forward_of(module)
    used = set(names(forward))
    if "eager_attention_forward" in used:
        used.update(_names(forward.__globals__["eager_attention_forward"].__code__))
    config = getattr(module, "config", None)
    on = {name for name in OFF if name in used and (getattr(module, name, None) or getattr(config, name, None))}
    return sorted((used - KNOWN) | on)


@cache
def names(function: Callable[..., Any]) -> tuple[str, ...]:
    """Attributes, globals and parameters that a function names; the first two in the order of first use.

    >>> def forward(self, x):
    ...     return self.o_proj(self.q_norm(x).softmax())
    >>> names(forward)
    ('o_proj', 'q_norm', 'softmax', 'self', 'x')
    """
    code = inspect.unwrap(function).__code__
    flags = bool(code.co_flags & inspect.CO_VARARGS) + bool(code.co_flags & inspect.CO_VARKEYWORDS)
    parameters = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount + flags]
    return (*dict.fromkeys(_names(code)), *parameters)


def _names(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:  # comprehensions and lambdas
        if isinstance(constant, CodeType):
            yield from _names(constant)
