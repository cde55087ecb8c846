"""The Nyströmformer of the Long Range Arena: attention through landmarks, in linear time."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from wellcond.attention.adapters import build
from wellcond.attention.find import register_attention
from wellcond.attention.replay import Call, Mixing, Replay
from wellcond.attention.view import AttentionLayer
from wellcond.errors import WellcondError
from wellcond.lab.models.layers import PreNormBlock, SelfAttention
from wellcond.lab.tasks.checks import choice, whole

PADDING_LOGIT = -1e9  # added to the logit of padding; finite, so that a sequence of nothing but padding gives no NaN


class NystromAttention(SelfAttention):
    """Attention through landmarks, with a depthwise convolution of the values added.

    Y. Xiong et al., Nyströmformer, arXiv 2102.03902: with `q̃`, `k̃` the means of `landmarks` runs of tokens,
    `softmax(q k̃ᵀ) softmax(q̃ k̃ᵀ)⁺ softmax(q̃ kᵀ) v + conv(v)`, where queries, keys and values of padding are zero. With
    as many landmarks as tokens it is softmax attention.

    Args:
        width: of the tokens.
        heads: how many.
        landmarks: how many; they divide the number of tokens.
        kernel: of the convolution along the tokens, odd; 0 for none.
        iterations: of the pseudo-inverse.
        qk_norm: normalise queries and keys in each head, before anything else.
    """

    def __init__(
        self, width: int, heads: int, *, landmarks: int, kernel: int = 35, iterations: int = 6, qk_norm: bool = False
    ) -> None:  # fmt: skip
        super().__init__(width, heads, single=True, qk_norm=qk_norm)
        if whole("kernel", kernel, least=0) and kernel % 2 == 0:
            raise WellcondError(f"kernel = {kernel} has no middle: take an odd number, or 0 for no convolution")
        self.landmarks, self.iterations = whole("landmarks", landmarks), whole("iterations", iterations)
        self.conv = (
            nn.Conv2d(heads, heads, (kernel, 1), padding=(kernel // 2, 0), groups=heads, bias=False) if kernel else None
        )

    def mix(self, q: Tensor, k: Tensor, v: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        """Return the mixed values, `(B, heads, N, d)`, of queries, keys and values of that shape."""
        bias = None
        if attention_mask is not None:
            seen = attention_mask[:, None, :, None].to(q)
            q, k, v, bias = q * seen, k * seen, v * seen, PADDING_LOGIT * (1 - seen.mT)
        if self.landmarks == q.shape[2]:
            mixed = nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=bias)
        else:
            mixed = nystrom_attention(q, k, v, self.landmarks, self.iterations, bias)
        return mixed if self.conv is None else mixed + self.conv(v)


def nystrom_attention(
    q: Tensor, k: Tensor, v: Tensor, landmarks: int, iterations: int, bias: Tensor | None = None
) -> Tensor:
    """Return softmax attention through landmarks.

    Queries, keys and values are `(B, heads, N, d)`, N a multiple of `landmarks`; `bias` is added to the logits of keys,
    broadcasting to `(B, heads, landmarks, N)`.

    >>> q, k, v = torch.randn(3, 1, 2, 8, 4, dtype=torch.float64)
    >>> exact = nn.functional.scaled_dot_product_attention(4 * q, 4 * k, v)
    >>> torch.allclose(nystrom_attention(4 * q, 4 * k, v, landmarks=8, iterations=60), exact)
    True
    """
    if q.shape[2] % landmarks:
        raise WellcondError(f"{landmarks} landmarks do not divide {q.shape[2]} tokens: take a divisor")
    q = q * q.shape[-1] ** -0.5
    q_marks, k_marks = (x.reshape(*x.shape[:2], landmarks, -1, x.shape[3]).mean(3) for x in (q, k))
    left, middle = (q @ k_marks.mT).softmax(-1), (q_marks @ k_marks.mT).softmax(-1)
    logits = q_marks @ k.mT
    right = (logits if bias is None else logits + bias).softmax(-1)
    mixed: Tensor = left @ pseudo_inverse(middle, iterations) @ (right @ v)
    return mixed


def pseudo_inverse(matrix: Tensor, iterations: int) -> Tensor:
    """Return the Moore-Penrose inverse of a matrix whose rows sum to one, by iteration.

    M. K. Razavi et al., arXiv 1405.2205 (2014): `Z ← Z (13 − A Z (15 − A Z (7 − A Z))) / 4`, from `Aᵀ / (‖A‖₁ ‖A‖∞)`.
    Each matrix has its own norms (the authors' code takes the largest of the batch, unless told not to), so that what
    comes out for one example does not depend on the others.

    >>> matrix = torch.tensor([[0.9, 0.1], [0.2, 0.8]], dtype=torch.float64)
    >>> torch.allclose(pseudo_inverse(matrix, 10) @ matrix, torch.eye(2, dtype=torch.float64))
    True
    """
    one = torch.eye(matrix.shape[-1], dtype=matrix.dtype, device=matrix.device)
    inverse = matrix.mT / matrix.sum(-2).amax(-1)[..., None, None]  # ‖A‖∞ is 1
    for _ in range(iterations):
        near = matrix @ inverse
        inverse = 0.25 * inverse @ (13 * one - near @ (15 * one - near @ (7 * one - near)))
    return inverse


class Nystromformer(nn.Module):
    """The encoder with which Nyströmformer's authors went through the Long Range Arena, or the same with softmax.

    github.com/mlpen/Nystromformer, `LRA/code`. Pre-norm, learned positions, the mean over the padded length (padding
    counts as zero). A pair goes through one tower, and `[a, b, a b, a − b]` to the head. What is shorter than `length`
    is padded here.

    Args:
        shape: of the task: vocabulary, tokens, classes, and sequences (2 of a pair).
        width: of the tokens.
        depth: number of blocks.
        heads: of attention.
        mlp: width inside the blocks' and the head's MLP.
        dropout: everywhere; with softmax of the attention probabilities too.
        attention: nystrom, or softmax.
        landmarks: they divide `length`.
        kernel: of the convolution of the values; 0 for none.
        iterations: of the pseudo-inverse.
        length: to pad to. None doubles the landmarks until they reach the tokens: 2000 become 2048, 4000 become 4096.
        qk_norm: normalise queries and keys in each head.
        layer_scale: what the factors of the branches begin with; none unless it is given.

    >>> model = Nystromformer({"vocabulary": 32, "tokens": 2000, "classes": 10})
    >>> sum(parameter.numel() for parameter in model.parameters())
    209942
    """

    def __init__(
        self, shape: Mapping[str, int], width: int = 64, depth: int = 2, heads: int = 2, mlp: int = 128,
        dropout: float = 0.1, attention: str = "nystrom", landmarks: int = 64, kernel: int = 35, iterations: int = 6,
        length: int | None = None, qk_norm: bool = False, layer_scale: float | None = None,
    ) -> None:  # fmt: skip
        super().__init__()
        self.length = _length(shape["tokens"], whole("landmarks", landmarks), length)
        through_landmarks = choice("attention", attention, ("nystrom", "softmax")) == "nystrom"
        self.words = nn.Embedding(shape["vocabulary"], width)
        self.positions = nn.Parameter(0.02 * torch.randn(self.length, width))
        nn.init.normal_(self.words.weight, std=0.02)
        self.dropout = nn.Dropout(dropout)
        self.blocks = nn.ModuleList(
            PreNormBlock(
                width,
                NystromAttention(
                    width, heads, landmarks=landmarks, kernel=kernel, iterations=iterations, qk_norm=qk_norm
                )
                if through_landmarks
                else SelfAttention(width, heads, dropout=dropout, single=True, qk_norm=qk_norm),
                nn.Sequential(nn.Linear(width, mlp), nn.GELU(), nn.Dropout(dropout), nn.Linear(mlp, width)),
                dropout=dropout,
                layer_scale=layer_scale,
            )
            for _ in range(whole("depth", depth))
        )
        self.norm = nn.LayerNorm(width)
        features = 4 * width if shape.get("sequences", 1) == 2 else width
        self.head = nn.Sequential(nn.Linear(features, mlp), nn.ReLU(), nn.Linear(mlp, shape["classes"]))

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        """Return logits `(B, classes)` of ids `(B, T)`, or `(B, 2, T)` of a pair; the mask is 0 on padding."""
        if input_ids.ndim == 2:
            features = self.pooled(input_ids, attention_mask)
        else:
            mask = None if attention_mask is None else attention_mask.flatten(0, 1)
            pooled = self.pooled(input_ids.flatten(0, 1), mask)
            a, b = pooled[0::2], pooled[1::2]
            features = torch.cat([a, b, a * b, a - b], -1)
        logits: Tensor = self.head(features)
        return logits

    def pooled(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        """Return the mean of the tokens, `(B, width)`, over the padded length."""
        missing = self.length - input_ids.shape[1]
        if missing < 0:
            raise WellcondError(f"{input_ids.shape[1]} tokens are more than the model's {self.length}: raise length")
        if missing:
            mask = torch.ones_like(input_ids) if attention_mask is None else attention_mask
            input_ids, attention_mask = (nn.functional.pad(x, (0, missing)) for x in (input_ids, mask))
        x = self.dropout(self.words(input_ids) + self.positions)
        for block in self.blocks:
            x = block(x, attention_mask)
        x = self.norm(x)
        pooled: Tensor = (x if attention_mask is None else x * attention_mask[..., None].to(x)).mean(1)
        return pooled


def _length(tokens: int, landmarks: int, length: int | None) -> int:
    if length is None:
        length = landmarks
        while length < tokens:
            length *= 2
    if whole("length", length) < tokens or length % landmarks:
        raise WellcondError(
            f"length = {length} must be a multiple of {landmarks} landmarks and hold {tokens} tokens, as "
            f"{landmarks * -(-tokens // landmarks)} does"
        )
    return length


def describe_nystrom(module: Any, name: str) -> AttentionLayer:
    """Return the view of a `NystromAttention`; its replay is the module's own function, with the mask it was given."""
    heads = module.num_heads
    query, key, value = (build.separate(module, name, child, heads) for child in ("query", "key", "value"))
    output = build.output(module, name, "out", heads)
    scale = query.width**-0.5
    return AttentionLayer(name, "nystrom", query, key, value, output, scale=scale, replay=Replay(_mixing))


def _mixing(call: Call) -> Mixing:
    return partial(call.module.attend, attention_mask=call.argument("attention_mask"))


register_attention(NystromAttention, describe_nystrom)
