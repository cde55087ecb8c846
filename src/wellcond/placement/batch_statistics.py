"""Measure a layer on a batch: size and similarity of its tokens, its logits and its attention rows.

With masks a row has its visible columns only: T is their mean number over rows, entropies are divided by the logarithm
of each row's own, rows of hidden (padding) tokens and rows with fewer than two columns are left out.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from wellcond.attention.capture import evaluating
from wellcond.attention.higher_precision import wide_enough
from wellcond.attention.replay import Call, Softmax, as_sequences, concatenate_heads, project, repeat_groups
from wellcond.attention.verify import TOLERANCE
from wellcond.attention.view import AttentionLayer
from wellcond.placement.token_moments import TokenMoments, before_gain, token_moments
from wellcond.placement.watched_pass import first_tensor
from wellcond.placement.wiring import NotPlaced


@dataclass(frozen=True)
class BatchStatistics:
    """One layer on a batch, means over heads, rows and sequences."""

    tokens: float  # visible columns of a row
    alone: float  # columns of a row with which uniform attention has this mask's mean Σ p²; T without a mask
    together: float  # columns in common of two rows with which it has the mask's mean Σ p p'; T without a mask
    columns: tuple[tuple[int, float], ...]  # the distinct numbers of columns that rows see, and the share of rows
    read: TokenMoments  # of the tokens before the gain of the norm that the layer reads
    variance: float | None  # s², of the logits along a row, the own column left out; None where rows have but one other
    shift: float  # own logit − the others' mean
    entropy: float  # ÷ log of the row's visible columns
    participation: float  # Σ p²
    own: float  # weight of the own token
    visible: Tensor  # which tokens count, `(B, N)`
    transposed: bool  # whether the layer is given `(N, B, D)`
    notes: tuple[str, ...]  # what else acts on the logits


@torch.no_grad()
def measure_attention(layer: AttentionLayer, call: Call, norm: nn.Module | None) -> BatchStatistics:
    """Measure one layer's call, or raise `NotPlaced` with the reason."""
    assert layer.query is not None
    assert layer.key is not None
    call = wide_enough(call, call.verified)
    with evaluating(call.module):
        tokens, mixing = call.tokens(), call.mixing()
        if type(mixing) is not Softmax:  # a sink or extra keys take part of a row
            raise NotPlaced(f"{layer.kind}: no softmax over tokens, or not over them alone")
        x = tokens["query"]
        if not all(x.shape == other.shape and torch.equal(x, other) for other in tokens.values()):
            raise NotPlaced("queries, keys and values read different tokens, as in cross-attention")
        logits = mixing.logits(project(layer.query, x), project(layer.key, x))
    if logits.shape[2] != logits.shape[3]:
        raise NotPlaced(f"{logits.shape[2]} queries see {logits.shape[3]} keys, more than the sequence has")
    if not torch.isfinite(x).all():
        raise NotPlaced("its tokens are not finite on this batch")
    p = mixing.normalise(logits)
    _check_heads(layer, call, p, x)
    shown = torch.ones_like(logits[:, :1], dtype=torch.bool)
    shown = shown if mixing.hidden is None else ~mixing.hidden.expand(logits.shape)
    visible = shown.any(1).any(1)  # by any query, (B, N)
    own = torch.eye(logits.shape[2], dtype=torch.bool, device=logits.device)
    seen = shown.sum(-1)
    rows = (seen > 1) & shown.diagonal(dim1=2, dim2=3) & visible[:, None]  # (B, H or 1, N)
    if not rows.any():
        raise NotPlaced("no token sees itself and another one")
    a = logits.masked_fill(~shown, 0.0)
    count = (seen - 1).clamp_min(1)
    mean = a.masked_fill(own, 0.0).sum(-1) / count
    apart = (a - mean[..., None]).masked_fill(~shown | own, 0.0).square().sum(-1) / (count - 1).clamp_min(1)
    entropy = torch.special.entr(p).sum(-1).double() / seen.clamp_min(2).double().log()
    return BatchStatistics(
        float(seen[rows].double().mean()),
        1 / float((1 / seen[rows].double()).mean()),
        _together(shown, rows),
        _shares(seen[rows]),
        token_moments(before_gain(x, norm), visible),
        _mean(apart, rows & (seen > 2)) if (rows & (seen > 2)).any() else None,
        _mean(a.diagonal(dim1=2, dim2=3) - mean, rows),
        _mean(entropy, rows),
        _mean(p.square().sum(-1), rows),
        _mean(p.diagonal(dim1=2, dim2=3), rows),
        visible.cpu(),
        not _same_layout(call, x),
        _notes(layer, mixing),
    )


def _check_heads(layer: AttentionLayer, call: Call, p: Tensor, x: Tensor) -> None:
    """Refuse a layer that does more to its heads than put them side by side."""
    assert layer.value is not None
    recorded = call.verification is not None and call.verification.method == "recording"
    if call.verified.assemble is concatenate_heads and not recorded:
        return
    mixed = p @ repeat_groups(project(layer.value, x), p.shape[1])
    if recorded and "output" not in call.reads:
        raise NotPlaced("what its output projection reads is not known")
    with evaluating(call.module):
        given = (call.reads["output"] if recorded else call.verified.assemble(call, mixed)).reshape(-1)
    plain = concatenate_heads(call, mixed).reshape(-1)
    rounding = TOLERANCE[layer.value.parameter().dtype] * float(plain.abs().max())
    given = given.to(plain)
    if given.shape != plain.shape or not torch.allclose(given.sort().values, plain.sort().values, atol=rounding):
        raise NotPlaced("its heads are normalised, gated or rearranged before the output projection")


def _same_layout(call: Call, tokens: Tensor) -> bool:
    given = first_tensor((*call.given[0], *call.given[1].values()))
    if given is None:
        return True
    laid = as_sequences(given)
    # A recorded pass has other kernels before this layer, so other rounding.
    rounding = TOLERANCE[laid.dtype] * float(tokens.abs().max())
    return laid.shape == tokens.shape and torch.allclose(laid.to(tokens.dtype), tokens, atol=rounding)


def _mean(x: Tensor, rows: Tensor) -> float:
    return float(x[rows.expand(x.shape)].double().mean())


def _together(shown: Tensor, rows: Tensor) -> float:
    """1 ÷ mean overlap of two different rows that attend evenly to what they see."""
    uniform = shown[:, :1].float() / shown[:, :1].sum(-1, keepdim=True).clamp_min(1)
    both = rows[:, :1, :, None] & rows[:, :1, None, :] & ~torch.eye(rows.shape[2], dtype=torch.bool, device=rows.device)
    overlap = (uniform @ uniform.mT)[both].double().mean()
    return 1 / float(overlap) if overlap > 0 else math.inf


def _shares(columns: Tensor) -> tuple[tuple[int, float], ...]:
    """At most eight numbers of columns that stand for all rows, each for as many."""
    ordered = columns.flatten().sort().values.cpu()
    if ordered[0] == ordered[-1]:
        return ((int(ordered[0]), 1.0),)
    parts = [part for part in ordered.tensor_split(min(8, len(ordered))) if len(part)]
    return tuple((round(float(part.double().mean())), len(part) / len(ordered)) for part in parts)


def _notes(layer: AttentionLayer, mixing: Softmax) -> tuple[str, ...]:
    """Sentences on what sets the logits beside the weights."""
    found = []
    if layer.rotary:
        found.append("rotary positions turn queries and keys: trust the batch's numbers more")
    shown = None if mixing.bias is None else mixing.bias[mixing.bias >= -60]
    if shown is not None and len(shown) and bool((shown != shown[0]).any()):
        found.append("positions are added to the logits: trust the batch's numbers more")
    if mixing.softcap is not None:
        found.append(f"logits are capped at ±{mixing.softcap:g}")
    return tuple(found)
