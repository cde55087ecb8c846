"""Small models, as wide and deep as wanted: a ViT, and an encoder of tokens that names a class."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from wellcond.lab.models.layers import PreNormBlock, SelfAttention, mean_of_tokens
from wellcond.lab.models.switches import first_scale, normalises


class Encoder(nn.Module):
    """A pre-norm encoder of tokens with learned positions, averaged over what is not padding.

    Its layers are torch's own; with QK-norm or LayerScale, which these do not have, they are the laboratory's, with
    weights from the same law.
    """

    def __init__(
        self, shape: Mapping[str, int], width: int = 64, depth: int = 2, heads: int = 2, mlp: float = 2.0,
        dropout: float = 0.0, qk_norm: bool = False, layer_scale: float | None = None,
    ) -> None:  # fmt: skip
        super().__init__()
        self.tokens = nn.Embedding(shape["vocabulary"], width)
        self.positions = nn.Parameter(0.02 * torch.randn(shape["tokens"], width))
        nn.init.normal_(self.tokens.weight, std=0.02)
        self.switched = normalises(qk_norm) or first_scale(layer_scale) is not None
        layers = (
            _switched_layer(width, heads, round(mlp * width), dropout, qk_norm, layer_scale)
            if self.switched
            else nn.TransformerEncoderLayer(
                width, heads, round(mlp * width), dropout, "gelu", batch_first=True, norm_first=True
            )
            for _ in range(depth)
        )
        self.layers = nn.ModuleList(layers)  # nn.TransformerEncoder would begin with equal copies
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, shape["classes"])

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        """Return logits `(B, classes)`."""
        hidden = attention_mask == 0 if attention_mask is not None else None
        x = self.tokens(input_ids) + self.positions[: input_ids.shape[1]]
        for layer in self.layers:
            x = layer(x, attention_mask) if self.switched else layer(x, src_key_padding_mask=hidden)
        logits: Tensor = self.head(mean_of_tokens(self.norm(x), attention_mask))
        return logits


def _switched_layer(
    width: int, heads: int, mlp: int, dropout: float, qk_norm: bool, layer_scale: float | None
) -> PreNormBlock:  # fmt: skip
    """`nn.TransformerEncoderLayer` with QK-norm or LayerScale, from the same law of weights."""
    attention = SelfAttention(width, heads, dropout=dropout, qk_norm=qk_norm)
    bound = math.sqrt(6 / (width + 3 * width))  # Xavier's, of queries, keys and values as one matrix
    for projection in (attention.query, attention.key, attention.value):
        nn.init.uniform_(projection.weight, -bound, bound)
        nn.init.zeros_(projection.bias)
    nn.init.zeros_(attention.out.bias)
    inside = nn.Sequential(nn.Linear(width, mlp), nn.GELU(), nn.Dropout(dropout), nn.Linear(mlp, width))
    return PreNormBlock(width, attention, inside, dropout=dropout, layer_scale=layer_scale)


def small_vit(
    shape: Mapping[str, int], width: int = 64, depth: int = 4, heads: int = 4, patch: int = 2, mlp: float = 4.0,
    drop_path: float = 0.0, dropout: float = 0.0, qk_norm: bool = False, layer_scale: float | None = None,
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
        qk_norm=normalises(qk_norm),
        init_values=first_scale(layer_scale),
    )
    return model
