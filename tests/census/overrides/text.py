"""Model types that read text."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from tests.census.batch import Batch
from tests.census.overrides.override import Override

SECTIONS = {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [1, 1, 2]}}
BOTH_ROPES = {kind: {"rope_type": "default", "rope_theta": 1e4} for kind in ("full_attention", "sliding_attention")}


ENCODED = Override(
    inputs=lambda b: {"input_ids": b.ids(), "encoder_hidden_states": b.random(2, 5, 32), "use_cache": False}
)


def first_token(length: int) -> torch.Tensor:
    """Mark the first token of each sequence, as the one that all others see."""
    return torch.eye(length, dtype=torch.long)[:1].repeat(2, 1)


def text_and_boxes(width: int) -> Callable[[Batch], dict[str, Any]]:
    return lambda b: {"input_ids": b.ids(), "bbox": b.random(2, 7, width).abs()}


TEXT: dict[str, Override] = {
    "bros": Override({"hidden_size": 64, "dim_bbox": 8}, inputs=text_and_boxes(8)),
    "cohere_compass_text": Override(
        {"layer_types": ["full_attention", "sliding_attention"], "rope_parameters": BOTH_ROPES}
    ),
    "cosmos3_edge_text": Override(
        {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [4, 2, 2]}}
    ),
    "deepseek_ocr2_text": Override({"mlp_layer_types": ["dense", "sparse"]}),
    "diffusion_gemma_text": Override({"num_experts": 4, "top_k_experts": 2, "moe_intermediate_size": 24}),
    "dots1": Override({"n_routed_experts": 4, "n_shared_experts": 1, "num_experts_per_tok": 2}),
    "ernie4_5_vl_moe_text": Override(SECTIONS),
    "esm": Override({"vocab_size": 33, "pad_token_id": 1, "mask_token_id": 32}),
    "gemma3n_text": Override({"activation_sparsity_pattern": [0.0, 0.0]}),
    "gpt_neo": Override({"attention_types": [[["global", "local"], 1]], "num_layers": 2}),
    "lfm2_moe": Override({"layer_types": ["conv", "full_attention"]}),
    "lilt": Override({"hidden_size": 96}),
    "reformer": Override(
        {
            "axial_pos_embds_dim": [8, 24],
            "axial_pos_shape": [4, 4],
            "attention_head_size": 8,
            "num_buckets": 2,
            "attn_layers": ["local", "lsh"],
            "local_attn_chunk_length": 4,
            "lsh_attn_chunk_length": 4,
        },
        inputs=lambda b: {"input_ids": b.ids(16), "use_cache": False},
    ),
    "step3p5": Override({"sliding_window": 4}),
    "t5gemma2_text": Override({"dropout_rate": 0.0}),
    "voxtral_realtime_text": Override(inputs=lambda b: {"input_ids": b.ids(), "t_cond": b.random(2, 1, 32)}),
    "xmod": Override({"default_language": "en_XX"}),
    "zamba": Override({"num_hidden_layers": 4, "layer_types": ["mamba", "hybrid", "mamba", "hybrid"]}),
    "blt": Override(
        {
            "encoder_config": {"hidden_size_global": 32, "cross_attn_all_layers": True},
            "decoder_config": {"hidden_size_global": 32},
            "encoder_hash_byte_group_vocab": 60,
        }
    ),
    "longformer": Override(inputs=lambda b: {"input_ids": b.ids(), "global_attention_mask": first_token(7)}),
    "led": Override(
        inputs=lambda b: {
            "input_ids": b.ids(8),
            "global_attention_mask": first_token(8),
            "decoder_input_ids": b.ids(5),
            "use_cache": False,
        }
    ),
    "t5gemma2_decoder": Override(
        {"dropout_rate": 0.0},
        inputs=lambda b: {"input_ids": b.ids(), "encoder_hidden_states": b.random(2, 5, 32), "use_cache": False},
    ),
    "canary_decoder": ENCODED,
    "pix2struct_text_model": Override(
        {"initializer_range": 0.02},
        inputs=lambda b: {"input_ids": b.ids(), "encoder_hidden_states": b.random(2, 5, 32), "use_cache": False},
    ),
    "trocr": ENCODED,
    "blip_text_model": Override(
        {"is_decoder": True},
        inputs=lambda b: {"input_ids": b.ids(), "encoder_hidden_states": b.random(2, 5, 32), "use_cache": False},
    ),
    "luke": Override(
        inputs=lambda b: {
            "input_ids": b.ids(),
            "entity_ids": b.integers(10, 2, 2, low=1),
            "entity_attention_mask": torch.ones(2, 2, dtype=torch.long),
            "entity_token_type_ids": torch.zeros(2, 2, dtype=torch.long),
            "entity_position_ids": b.integers(7, 2, 2, 3),
        }
    ),
    "qwen3_omni_moe_talker_text": Override(
        {"shared_expert_intermediate_size": 24},
        inputs=lambda b: {"inputs_embeds": b.random(2, 7, 32), "use_cache": False},
    ),
    "qwen3_omni_moe_talker_code_predictor": Override(
        inputs=lambda b: {"inputs_embeds": b.random(2, 7, 32), "use_cache": False},
    ),
    "dbrx": Override(
        {
            "d_model": 32,
            "n_heads": 4,
            "attn_config": {"rope_theta": 10000.0, "kv_n_heads": 2, "clip_qkv": 8.0},
            "ffn_config": {"hidden_size": 32},
        }
    ),
    "bark": Override(model="BarkSemanticModel", part="semantic_config"),
    "jamba": Override({"attn_layer_period": 2, "attn_layer_offset": 1, "expert_layer_period": 2}),
    "bamba": Override({"attn_layer_indices": [1]}),
    "granitemoehybrid": Override({"layer_types": ["linear_attention", "full_attention"]}),
    "pegasus_x": Override(
        {"block_size": 4, "num_global_tokens": 3},
        inputs=lambda b: {"input_ids": b.ids(8), "decoder_input_ids": b.ids(5)},
    ),
}
