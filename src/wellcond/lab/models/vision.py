"""A small ViT of timm's, built to fit the images."""

from __future__ import annotations

from collections.abc import Mapping

from torch import nn


def small_vit(
    shape: Mapping[str, int], width: int = 64, depth: int = 4, heads: int = 4, patch: int = 2, mlp: float = 4.0,
    drop_path: float = 0.0, dropout: float = 0.0,
) -> nn.Module:  # fmt: skip
    """Build a ViT of timm, as wide and deep as wanted, for the task's images and classes."""
    from timm.models.vision_transformer import VisionTransformer

    model: nn.Module = VisionTransformer(
        img_size=shape["size"],
        patch_size=patch,
        in_chans=shape["channels"],
        num_classes=shape["classes"],
        embed_dim=width,
        depth=depth,
        num_heads=heads,
        mlp_ratio=mlp,
        drop_path_rate=drop_path,
        proj_drop_rate=dropout,
    )
    return model
