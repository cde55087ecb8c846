"""Tiny members of real model classes, and what is shared by the tests of recorded passes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from wellcond.attention.recorded.describe import Described
from wellcond.attention.recorded.own_replay import OwnReplay
from wellcond.attention.replay import project
from wellcond.attention.roles import QKV
from wellcond.attention.view import AttentionLayer

WIDTHS = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "vocab_size": 64,
}
POSITIONS = {**WIDTHS, "max_position_embeddings": 64}
VIT = {"img_size": 32, "patch_size": 8, "embed_dim": 32, "num_heads": 4, "depth": 2}
LATENT = {"kv_lora_rank": 8, "q_lora_rank": 12, "qk_nope_head_dim": 8, "qk_rope_head_dim": 4, "v_head_dim": 6}
EXPERTS = {"n_routed_experts": 4, "n_group": 1, "topk_group": 1, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
RELATIVE = {"relative_attention": True, "pos_att_type": ["c2p", "p2c"], "max_relative_positions": 16}
GPT = {"n_embd": 32, "n_layer": 2, "n_head": 4, "vocab_size": 64}
# name -> configuration class of transformers, its arguments
CONFIGURATIONS: dict[str, tuple[str, dict[str, Any]]] = {
    "deepseek_v3": (
        "DeepseekV3Config",
        {**POSITIONS, **LATENT, **EXPERTS, "num_key_value_heads": 4, "first_k_dense_replace": 1, "n_shared_experts": 1},
    ),
    "mpt": ("MptConfig", {"d_model": 32, "n_heads": 4, "n_layers": 2, "max_seq_len": 32, "vocab_size": 64}),
    "deberta": ("DebertaConfig", {**POSITIONS, **RELATIVE}),
    "deberta_v2": ("DebertaV2Config", {**POSITIONS, **RELATIVE}),
    "codegen": ("CodeGenConfig", {**GPT, "n_positions": 32, "rotary_dim": 4}),
    "gptj": ("GPTJConfig", {**GPT, "rotary_dim": 4}),
    "dbrx": (
        "DbrxConfig",
        {
            "d_model": 32,
            "n_heads": 4,
            "n_layers": 2,
            "max_seq_len": 32,
            "vocab_size": 64,
            "attn_config": {"kv_n_heads": 2, "clip_qkv": 8, "rope_theta": 1e4},
            "ffn_config": {"ffn_hidden_size": 16, "moe_num_experts": 2, "moe_top_k": 1, "hidden_size": 32},
        },
    ),
    "llama": ("LlamaConfig", {**POSITIONS, "num_key_value_heads": 2}),
    "llama4": (
        "Llama4TextConfig",
        {**POSITIONS, "num_key_value_heads": 2, "head_dim": 8, "num_local_experts": 2, "intermediate_size_mlp": 32},
    ),
    "gpt_oss": (
        "GptOssConfig",
        {**POSITIONS, "num_key_value_heads": 2, "head_dim": 8, "num_local_experts": 2, "num_experts_per_tok": 1},
    ),
    "qwen3_next": (
        "Qwen3NextConfig",
        {
            **POSITIONS,
            "num_key_value_heads": 2,
            "head_dim": 8,
            "num_experts": 2,
            "num_experts_per_tok": 1,
            "moe_intermediate_size": 16,
            "shared_expert_intermediate_size": 16,
            "linear_num_key_heads": 2,
            "linear_num_value_heads": 2,
            "linear_key_head_dim": 8,
            "linear_value_head_dim": 8,
            "layer_types": ["linear_attention", "full_attention"],
        },
    ),
    "xlnet": ("XLNetConfig", {"d_model": 32, "n_head": 4, "n_layer": 2, "d_inner": 32, "vocab_size": 64}),
    "funnel": (
        "FunnelConfig",
        {
            "d_model": 32,
            "n_head": 4,
            "d_head": 8,
            "d_inner": 32,
            "block_sizes": [1, 1],
            "vocab_size": 64,
            "architectures": ["FunnelModel"],
        },
    ),
    "longformer": ("LongformerConfig", {**POSITIONS, "attention_window": [4, 4]}),
    "albert": ("AlbertConfig", {**POSITIONS, "embedding_size": 16}),
    "bart": (
        "BartConfig",
        {
            "d_model": 32,
            "encoder_layers": 1,
            "decoder_layers": 1,
            "encoder_ffn_dim": 32,
            "decoder_ffn_dim": 32,
            "encoder_attention_heads": 4,
            "decoder_attention_heads": 4,
            "max_position_embeddings": 32,
            "vocab_size": 64,
        },
    ),
    "diffllama": ("DiffLlamaConfig", {**POSITIONS, "num_key_value_heads": 2}),
    "lilt": ("LiltConfig", {**POSITIONS, "hidden_size": 48, "channel_shrink_ratio": 2}),
}
# name -> arguments of timm's constructor
PICTURES: dict[str, dict[str, Any]] = {
    "convit_tiny": {**VIT, "local_up_to_layer": 1},
    "nest_tiny": {"img_size": 32, "num_levels": 2, "global_pool": "avg"},
    "samvit_base_patch16": {**VIT, "window_size": 3, "global_attn_indexes": (1,), "use_rel_pos": True},
    "edgenext_xx_small": {"depths": (1, 2, 2, 2), "dims": (16, 24, 32, 48)},
    "cait_xxs24_224": {**VIT, "depth_token_only": 1},
    "xcit_nano_12_p16_224": {"img_size": 64, "depth": 2, "embed_dim": 32, "num_heads": 4},
    "vit_tiny_patch16_224": VIT,
    "mvitv2_tiny": {"img_size": 32},
}


def built(name: str) -> tuple[nn.Module, Any]:
    """A tiny model and a batch for it, its weights drawn so that every head matters."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model, inputs = _picture(name) if name in PICTURES else _text(name)
        with torch.no_grad():
            for parameter in model.parameters():  # also what starts at zero
                parameter.add_(torch.randn_like(parameter) * 0.05)
    return model.eval(), inputs


def _picture(name: str) -> tuple[nn.Module, Any]:
    timm = pytest.importorskip("timm")
    if name == "nest_tiny":  # its name fixes the widths
        stages = {"embed_dims": (16, 32), "num_heads": (2, 4), "depths": (1, 1)}
        model = timm.models.nest.Nest(num_classes=3, **stages, **PICTURES[name])
    elif name == "mvitv2_tiny":
        stages = timm.models.mvitv2.MultiScaleVitCfg(depths=(1, 1), embed_dim=(16, 32), num_heads=(1, 2))
        model = timm.models.mvitv2.MultiScaleVit(stages, num_classes=3, **PICTURES[name])
    else:
        model = timm.create_model(name, pretrained=False, num_classes=3, **PICTURES[name])
    side = PICTURES[name].get("img_size", 64)
    return model, {"x": torch.randn(2, 3, side, side)}


def _text(name: str) -> tuple[nn.Module, Any]:
    transformers = pytest.importorskip("transformers")
    config, arguments = CONFIGURATIONS[name]
    model = transformers.AutoModel.from_config(getattr(transformers, config)(**arguments))
    return model, {"input_ids": torch.randint(3, 60, (2, 9))}


def rebuilt_error(described: Described, model: nn.Module, dtype: torch.dtype | None = None) -> float:
    """Largest difference between a site and its replay from the view, in units of the largest entry."""
    layer, replay = described.layer.bind(model), OwnReplay(described, dtype)
    with torch.no_grad():
        again = replay(*(project(getattr(layer, role), replay.tokens[role]) for role in QKV))
    wanted = replay.recorded().to(again.dtype)
    return float((again - wanted).abs().max() / wanted.abs().max())


def operand(described: Described, role: str) -> Tensor:
    """What a product reads for a role, entry by entry."""
    site, value = described.site, described.site.origins.tape.value
    if role == "value":
        factor = site.mixture.right if site.left else site.mixture.left
    else:
        factor = site.scores.left if (role == "query") == (site.over == 2) else site.scores.right
    factor = value(factor)
    return factor if factor.ndim == 3 else factor[None]


def entries_moved(
    described: Described, again: Callable[[], Described], layer: AttentionLayer, role: str, head: int
) -> set[int]:
    """Entries of a role's operand that move when noise is written into one head of its view."""
    projection = getattr(layer, role)
    before = projection.read()
    changed = before.clone()
    changed[head] += torch.randn(changed[head].shape, generator=torch.Generator().manual_seed(1)) * before.std()
    projection.write_(changed)
    try:
        moved = (operand(again(), role) - operand(described, role)).abs().amax((1, 2))
    finally:
        projection.write_(before)
    return set((moved > 1e-4 * operand(described, role).abs().max()).nonzero().flatten().tolist())
