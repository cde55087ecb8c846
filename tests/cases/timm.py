"""timm, tiny: named models with their sizes overridden, so that every other choice is the real model's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from tests.cases.case import Case, Shape

KV = "fused block, q + fused kv"


@torch.no_grad()
def randomise(model: nn.Module) -> nn.Module:
    """Move every parameter away from a zero or one at which a mistake would not show."""
    for parameter in model.parameters():
        parameter.add_(0.1 * torch.randn_like(parameter))
    return model


def build(name: str, **sizes: Any) -> Callable[[], nn.Module]:
    def make() -> nn.Module:
        import timm

        return randomise(timm.create_model(name, num_classes=7, **sizes))

    return make


def image(height: int = 16, width: int = 16) -> Callable[[], torch.Tensor]:
    return lambda: torch.randn(2, 3, height, width, dtype=torch.float64)


def same(names: list[str], shape: Shape) -> tuple[tuple[str, Shape], ...]:
    return tuple((name, shape) for name in names)


VIT = {"img_size": 16, "patch_size": 8, "embed_dim": 12, "num_heads": 3, "depth": 2}
EVA = {"img_size": 24, "patch_size": 8, "embed_dim": 24, "num_heads": 3, "depth": 2}
BLOCKS = ["blocks.0.attn", "blocks.1.attn"]
MAXVIT = {
    "img_size": 32,
    "embed_dim": (12,),
    "depths": (1,),
    "stem_width": 8,
    "transformer_dim_head": 4,
    "transformer_window_size": (4, 2),
}


def _bare_attention() -> nn.Module:
    """What no constructor of a ViT offers: H·d ≠ D, a gate, and both norms at once."""
    from timm.layers.attention import Attention

    options = {"attn_head_dim": 5, "qkv_bias": True, "gated": True, "qk_norm": True, "scale_norm": True}
    return randomise(Attention(12, 3, norm_layer=nn.LayerNorm, **options))


def _parallel(name: str) -> Callable[[], nn.Module]:
    def make() -> nn.Module:
        from timm.models import vision_transformer

        return build("vit_tiny_patch16_224", **VIT, block_fn=getattr(vision_transformer, name), qkv_bias=True)()

    return make


def _volo() -> nn.Module:
    from timm.models.volo import VOLO

    sizes = {"img_size": 48, "embed_dims": (12, 30), "num_heads": (3, 5), "stem_hidden_dim": 8}
    return randomise(VOLO((1, 1), num_classes=7, **sizes, qkv_bias=True))


def _masked_tokens() -> dict[str, Any]:
    mask = torch.rand(2, 1, 6, 6) < 0.6
    return {"x": torch.randn(2, 6, 12, dtype=torch.float64), "attn_mask": mask | torch.eye(6, dtype=torch.bool)}


VIT_CASES = (
    Case("timm-vit", build("vit_tiny_patch16_224", **VIT), image(), same(BLOCKS, Shape(3, 3, 12, 4))),
    Case(
        "timm-vit-qk-norm",
        build("vit_tiny_patch16_224", **VIT, qk_norm=True, scale_attn_norm=True),
        lambda: {"x": image()(), "is_causal": True},
        same(BLOCKS, Shape(3, 3, 12, 4)),
    ),
    Case("timm-attention-masked", _bare_attention, _masked_tokens, (("", Shape(3, 3, 12, 5)),)),
    Case(
        "timm-vit-parallel",
        _parallel("ParallelThingsBlock"),
        image(),
        same([f"blocks.{i}.attns.{j}.attn" for i in (0, 1) for j in (0, 1)], Shape(3, 3, 12, 4)),
    ),
    Case(
        "timm-vit-parallel-scaling",
        _parallel("ParallelScalingBlock"),
        image(),
        same(["blocks.0", "blocks.1"], Shape(3, 3, 12, 4)),
    ),
    Case(
        "timm-vit-relpos",
        build("vit_relpos_base_patch16_224", **VIT, qkv_bias=True, qk_norm=True),
        image(),
        same(BLOCKS, Shape(3, 3, 12, 4)),
    ),
    Case(
        "timm-vit-relpos-shared",
        build("vit_srelpos_small_patch16_224", **VIT),
        image(),
        same(BLOCKS, Shape(3, 3, 12, 4)),
    ),
    Case("timm-deit", build("deit_tiny_distilled_patch16_224", **VIT), image(), same(BLOCKS, Shape(3, 3, 12, 4))),
    Case("timm-deit3", build("deit3_small_patch16_224", **VIT), image(), same(BLOCKS, Shape(3, 3, 12, 4))),
    Case(
        "timm-cait",
        build("cait_xxs24_224", **(VIT | {"depth": 1}), depth_token_only=1),
        image(),
        (
            ("blocks.0.attn", Shape(3, 3, 12, 4, "talking-heads")),
            ("blocks_token_only.0.attn", Shape(3, 3, 12, 4, storage="separate")),
        ),
    ),
    Case(
        "timm-xcit",
        build("xcit_nano_12_p8_224", **(VIT | {"depth": 1}), cls_attn_layers=1),
        image(24, 24),
        (
            ("blocks.0.attn", Shape(3, 3, 12, 4, "xca")),
            ("cls_attn_blocks.0.attn", Shape(3, 3, 12, 4, storage="separate")),
        ),
    ),
)

EVA_CASES = (
    Case(
        "timm-beit",
        build("beit_base_patch16_224", **(VIT | {"img_size": (16, 24)})),
        image(16, 24),
        same(BLOCKS, Shape(3, 3, 12, 4)),
    ),
    Case(
        "timm-beit-shared",
        build("beit_base_patch16_224", **VIT, use_shared_rel_pos_bias=True),
        image(),
        same(BLOCKS, Shape(3, 3, 12, 4)),
    ),
    Case("timm-eva02-fused", build("eva02_tiny_patch14_224", **EVA), image(24, 24), same(BLOCKS, Shape(3, 3, 24, 8))),
    Case(
        "timm-eva02-separate",
        build("eva02_base_patch14_224", **EVA, scale_attn_inner=True, qk_norm=True),
        image(24, 24),
        same(BLOCKS, Shape(3, 3, 24, 8, storage="separate")),
    ),
    Case(
        "timm-rope",
        build("vit_small_patch16_rope_224", **EVA),
        image(24, 24),
        same(BLOCKS, Shape(3, 3, 24, 8)),
    ),
    Case(
        "timm-rope-grouped",
        build(
            "vit_small_patch16_dinov3",
            **(EVA | {"embed_dim": 48, "num_heads": 6}),
            attn_type="rope",
            num_kv_heads=3,
            qkv_fused=False,
        ),
        image(24, 24),
        same(BLOCKS, Shape(6, 3, 48, 8, storage="separate, grouped-query")),
    ),
)

# Grids of 8 × 4 patches in windows of 4 × 2: odd blocks shift by (2, 1) and mask.
SWIN = {"img_size": (32, 16), "embed_dim": 12, "depths": (2,), "num_heads": (3,), "window_size": (4, 2)}
SWIN_BLOCKS = ["layers.0.blocks.0.attn", "layers.0.blocks.1.attn"]

WINDOW_CASES = (
    Case(
        "timm-swin", build("swin_tiny_patch4_window7_224", **SWIN), image(32, 16), same(SWIN_BLOCKS, Shape(3, 3, 12, 4))
    ),
    Case(
        "timm-swin-v2", build("swinv2_tiny_window8_256", **SWIN), image(32, 16), same(SWIN_BLOCKS, Shape(3, 3, 12, 4))
    ),
    Case(
        "timm-davit",
        build("davit_tiny", embed_dims=(12, 30), depths=(1, 1), num_heads=(3, 5), window_size=4),
        image(32, 24),  # grids of 8 × 6 and 4 × 3, padded to whole windows
        (
            ("stages.0.blocks.0.0.attn", Shape(3, 3, 12, 4)),
            ("stages.0.blocks.0.1.attn", Shape(3, 3, 12, 4, "channel")),
            ("stages.1.blocks.0.0.attn", Shape(5, 5, 30, 6)),
            ("stages.1.blocks.0.1.attn", Shape(5, 5, 30, 6, "channel")),
        ),
    ),
    Case(
        "timm-davit-v2",
        build("davit_base_fl", embed_dims=(12,), depths=(1,), num_heads=(3,), window_size=4),
        image(32, 24),
        (
            ("stages.0.blocks.0.spatial_block.attn", Shape(3, 3, 12, 4)),
            ("stages.0.blocks.0.channel_block.attn", Shape(3, 3, 12, 4, "channel")),
        ),
    ),
    Case(
        "timm-volo",
        _volo,
        image(48, 48),
        (
            ("network.0.0.attn", Shape(3, 3, 12, 4, "outlook", storage="separate")),
            ("network.2.0.attn", Shape(5, 5, 30, 6)),
            ("post_network.0.attn", Shape(5, 5, 30, 6, storage=KV)),
            ("post_network.1.attn", Shape(5, 5, 30, 6, storage=KV)),
        ),
    ),
    Case(
        "timm-maxvit-rw",
        build("maxvit_tiny_rw_224", **MAXVIT),
        image(32, 32),
        same(
            ["stages.0.blocks.0.attn_block.attn", "stages.0.blocks.0.attn_grid.attn"],
            Shape(3, 3, 12, 4, storage="fused head-interleaved"),
        ),
    ),
    Case(
        "timm-maxvit-tf",
        build("maxvit_tiny_tf_224", **MAXVIT, head_hidden_size=8),
        image(32, 32),
        same(["stages.0.blocks.0.attn_block.attn", "stages.0.blocks.0.attn_grid.attn"], Shape(3, 3, 12, 4)),
    ),
    Case(
        "timm-maxvit-nchw",
        build("maxvit_rmlp_pico_rw_256", **MAXVIT, transformer_use_nchw_attn=True),
        image(32, 32),
        same(
            ["stages.0.blocks.0.attn_block.attn", "stages.0.blocks.0.attn_grid.attn"],
            Shape(3, 3, 12, 4, storage="fused head-interleaved"),
        ),
    ),
    Case(
        "timm-coatnet",  # the first block goes from 20 to 30 channels in its output projection
        build(
            "coatnet_pico_rw_224",
            img_size=(32, 16),
            embed_dim=(20, 30),
            depths=(1, 2),
            block_type=("C", "T"),
            stem_width=8,
            transformer_dim_head=5,
        ),
        image(32, 16),
        (
            ("stages.1.blocks.0.attn", Shape(4, 4, 20, 5, storage="fused head-interleaved")),
            ("stages.1.blocks.1.attn", Shape(6, 6, 30, 5, storage="fused head-interleaved")),
        ),
    ),
)

PYRAMID = {"embed_dims": (12, 30), "num_heads": (3, 5), "depths": (1, 1), "sr_ratios": (2, 1), "mlp_ratios": (2, 2)}
STAGES = (
    ("stages.0.blocks.0.attn", Shape(3, 3, 12, 4, storage=KV)),
    ("stages.1.blocks.0.attn", Shape(5, 5, 30, 6, storage=KV)),
)

PYRAMID_CASES = (
    Case("timm-pvt-v2", build("pvt_v2_b2", **PYRAMID), image(32, 24), STAGES),
    Case("timm-pvt-v2-linear", build("pvt_v2_b2_li", **PYRAMID), image(32, 24), STAGES),
    Case(
        "timm-twins-pcpvt",
        build("twins_pcpvt_small", **PYRAMID, img_size=32),
        image(32, 32),
        (("blocks.0.0.attn", STAGES[0][1]), ("blocks.1.0.attn", STAGES[1][1])),
    ),
    Case(
        "timm-twins-svt",  # a grid of 6 × 4 in windows of 4 × 4: padded below
        build(
            "twins_svt_small",
            img_size=(24, 16),
            embed_dims=(12,),
            num_heads=(3,),
            depths=(2,),
            sr_ratios=(2,),
            mlp_ratios=(2,),
            wss=(4,),
        ),
        image(24, 16),
        (("blocks.0.0.attn", Shape(3, 3, 12, 4)), ("blocks.0.1.attn", Shape(3, 3, 12, 4, storage=KV))),
    ),
)

TIMM_CASES: tuple[Case, ...] = (*VIT_CASES, *EVA_CASES, *WINDOW_CASES, *PYRAMID_CASES)
