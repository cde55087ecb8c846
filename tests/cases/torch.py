"""torch.nn and torchvision, tiny: the real modules with D, H, G and d all different."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from tests.cases.case import Case, Shape
from tests.cases.timm import image, randomise, same


def _tokens(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64)


def _separate() -> nn.Module:
    return nn.MultiheadAttention(12, 3, kdim=10, vdim=7, batch_first=True)


def _torchvision_swin(block: str, downsample: str) -> nn.Module:
    """Two stages; in the second a window is as high as the grid, so that only the width shifts."""
    from torchvision.models import swin_transformer as swin

    sizes: dict[str, Any] = {"embed_dim": 12, "depths": [2, 2], "num_heads": [3, 2], "window_size": [4, 2]}
    blocks = {"block": getattr(swin, block), "downsample_layer": getattr(swin, downsample)}
    return randomise(swin.SwinTransformer([4, 4], num_classes=7, **sizes, **blocks))


def _torchvision_vit() -> nn.Module:
    from torchvision.models import VisionTransformer

    return randomise(VisionTransformer(16, 8, num_layers=1, num_heads=3, hidden_dim=12, mlp_dim=20, num_classes=7))


def _torchvision_maxvit() -> nn.Module:
    from torchvision.models import MaxVit

    return randomise(MaxVit((32, 32), 8, 2, [12], [1], head_dim=4, stochastic_depth_prob=0.0, num_classes=7))


SWIN_LAYERS = (
    *same(["features.1.0.attn", "features.1.1.attn"], Shape(3, 3, 12, 4)),
    *same(["features.3.0.attn", "features.3.1.attn"], Shape(2, 2, 24, 12)),
)

TORCH_CASES: tuple[Case, ...] = (
    Case(
        "torch-mha",
        lambda: nn.MultiheadAttention(12, 3),
        lambda: (_tokens(5, 2, 12), _tokens(7, 2, 12), _tokens(7, 2, 12)),
        (("", Shape(3, 3, 12, 4)),),
    ),
    Case(
        "torch-mha-separate",
        _separate,
        lambda: (_tokens(2, 5, 12), _tokens(2, 6, 10), _tokens(2, 6, 7)),
        (("", Shape(3, 3, 12, 4, storage="separate")),),
    ),
    Case(
        "torch-encoder",
        lambda: nn.TransformerEncoderLayer(15, 3, dim_feedforward=21, batch_first=True),
        lambda: _tokens(2, 4, 15),
        (("self_attn", Shape(3, 3, 15, 5)),),
    ),
    Case(
        "torch-decoder",
        lambda: nn.TransformerDecoderLayer(15, 3, dim_feedforward=21, batch_first=True),
        lambda: (_tokens(2, 4, 15), _tokens(2, 6, 15)),
        (("self_attn", Shape(3, 3, 15, 5)), ("multihead_attn", Shape(3, 3, 15, 5, cross=True))),
    ),
    Case(
        "torchvision-vit",
        _torchvision_vit,
        image(),
        (("encoder.layers.encoder_layer_0.self_attention", Shape(3, 3, 12, 4)),),
    ),
    Case(
        "torchvision-swin",
        lambda: _torchvision_swin("SwinTransformerBlock", "PatchMerging"),
        image(24, 32),  # grids of 6 × 8 and 3 × 4
        SWIN_LAYERS,
    ),
    Case(
        "torchvision-swin-v2",
        lambda: _torchvision_swin("SwinTransformerBlockV2", "PatchMergingV2"),
        image(24, 32),
        SWIN_LAYERS,
    ),
    Case(
        "torchvision-maxvit",
        _torchvision_maxvit,
        image(32, 32),
        same(
            [f"blocks.0.layers.0.layers.{part}_attention.attn_layer.1" for part in ("window", "grid")],
            Shape(3, 3, 12, 4),
        ),
    ),
)
