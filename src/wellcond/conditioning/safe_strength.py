r"""The largest shift that leaves attention to other tokens: no head gives its own token more than a share.

With $W_Q + \lambda C_Q$ and $W_K + \lambda C_K$ the moments of `SelfBias` are polynomials in λ: the mean
$s\,tr(Q^T K)$ of degree 2 and the variance $s^2 tr(Q^T Q K^T K)$ of degree 4. Their coefficients are computed once for
each head, so that finding λ costs no more matrix products than looking at one.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from wellcond.attention.view import AttentionLayer
from wellcond.conditioning.guarantee import TOKENS, SelfBias, has_self_bias
from wellcond.errors import SchemeError
from wellcond.propagation.thresholds import Thresholds

SHORTEST_SEQUENCE = 16  # tokens that a chosen strength provides for: in a longer sequence the own column gets less
SAFE = "safe"  # the strength that is chosen here
CHOSEN = "the largest safe strength"
PAPER_STRENGTH = 10.0  # the strength of Spectral Conditioning's tables; no strength is chosen above it
STRENGTH_WITHOUT_LIMIT = 1.0  # where no layer's attention to itself can be computed
ONE_HOT_MARGIN = 2.0  # a margin with which a row is one-hot, and slow to integrate
SMALLEST_STRENGTH = 1e-3  # a shift that is worth the name
SEARCH_START = 1 / 64  # where the search begins
SEARCH_HALVINGS = 12
HEADS_INTEGRATED = 3  # heads of a layer whose rows are integrated; the estimate is a few per cent off
STRENGTH_DIGITS = 3

Pair = tuple[Tensor, Tensor]  # W and C, (heads, D, d) each
Logits = tuple[AttentionLayer, Pair, Pair]  # a layer with those of its queries and of its keys


@dataclass(frozen=True)
class LogitMoments:
    """The self-bias of each query head of a layer as polynomials in λ, lowest power first: `(heads, 3)`, `(heads, 5)`.

    >>> import wellcond as wc
    >>> layer = wc.attention_layers(torch.nn.MultiheadAttention(8, 2))[0]
    >>> query, key = layer.query.read().double(), layer.key.read().double()
    >>> one = torch.eye(8, 4).double().expand(2, 8, 4)
    >>> moments = LogitMoments.of(layer, (query, one), (key, one))
    >>> round(moments.at(100.0)[0].mean / (layer.scale * 4 * 100**2), 1)
    1.0
    """

    layer: str
    mean: Tensor
    square: Tensor

    @classmethod
    def of(cls, layer: AttentionLayer, query: Pair, key: Pair) -> LogitMoments:
        """Compute them from W and C of the queries and of the keys."""
        queries = [tensor.double() for tensor in query]
        keys = [tensor.double().repeat_interleave(len(query[0]) // len(key[0]), dim=0) for tensor in key]
        scale = layer.scale or 0.0
        mean = queries[0].new_zeros(len(queries[0]), 3)
        square = queries[0].new_zeros(len(queries[0]), 5)
        for i, a in enumerate(queries):
            for j, b in enumerate(keys):
                mean[:, i + j] += scale * (a * b).sum((1, 2))
        for i, a in enumerate(_gram(*queries)):
            for j, b in enumerate(_gram(*keys)):
                square[:, i + j] += scale**2 * (a * b).sum((1, 2))
        return cls(layer.name, mean, square)

    def at(self, strength: float) -> list[SelfBias]:
        """Return the self-bias of each head with W + λ C."""
        power = strength ** torch.arange(5, dtype=torch.float64)
        means, squares = self.mean @ power[:3].to(self.mean), self.square @ power.to(self.square)
        return [
            SelfBias(self.layer, head, float(mean), math.sqrt(max(float(square), 0.0)))
            for head, (mean, square) in enumerate(zip(means, squares, strict=True))
        ]


def _gram(weight: Tensor, correction: Tensor) -> list[Tensor]:
    """Return `(W + λ C)ᵀ (W + λ C)` by powers of λ."""
    across = weight.mT @ correction
    return [weight.mT @ weight, across + across.mT, correction.mT @ correction]


def moments_of(logits: Iterable[Logits]) -> list[LogitMoments]:
    """Return the polynomials of every layer that has a self-bias."""
    return [
        LogitMoments.of(layer, query, key) for layer, query, key in logits if has_self_bias(layer, query[0], key[0])
    ]


def strongest_at(
    moments: Sequence[LogitMoments], strength: float, tokens: int = TOKENS
) -> tuple[SelfBias, LogitMoments] | None:
    """Return the head that attends to itself most with W + λ C, and its layer.

    An estimate orders the heads of a layer, and the first few of each are compared exactly where it is a close call.
    """
    first = [
        (bias, each)
        for each in moments
        for bias in heapq.nlargest(HEADS_INTEGRATED, each.at(strength), key=lambda bias: bias.margin(tokens))
    ]
    clear = max(first, key=lambda found: found[0].margin(tokens), default=None)
    if clear is None or clear[0].margin(tokens) > ONE_HOT_MARGIN:
        return clear
    return max(first, key=lambda found: found[0].row(tokens).own)


def largest(moments: Sequence[LogitMoments], level: float, limit: float, tokens: int = TOKENS) -> float:
    """Return the strength up to which no head's own column gets more than `level`; 0 where W itself does.

    Down from the limit: the head that is worst there says how far, until the worst head is within the level.
    """
    found = limit
    while found > SEARCH_START and any(
        bias.margin(tokens) > ONE_HOT_MARGIN for each in moments for bias in each.at(found / 2)
    ):
        found /= 2
    while found > 0:
        worst = strongest_at(moments, found, tokens)
        if worst is None or worst[0].row(tokens).own <= level:
            break
        found = _crossing(worst[1], worst[0].head, level, found, tokens)
    return found


def _crossing(moments: LogitMoments, head: int, level: float, above: float, tokens: int) -> float:
    """Return the least strength at which the own column of one head gets more than a level, below one that does."""

    def exceeded(strength: float) -> bool:
        return moments.at(strength)[head].row(tokens).own > level

    if exceeded(0.0):
        return 0.0
    low, high = 0.0, min(SEARCH_START, above)
    while high < above and not exceeded(high):
        low, high = high, min(2 * high, above)
    for _ in range(SEARCH_HALVINGS):
        middle = (low + high) / 2
        low, high = (low, middle) if exceeded(middle) else (middle, high)
    return low


def safe_strength(logits: Iterable[Logits]) -> float:
    """Return the largest λ at which no head gives its own token more than `Thresholds.own`, to three digits.

    The length of the sequences is not known here, and the own column gets most in short ones: 16 tokens are provided
    for, with which a small ViT on digits (17 tokens) trains at the λ that is chosen; that for 256 tokens failed there.

    Layers whose attention to themselves cannot be computed (QK norm, cross-attention, a scale that is not one number)
    set no limit and get what the others allow; 1 where there are no others.

    Args:
        logits: the layers to shift, C being the identity, and zero for a role that is not shifted.
    """
    moments = moments_of(logits)
    if not moments:
        return STRENGTH_WITHOUT_LIMIT
    level = Thresholds().own
    found = largest(moments, level, PAPER_STRENGTH, SHORTEST_SEQUENCE)
    if found < SMALLEST_STRENGTH:
        worst = strongest_at(moments, 0.0, SHORTEST_SEQUENCE)
        assert worst is not None
        own = worst[0].row(SHORTEST_SEQUENCE).own
        raise SchemeError(
            f"no strength is safe: '{worst[0].layer}' head {worst[0].head} gives {own:.0%} to a token's own "
            f"column of {SHORTEST_SEQUENCE} without a shift, and {level:.0%} is the limit. Say strength=… (the paper's "
            f"is {PAPER_STRENGTH:g}), or leave the layer out with layers=…"
        )
    unit = 10.0 ** (math.floor(math.log10(found)) - STRENGTH_DIGITS + 1)
    return round(math.floor(found / unit + 1e-9) * unit, 12)
