r"""The `Architecture` of a placed block, from its weights: what the recursion of `wc.propagate` takes.

A post-norm's gain γ and bias β act on the branch and on the skip: the stream is
$\gamma \circ \hat x + \beta$ of unit tokens, so the skip's strength is multiplied by $\sqrt{\overline{\gamma^2}}$ and
$\overline{\beta^2}$ joins the bias behind it.
"""

from __future__ import annotations

import math

from torch import nn

from wellcond.placement.placed_blocks import PlacedBlock
from wellcond.placement.token_moments import TokenMoments
from wellcond.placement.weight_estimates import norm_affine
from wellcond.placement.wiring import Branch
from wellcond.propagation.activation_kernels import gated
from wellcond.propagation.block import Architecture


def block_architecture(one: PlacedBlock, tokens: int) -> Architecture:
    """Return a placed block as the recursion takes it; `tokens` is common to the stack.

    >>> import torch
    >>> from wellcond.placement.placed_blocks import place_blocks
    >>> _ = torch.manual_seed(0)
    >>> placed, _ = place_blocks(nn.TransformerEncoderLayer(64, 2, 128, batch_first=True), torch.randn(2, 5, 64))
    >>> found = block_architecture(placed[0], 5)
    >>> found.norm, [round(gain, 1) for gain in found.mlp]                  # torch's uniform ±1/√D has a gain of 1/3
    ('post', [0.3, 0.3])
    """
    values, mlp, width = one.values, one.mlp, one.layer.width
    post = one.wiring.norm == "post"
    first, first_bias = _skip(one.wiring.attention, width) if post else (one.wiring.attention.skip, 0.0)
    second, second_bias = _skip(one.wiring.mlp, width) if post else (one.wiring.mlp.skip, 0.0)
    kernel, traces = one.activation.kernel, one.heads.trace
    if mlp.up is not None:
        kernel = gated(kernel, mlp.up / max(mlp.gains[0], 1e-300))
    return Architecture(
        tokens=tokens,
        beta=one.beta * math.sqrt(math.log(one.batch.tokens) / math.log(tokens)),
        incoherent=values.incoherent,
        coherent=values.coherent,
        kernel=kernel,
        trace=values.trace,
        mlp=mlp.gains,
        bias=(values.bias + first_bias, mlp.hidden_bias, mlp.output_bias + second_bias),
        skip_attention=first,
        skip_mlp=second,
        norm=one.wiring.norm,
        self_bias=sum(traces) / len(traces),
    )


def stream_before(one: PlacedBlock) -> TokenMoments:
    """Return the moments of the stream before a block in the recursion's terms: behind a post-norm, before its gain."""
    return one.batch.read if one.wiring.norm == "post" else one.before


def behind_norm(norm: nn.Module | None, width: int, unit: TokenMoments) -> TokenMoments:
    """Return the moments of tokens behind a norm's gain and bias, from those before.

    >>> norm = nn.LayerNorm(4)
    >>> _ = nn.init.ones_(norm.bias)
    >>> round(behind_norm(norm, 4, TokenMoments(1.0, 0.5)).cosine, 4)
    0.75
    """
    gain, bias = _mean_squares(norm, width)
    return TokenMoments(gain * unit.size + bias, gain * unit.overlap + bias)


def _skip(branch: Branch, width: int) -> tuple[float, float]:
    gain, bias = _mean_squares(branch.norm, width)
    return branch.skip * math.sqrt(gain), branch.skip**2 * bias


def _mean_squares(norm: nn.Module | None, width: int) -> tuple[float, float]:
    gain, bias = norm_affine(norm, width)
    return float(gain.square().mean()), float(bias.square().mean())
