"""Layers of the laboratory's text models: softmax attention, a pre-norm block, the mean over tokens."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from wellcond.errors import WellcondError
from wellcond.lab.models.switches import branch_scale, head_norms
from wellcond.lab.tasks.checks import whole


class SelfAttention(nn.Module):
    """Softmax attention of tokens to each other, `softmax(Q Kᵀ / √d) V` per head; padding is not attended to.

    Args:
        width: of the tokens, a multiple of `heads`.
        heads: how many.
        bias: whether the four linear maps have one.
        dropout: of the attention probabilities, in training.
        single: compute between the projections in float32 at least, also under autocast.
        qk_norm: normalise queries and keys in each head, before their product.

    >>> attention = SelfAttention(8, 2)
    >>> attention(torch.zeros(3, 5, 8), torch.ones(3, 5)).shape
    torch.Size([3, 5, 8])
    """

    def __init__(
        self, width: int, heads: int, *, bias: bool = True, dropout: float = 0.0, single: bool = False,
        qk_norm: bool = False,
    ) -> None:  # fmt: skip
        super().__init__()
        if whole("width", width) % whole("heads", heads):
            raise WellcondError(f"width = {width} does not split into {heads} heads: take a multiple of {heads}")
        self.num_heads, self.dropout, self.single = heads, dropout, single
        self.query = nn.Linear(width, width, bias=bias)
        self.key = nn.Linear(width, width, bias=bias)
        self.value = nn.Linear(width, width, bias=bias)
        self.out = nn.Linear(width, width, bias=bias)
        self.q_norm, self.k_norm = head_norms(width // heads, qk_norm)

    def forward(self, x: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        """Return what is added to the tokens `(B, N, width)`; the mask is `(B, N)`, 0 on padding."""
        q, k, v = (f(x).unflatten(-1, (self.num_heads, -1)).transpose(1, 2) for f in (self.query, self.key, self.value))
        if self.single:
            wide = torch.promote_types(q.dtype, torch.float32)
            with torch.autocast(x.device.type, enabled=False):
                mixed = self.attend(q.to(wide), k.to(wide), v.to(wide), attention_mask).to(q.dtype)
        else:
            mixed = self.attend(q, k, v, attention_mask)
        out: Tensor = self.out(mixed.transpose(1, 2).flatten(2))
        return out

    def attend(self, q: Tensor, k: Tensor, v: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        """Normalise queries and keys where that is wanted, and `mix`."""
        return self.mix(self.q_norm(q), self.k_norm(k), v, attention_mask)

    def mix(self, q: Tensor, k: Tensor, v: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        """Return the mixed values, `(B, heads, N, d)`, of queries, keys and values of that shape."""
        seen = None if attention_mask is None else attention_mask[:, None, None].bool()
        dropout = self.dropout if self.training else 0.0
        return nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=seen, dropout_p=dropout)


class PreNormBlock(nn.Module):
    """`x + attention(norm(x))`, then `x + mlp(norm(x))`.

    `attention` takes `(B, N, width)` and the mask, `mlp` the former; `dropout` is of both branches, `eps` of the norms;
    `layer_scale` is what the factors of both branches begin with, none unless it is given.
    """

    norm_first = True  # as torch's own blocks say it

    def __init__(
        self, width: int, attention: SelfAttention, mlp: nn.Module, *, dropout: float = 0.0, eps: float = 1e-5,
        layer_scale: float | None = None,
    ) -> None:  # fmt: skip
        super().__init__()
        self.norm_1, self.attention = nn.LayerNorm(width, eps), attention
        self.norm_2, self.mlp = nn.LayerNorm(width, eps), mlp
        self.scale_1, self.scale_2 = branch_scale(width, layer_scale), branch_scale(width, layer_scale)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        """Return `(B, N, width)`; the mask is `(B, N)`, 0 on padding."""
        x = x + self.dropout(self.scale_1(self.attention(self.norm_1(x), attention_mask)))
        out: Tensor = x + self.dropout(self.scale_2(self.mlp(self.norm_2(x))))
        return out


def mean_of_tokens(x: Tensor, attention_mask: Tensor | None = None) -> Tensor:
    """Return the mean over the tokens that are not padding, `(B, width)`.

    >>> mean_of_tokens(torch.tensor([[[1.0], [3.0], [8.0]]]), torch.tensor([[1, 1, 0]]))
    tensor([[2.]])
    """
    seen = torch.ones_like(x[..., :1]) if attention_mask is None else attention_mask[..., None].to(x)
    return (x * seen).sum(1) / seen.sum(1).clamp_min(1.0)
