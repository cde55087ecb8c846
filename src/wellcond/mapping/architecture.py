r"""A mapped block in the terms of the recursion: `Architecture`, from weights alone.

A post-norm's gain γ and bias β act on the branch and on the skip: the stream is
$\gamma \circ \hat x + \beta$ of unit tokens, so the skip's strength is multiplied by $\sqrt{\overline{\gamma^2}}$ and
$\overline{\beta^2}$ joins the bias behind it.
"""

from __future__ import annotations

import math

from torch import nn

from wellcond.mapping.estimates import affine
from wellcond.mapping.mapped import Mapped
from wellcond.mapping.moments import Moments
from wellcond.mapping.wiring import Branch
from wellcond.propagation.block import Architecture
from wellcond.propagation.kernels import gated


def architecture(one: Mapped, tokens: int) -> Architecture:
    """One block; `tokens` is common to the stack.

    >>> import torch
    >>> from wellcond.mapping.mapped import map_blocks
    >>> _ = torch.manual_seed(0)
    >>> mapped, _ = map_blocks(nn.TransformerEncoderLayer(64, 2, 128, batch_first=True), torch.randn(2, 5, 64))
    >>> found = architecture(mapped[0], 5)
    >>> found.norm, [round(gain, 1) for gain in found.mlp]                  # torch's uniform ±1/√D has a gain of 1/3
    ('post', [0.3, 0.3])
    """
    values, mlp, width = one.values, one.perceptron, one.layer.width
    post = one.wiring.norm == "post"
    first, first_bias = _skip(one.wiring.attention, width) if post else (one.wiring.attention.skip, 0.0)
    second, second_bias = _skip(one.wiring.mlp, width) if post else (one.wiring.mlp.skip, 0.0)
    kernel = one.hidden.kernel if mlp.up is None else gated(one.hidden.kernel, mlp.up / max(mlp.gains[0], 1e-300))
    heads = one.heads
    return Architecture(
        tokens=tokens,
        beta=one.beta * math.sqrt(math.log(one.measured.tokens) / math.log(tokens)),
        incoherent=values.incoherent,
        coherent=values.coherent,
        kernel=kernel,
        trace=values.trace,
        mlp=mlp.gains,
        bias=(values.bias + first_bias, mlp.hidden_bias, mlp.output_bias + second_bias),
        skip_attention=first,
        skip_mlp=second,
        norm=one.wiring.norm,
        self_bias=sum(heads.trace) / len(heads.trace),
    )


def start(one: Mapped) -> Moments:
    """The stream before a block in the recursion's terms: behind a post-norm, before its gain."""
    return one.measured.read if one.wiring.norm == "post" else one.before


def behind(norm: nn.Module | None, width: int, unit: Moments) -> Moments:
    """Moments of tokens behind a norm's gain and bias, from those before.

    >>> norm = nn.LayerNorm(4)
    >>> _ = nn.init.ones_(norm.bias)
    >>> round(behind(norm, 4, Moments(1.0, 0.5)).cosine, 4)
    0.75
    """
    gain, bias = _mean_squares(norm, width)
    return Moments(gain * unit.size + bias, gain * unit.overlap + bias)


def _skip(branch: Branch, width: int) -> tuple[float, float]:
    gain, bias = _mean_squares(branch.norm, width)
    return branch.skip * math.sqrt(gain), branch.skip**2 * bias


def _mean_squares(norm: nn.Module | None, width: int) -> tuple[float, float]:
    gain, bias = affine(norm, width)
    return float(gain.square().mean()), float(bias.square().mean())
