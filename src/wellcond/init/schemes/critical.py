"""Critical initialisation: query and key variance from signal propagation (arXiv 2505.24333)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated, ClassVar

from wellcond._core.argument_types import Positive, Range
from wellcond._core.safe_text import visible
from wellcond._core.user_warnings import warn_user
from wellcond.attention.view import AttentionLayer
from wellcond.init.laws import Normal
from wellcond.init.registry import register_scheme
from wellcond.init.scheme import Laws, Scheme, missing_roles
from wellcond.propagation.trainability import window

USUAL_BETA = 0.5  # published for a model that trains
_window = lru_cache(maxsize=256)(window)


@register_scheme(
    "critical",
    citation="Two failure modes of deep Transformers and how to avoid them, arXiv 2505.24333",
    published="std √β (ln T)^¼ / √d_H with one head of the model's width, β = 0.5 and 3",
)
@dataclass(frozen=True)
class Critical(Scheme):
    r"""Gaussian Q and K such that logits of unit-variance tokens have standard deviation β √(ln T).

    With logit scale $s$ and entry variance $\sigma^2$, random tokens give logits of standard deviation
    $s\sqrt{d}\,D\sigma^2$; hence $\sigma^2 = \beta\sqrt{\ln T} / (s\sqrt{d}\,D)$. The published rule divides by the
    head width instead of D, which is the same for its single head and h times too large for h heads.

    Args:
        tokens: T, the sequence length.
        beta: β, the inverse temperature; below the critical value attention spreads, above it localises. If None, 0.5,
            or what is next to it where the theory says that this stack can be trained: its depth, its norms, and the
            gains of its values, outputs and MLP as they are.
        literal: divide by the head width as published.
    """

    tokens: Annotated[int, Range(2)]
    beta: Positive | None = None
    literal: bool = False

    stand_ins: ClassVar = {"tokens": 196}

    def applies(self, layer: AttentionLayer) -> str | None:
        """Needs softmax over query–key products with one scale."""
        if layer.kind not in ("softmax", "talking-heads", "nystrom"):
            return f"{layer.kind} attention is not a softmax over tokens"
        if layer.qk_norm:
            return "queries and keys are normalised, so weights do not set β"
        if layer.scale is None:
            return "the scale of its logits is not one known number"
        return missing_roles(layer, "query", "key")

    def laws(self, layer: AttentionLayer) -> Laws:
        """The geometric mean of both widths in cross-attention."""
        assert layer.query is not None
        assert layer.key is not None
        assert layer.scale is not None
        d = layer.head_dim
        width = d if self.literal else math.sqrt(layer.query.shape[1] * layer.key.shape[1])
        beta = trainable_beta(layer, self.tokens) if self.beta is None else self.beta
        variance = beta * math.sqrt(math.log(self.tokens)) / (layer.scale * math.sqrt(d) * width)
        law = Normal(math.sqrt(variance), f"β = {beta:g}, T = {self.tokens}")
        return {("query",): law, ("key",): law}


def trainable_beta(layer: AttentionLayer, tokens: int) -> float:
    """β = 0.5, or the nearest to it with which a stack of such blocks can be trained, a tenth inside the window."""
    block, gains = layer.block, _gains(layer)
    if block is None or gains is None:
        return USUAL_BETA
    norm = block.norm_position or "pre"
    sought = {"tokens": tokens, "depth": block.depth, "norm": norm, "value_gain": gains[0], "mlp_gain": gains[1:]}
    found = _window(("beta", 0.05, 4.0), **sought)
    if found is None:
        warn_user(
            f"the theory has no β with which a {norm}-norm stack of {block.depth} blocks trains on {tokens} tokens "
            f"with gains {gains[0]:g} of W_V W_O and {gains[1]:g}, {gains[2]:g} of the MLP as they are: lower them "
            f"first. {visible(layer.name)} gets β = {USUAL_BETA}"
        )
        return USUAL_BETA
    low, high = found
    inside = 0.1 * (high - low)
    return USUAL_BETA if low < USUAL_BETA < high else round(min(max(USUAL_BETA, low + inside), high - inside), 3)


def _gains(layer: AttentionLayer) -> tuple[float, float, float] | None:
    """Gains of W_V W_O and of the MLP's matrices, to two digits; None where they are not there, or of another form."""
    block, value, output = layer.block, layer.value, layer.output
    if block is None or value is None or output is None or len(block.mlp_out) != 1:
        return None
    matrices = [value, output, block.mlp_in[0], block.mlp_out[0]]
    if any(matrix.parameter().is_meta for matrix in matrices):
        return None
    v, o, first, second = (matrix.read().double() for matrix in matrices)
    v = v.repeat_interleave(len(o) // len(v), dim=0)
    if v.shape != o.shape:
        return None
    product = float(((v.mT @ v) * (o.mT @ o)).sum()) / o.shape[1]
    gain_in, gain_out = float(first.square().sum()) / first.shape[2], float(second.square().sum()) / second.shape[1]
    return float(f"{product:.1e}"), float(f"{gain_in:.1e}"), float(f"{gain_out:.1e}")
