"""The Crammed BERT: a pre-norm encoder without biases, to fill in hidden tokens or to name a class."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from wellcond.errors import WellcondError
from wellcond.lab.models.layers import PreNormBlock, SelfAttention, mean_of_tokens
from wellcond.lab.tasks.checks import whole

NORM_EPS = 1e-12  # as in BERT


class ScaledSinusoids(nn.Module):
    """Sines and cosines of the position at `width / 2` frequencies from 1 to 1/10000, times one learned number.

    W. Hua et al., Transformer Quality in Linear Time, arXiv 2202.10447, section 2. The number begins at `1/√width`.

    >>> ScaledSinusoids(4, 2).table.round(decimals=2)
    tensor([[0.0000, 1.0000, 0.0000, 1.0000],
            [0.8400, 0.5400, 0.0100, 1.0000]])
    """

    def __init__(self, width: int, tokens: int) -> None:
        super().__init__()
        if width % 2:
            raise WellcondError(f"width = {width} does not split into sines and cosines: take an even number")
        frequencies = 10_000.0 ** (-torch.arange(0, width, 2, dtype=torch.float64) / width)
        angles = torch.arange(tokens, dtype=torch.float64)[:, None] * frequencies
        self.table: Tensor
        self.register_buffer(
            "table", torch.stack([angles.sin(), angles.cos()], -1).flatten(1).float(), persistent=False
        )
        self.scale = nn.Parameter(torch.tensor([width**-0.5]))

    def forward(self, tokens: int) -> Tensor:
        """Return the positions, `(tokens, width)`."""
        if tokens > len(self.table):
            raise WellcondError(f"{tokens} tokens are more than the model's {len(self.table)} positions")
        return self.scale * self.table[:tokens]


class GatedGelu(nn.Module):
    """`x · gelu(gate)`, from `(…, 2 n)` to `(…, n)`; N. Shazeer, arXiv 2002.05202.

    >>> GatedGelu()(torch.ones(3, 8)).shape
    torch.Size([3, 4])
    """

    def forward(self, both: Tensor) -> Tensor:
        """Return the product; the first half is `x`."""
        x, gate = both.chunk(2, -1)
        return x * nn.functional.gelu(gate)


class CrammedEncoder(nn.Module):
    """The encoder of the Crammed BERT; its names do not depend on what comes after it, so weights load by name."""

    def __init__(
        self, vocabulary: int, tokens: int, width: int, depth: int, heads: int, mlp: int, dropout: float,
        qk_norm: bool = False, layer_scale: float | None = None,
    ) -> None:  # fmt: skip
        super().__init__()
        if whole("mlp", mlp) % 2:
            raise WellcondError(f"mlp = {mlp} does not split into values and gates: take an even number")
        self.words = nn.Embedding(vocabulary, width)
        self.positions = ScaledSinusoids(width, tokens)
        self.norm_words = nn.LayerNorm(width, NORM_EPS)
        self.dropout = nn.Dropout(dropout)
        self.blocks = nn.ModuleList(
            PreNormBlock(
                width,
                SelfAttention(width, heads, bias=False, dropout=dropout, qk_norm=qk_norm),
                nn.Sequential(nn.Linear(width, mlp, bias=False), GatedGelu(), nn.Linear(mlp // 2, width, bias=False)),
                dropout=dropout,
                eps=NORM_EPS,
                layer_scale=layer_scale,
            )
            for _ in range(whole("depth", depth))
        )
        self.norm = nn.LayerNorm(width, NORM_EPS)

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        """Return features `(B, T, width)`."""
        x = self.dropout(self.norm_words(self.words(input_ids) + self.positions(input_ids.shape[1])))
        for block in self.blocks:
            x = block(x, attention_mask)
        out: Tensor = self.norm(x)
        return out


class CrammedBert(nn.Module):
    """The BERT of a day on one GPU, to fill in hidden tokens; or, where the task has classes, to name one.

    J. Geiping, T. Goldstein, Cramming, arXiv 2212.14034; github.com/JonasGeiping/cramming, `crammed-bert`, but with
    three matrices for query, key and value instead of one. All matrices begin as N(0, 0.02²). Hidden tokens are read
    off by the embedding itself. For a class the tokens are averaged (those that are not padding; the authors' code
    counts padding too), mapped to `head_width`, tanh, dropout, and mapped to the classes. Pretrained weights go into
    such a model with `load_state_dict(…, strict=False)`: only `pooler` and `head` are not in them.

    Args:
        shape: of the task: vocabulary, tokens, and classes or none.
        width: of the tokens.
        depth: number of blocks.
        heads: of attention.
        mlp: width of values and gates together.
        dropout: in the encoder; the authors pretrain with 0 and fine-tune with 0.1.
        head_width: between the average and the classes.
        head_dropout: there.
        qk_norm: normalise queries and keys in each head.
        layer_scale: what the factors of the branches begin with; none unless it is given.

    >>> text, small = {"vocabulary": 100, "tokens": 16}, {"width": 32, "depth": 2, "heads": 4, "mlp": 64}
    >>> CrammedBert(text, **small)(torch.zeros(3, 16, dtype=torch.int64)).shape
    torch.Size([3, 16, 100])
    >>> CrammedBert(text | {"classes": 2}, **small)(torch.zeros(3, 5, dtype=torch.int64)).shape
    torch.Size([3, 2])
    """

    def __init__(
        self, shape: Mapping[str, int], width: int = 768, depth: int = 16, heads: int = 12, mlp: int = 3072,
        dropout: float = 0.0, head_width: int = 1024, head_dropout: float = 0.1, qk_norm: bool = False,
        layer_scale: float | None = None,
    ) -> None:  # fmt: skip
        super().__init__()
        self.encoder = CrammedEncoder(
            shape["vocabulary"], shape["tokens"], width, depth, heads, mlp, dropout, qk_norm, layer_scale
        )
        self.pooler: nn.Module | None = None
        if "classes" in shape:
            self.pooler = nn.Sequential(nn.Linear(width, head_width), nn.Tanh(), nn.Dropout(head_dropout))
            self.head = nn.Linear(head_width, shape["classes"])
        for module in self.modules():
            if isinstance(module, nn.Linear | nn.Embedding):
                nn.init.normal_(module.weight, std=0.02)
            if isinstance(module, nn.Linear) and module.bias is not None:
                nn.init.zeros_(module.bias)

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor | None = None, token_type_ids: Tensor | None = None
    ) -> Tensor:
        """Return logits.

        Args:
            input_ids: `(B, T)`.
            attention_mask: `(B, T)`, 0 on padding.
            token_type_ids: of joined pairs; this BERT does not read them.

        Returns:
            `(B, T, vocabulary)`, or `(B, classes)`.
        """
        x = self.encoder(input_ids, attention_mask)
        if self.pooler is None:
            return nn.functional.linear(x, self.encoder.words.weight)
        logits: Tensor = self.head(self.pooler(mean_of_tokens(x, attention_mask)))
        return logits
