"""Small models, as wide and deep as wanted: a ViT, an encoder of tokens that names a class, and a GPT."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from wellcond.lab.models.layers import mean_of_tokens
from wellcond.lab.tasks.checks import library


class Encoder(nn.Module):
    """A pre-norm encoder of tokens with learned positions, averaged over what is not padding."""

    def __init__(
        self, shape: Mapping[str, int], width: int = 64, depth: int = 2, heads: int = 2, mlp: float = 2.0,
        dropout: float = 0.0,
    ) -> None:  # fmt: skip
        super().__init__()
        self.tokens = nn.Embedding(shape["vocabulary"], width)
        self.positions = nn.Parameter(0.02 * torch.randn(shape["tokens"], width))
        nn.init.normal_(self.tokens.weight, std=0.02)
        layers = (
            nn.TransformerEncoderLayer(
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
            x = layer(x, src_key_padding_mask=hidden)
        logits: Tensor = self.head(mean_of_tokens(self.norm(x), attention_mask))
        return logits


def gpt(
    shape: Mapping[str, int], width: int = 128, depth: int = 4, heads: int = 4, dropout: float = 0.0
) -> nn.Module:  # fmt: skip
    """Build GPT-2 of transformers, as wide and deep as wanted, for the task's words and length."""
    transformers = library("transformers", "hf")
    model: nn.Module = transformers.GPT2LMHeadModel(
        transformers.GPT2Config(
            vocab_size=shape["vocabulary"], n_positions=shape["tokens"], n_embd=width, n_layer=depth, n_head=heads,
            resid_pdrop=dropout, embd_pdrop=dropout, attn_pdrop=dropout, use_cache=False,
        )
    )  # fmt: skip
    return model


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
