r"""Estimate from a layer's weights the numbers that `wc.propagate` takes, for tokens without direction.

For tokens whose deviations have no preferred direction only Frobenius norms and traces are left of the weights
(PROPAGATION §8). With $q = xW_Q$, the gain of the norm before them folded in, and $M_h = s\,W_Q^h W_K^{h\top}$:
$\sigma_a^2 = \|M_h\|_F^2$, the own column is shifted by $(q-p)\,\mathrm{tr} M_h$, and queries scatter like those of
$d_{eff} = \|M_h\|_F^4/\|M_h M_h^\top\|_F^2$ dimensions. With $B_h = W_V^h W_O^h$ what differs between tokens is
multiplied by $\sum_h\|B_h\|_F^2/D$, what they share by $\|\sum_h B_h\|_F^2/D$.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from wellcond.attention.replay import repeat_groups
from wellcond.attention.view import AttentionLayer, ResidualBlock
from wellcond.diagnosis.measure.weights import gain
from wellcond.placement.activation import MLPActivation
from wellcond.placement.wiring import Branch, NotPlaced


@dataclass(frozen=True)
class Logits:
    """One layer's logits, head by head, for tokens of unit size."""

    variance: tuple[float, ...]  # σ_a²
    bias: tuple[float, ...]  # B = |s W_K b|², what the query's bias (and that of the norm before it) adds
    trace: tuple[float, ...]  # tr M, what multiplies q − p in the own column's shift
    head_dim: tuple[float, ...]  # d_eff
    # How the own column's shift grows with the row's variance, both being the token's own size where M ∝ I; so that the
    # own logit has the (q − p)² tr(M²) of variance that the others have not. 0 for independent weights.
    lean: tuple[float, ...]


@dataclass(frozen=True)
class Values:
    """Attention's part of the stream: gains of what differs and of what is common, trace ÷ D, size of the bias."""

    incoherent: float
    coherent: float
    trace: float
    bias: float


@dataclass(frozen=True)
class MLPGains:
    """The MLP's variance gains: of both matrices, of the one that the gate multiplies; mean squares of the biases."""

    gains: tuple[float, float]
    up: float | None
    hidden_bias: float
    output_bias: float


def norm_affine(norm: nn.Module | None, width: int) -> tuple[Tensor, Tensor]:
    """Return (γ, β) of a norm of any class, `(width,)` each, from what it gives.

    >>> norm = nn.LayerNorm(3)
    >>> _ = nn.init.constant_(norm.bias, 0.5)
    >>> norm_affine(norm, 3)[1].tolist()
    [0.5, 0.5, 0.5]
    """
    ones, zeros = torch.ones(width, dtype=torch.float64), torch.zeros(width, dtype=torch.float64)
    own = [] if norm is None else list(norm.parameters(recurse=False))
    if norm is None or not own:
        return ones, zeros
    with torch.no_grad():
        shift = norm(torch.zeros(1, width, dtype=own[0].dtype, device=own[0].device)).flatten().cpu().double()
    found = gain(norm, width)
    return ones if found is None else found, shift


def logits_from_weights(layer: AttentionLayer, norm: nn.Module | None) -> Logits | str:
    """Return the logits' numbers, or why the weights do not set them."""
    assert layer.query is not None
    assert layer.key is not None
    if layer.qk_norm:
        return "queries and keys are normalised, so their weights' sizes have no effect"
    if layer.scale is None:
        return "its logits are not scaled by one number"
    gained, shift = norm_affine(norm, layer.width)
    query, key = _wide(layer.query.read()), _wide(layer.key.read())
    constant = shift @ query  # (heads, d)
    own = layer.query.read_bias()
    if own is not None:
        constant = constant + _wide(own)
    query, key = gained[:, None] * query, repeat_groups(gained[:, None] * key[None], layer.num_heads)[0]
    both = (key.mT @ key) @ (query.mT @ query)  # tr of this is |W_Q W_Kᵀ|²
    own_traces = (key.mT @ query).diagonal(dim1=1, dim2=2).sum(1)
    squared = ((key.mT @ query) @ (key.mT @ query)).diagonal(dim1=1, dim2=2).sum(1).clamp_min(0.0)  # tr(M²)
    square = layer.scale**2
    norms = both.diagonal(dim1=1, dim2=2).sum(1)
    fourth = (both @ both).diagonal(dim1=1, dim2=2).sum(1)
    dims = norms.square() / fourth.clamp_min(1e-300)
    return Logits(
        tuple((square * norms).tolist()),
        tuple((square * torch.einsum("hxd,hd->hx", key, constant).square().sum(1)).tolist()),
        tuple((layer.scale * own_traces).tolist()),
        tuple(dims.tolist()),
        tuple((layer.scale * own_traces.sign() * (squared * dims / 2).sqrt()).tolist()),
    )


def values_from_weights(layer: AttentionLayer, branch: Branch) -> Values:
    """Return what the layer adds to the stream, LayerScale included."""
    assert layer.value is not None
    width = layer.width
    gained, shift = norm_affine(branch.norm, width)
    value = _wide(layer.value.read())
    constant = shift @ value
    own = layer.value.read_bias()
    if own is not None:
        constant = constant + _wide(own)
    value, constant = (repeat_groups(x[None], layer.num_heads)[0] for x in (gained[:, None] * value, constant))
    heads, _, d = value.shape
    if layer.output is not None:
        output, added = _wide(layer.output.read()), layer.output.read_bias()
    elif heads * d == width:
        output, added = torch.eye(width, dtype=torch.float64).view(width, heads, d).transpose(0, 1), None
    else:
        raise NotPlaced(f"it has no output projection, and its {heads} heads of {d} do not make up the width {width}")
    if output.shape != value.shape:
        raise NotPlaced(f"its values are {tuple(value.shape)}, its output projection is {tuple(output.shape)}")
    scale = torch.ones(width, dtype=torch.float64) if branch.scale is None else branch.scale
    output = scale[:, None] * output
    bias = torch.einsum("hxd,hd->x", output, constant)
    if added is not None:
        bias = bias + scale * _wide(added)
    each = ((value.mT @ value) * (output.mT @ output)).sum()
    wide, out = value.transpose(0, 1).flatten(1), output.transpose(0, 1).flatten(1)
    together = ((wide.mT @ wide) * (out.mT @ out)).sum()
    trace = (value * output).sum()
    return Values(float(each) / width, float(together) / width, float(trace) / width, float(bias.square().mean()))


def mlp_from_weights(block: ResidualBlock, hidden: MLPActivation, branch: Branch) -> MLPGains:
    """Return the MLP's gains, its norm's gain and LayerScale included."""
    first = torch.cat([_wide(matrix.read())[0] for matrix in block.mlp_in], dim=1)  # (D, hidden)
    width = len(first)
    gained, shift = norm_affine(branch.norm, width)
    parts = [matrix.read_bias() for matrix in block.mlp_in]
    bias = shift @ first + torch.cat(
        [torch.zeros(m.width) if b is None else b.flatten().cpu() for m, b in zip(block.mlp_in, parts, strict=True)]
    )
    first = gained[:, None] * first
    columns = hidden.up if hidden.gate is None else hidden.gate
    scale = torch.ones(width, dtype=torch.float64) if branch.scale is None else branch.scale
    second, added = scale[:, None] * _wide(block.mlp_out[0].read())[0], block.mlp_out[0].read_bias()
    return MLPGains(
        (_gain(first[:, columns]), float(second.square().sum()) / width),
        None if hidden.gate is None else _gain(first[:, hidden.up]),
        float(bias[columns].square().mean()),
        0.0 if added is None else float((scale * _wide(added)).square().mean()),
    )


def _gain(matrix: Tensor) -> float:
    """|W|² ÷ number of outputs: fan-in times the mean square of an entry."""
    return float(matrix.square().sum()) / matrix.shape[1]


def _wide(x: Tensor) -> Tensor:
    return x.detach().cpu().double()
