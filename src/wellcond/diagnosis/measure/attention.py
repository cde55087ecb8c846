"""Measurements of attention on a batch: head by head, and how alike the tokens are."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from wellcond._core.linalg import eigenvalues
from wellcond.attention.capture import evaluating
from wellcond.attention.higher_precision import wide_enough
from wellcond.attention.recorded.replay import RecordedMixing
from wellcond.attention.replay import Call, Softmax
from wellcond.attention.storage import HALF_DTYPES
from wellcond.attention.view import AttentionLayer
from wellcond.diagnosis.records import HeadRecord
from wellcond.scale.queries_and_keys import queries_and_keys
from wellcond.scale.sharpness import head_means, sharpness


@torch.no_grad()
def attention_records(layer: AttentionLayer, call: Call) -> tuple[list[HeadRecord], Tensor | None]:
    """One record per query head; and which tokens are visible at all, `(B, N)`, None if every one is.

    The probabilities are those of the replay, in the model's dtype or float32, whatever kernel the model runs.
    """
    call = wide_enough(call, call.verified)
    with evaluating(call.module):
        tokens, scored = call.tokens(), queries_and_keys(layer, call, call.verified)
        seen = None if scored is None else scored.attended()
    if seen is None:
        return [HeadRecord(head, None, None, None) for head in range(layer.num_heads)], None
    logits, p, hidden = seen.logits, seen.probabilities, seen.hidden
    keys = torch.full(p.shape[:3], p.shape[3]) if hidden is None else (~hidden).sum(-1).cpu()
    entropy = head_means(torch.special.entr(p).sum(-1).cpu().double() / keys.clamp_min(2).double().log(), keys > 1)
    participation = head_means(p.square().sum(-1).cpu().double(), keys > 0)
    own = _own(tokens["query"], tokens["key"], p, keys)
    size = logits.abs() if hidden is None else logits.abs().masked_fill(hidden, 0.0)
    largest = size.amax((0, 2, 3)).cpu().tolist()
    same = tokens["query"].data_ptr() == tokens["key"].data_ptr()
    visible = (~hidden).any(1).any(1).cpu() if hidden is not None and same else None
    records = [
        HeadRecord(head, e, s, logit, own=o, beta=b)
        for head, (e, s, logit, o, b) in enumerate(
            zip(entropy, participation, largest, own, sharpness(logits, hidden), strict=True)
        )
    ]
    return records, visible


def _own(queries: Tensor, keys: Tensor, p: Tensor, visible: Tensor) -> list[float | None]:
    """The weight of the own token, per head; of two keys it has half whatever a head does, so rows of three count."""
    same = queries.data_ptr() == keys.data_ptr() or (queries.shape == keys.shape and torch.equal(queries, keys))
    if not same or p.shape[2] != p.shape[3]:
        return [None] * p.shape[1]
    return head_means(p.diagonal(dim1=2, dim2=3).cpu().double(), visible > 2)


@torch.no_grad()
def is_causal(call: Call) -> bool:
    """Whether no token sees a later one."""
    with evaluating(call.module):
        mixing = call.mixing()
    hidden = mixing.hidden if isinstance(mixing, (Softmax, RecordedMixing)) else None
    if hidden is None or hidden.ndim < 2 or hidden.shape[-2] != hidden.shape[-1] or hidden.shape[-1] < 2:
        return False
    later = torch.ones(hidden.shape[-2:], dtype=torch.bool, device=hidden.device).triu(1)
    return bool(hidden[..., later].all())


@torch.no_grad()
def token_measures(layer: AttentionLayer, call: Call, seen: Tensor | None) -> tuple[int, float, float | None]:
    """Return how many tokens, their stable rank ‖X‖_F² ÷ σ_max², and their mean cosine; means over the sequences.

    Tokens that no query sees (padding) are left out.
    """
    with evaluating(call.module):
        x = call.tokens()["query" if layer.query is not None else "value"]
    x = x.float() if x.dtype in HALF_DTYPES else x
    if not torch.isfinite(x).all():
        return x.shape[1], math.nan, math.nan
    if seen is not None:
        x = x * seen.to(x.device)[..., None]
    gram = (x @ x.mT if x.shape[1] <= x.shape[2] else x.mT @ x).double()
    total = gram.diagonal(dim1=1, dim2=2).sum(1)
    largest = eigenvalues(gram)[:, -1]
    ranks = (total / largest)[total > 0]
    lengths = x.double().norm(dim=2, keepdim=True)
    units = torch.where(lengths > 0, x / lengths.clamp_min(torch.finfo(x.dtype).tiny), 0.0)
    count = (lengths > 0).sum((1, 2))
    pairs = count * (count - 1)
    cosines = (units.sum(1).square().sum(1) - count) / pairs.clamp_min(1)
    cosine = float(cosines[pairs > 0].mean()) if (pairs > 0).any() else None
    return x.shape[1], float(ranks.mean()) if len(ranks) else 0.0, cosine
