"""Recorded steps as a softmax in closed form, where an experiment shows that they are one."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from wellcond.attention.recorded.own_replay import OwnReplay
from wellcond.attention.recorded.scores import HIDDEN, Scores, scores_of
from wellcond.attention.recorded.sites import batched
from wellcond.attention.replay import Softmax
from wellcond.attention.roles import QKV


def softmax_form(own: OwnReplay) -> Softmax | None:
    """Return `softmax(s · f(q) g(k)ᵀ + bias) v` with the module's own f, g, s and bias, None if it is none.

    Scale and bias are read off the recorded steps at scores of zero and of one. The form is then compared with the
    module's own steps in float64 at random Q, K and V: soft-caps, sinks, talking heads and biases that depend on the
    queries fail there. f and g must act on each token by itself.
    """
    wide = own if own.dtype == torch.float64 else own.to(torch.float64)
    scores = scores_of(wide)
    found = None if scores is None else _read_off(scores)
    if scores is None or found is None or not _holds(found, scores):
        return None
    narrow = None if wide is own else scores_of(own)
    return found if narrow is None else _read_off(narrow)


def _read_off(scores: Scores) -> Softmax:
    site, bias, entries = scores.own.site, scores.bias, scores.entries
    scale = scores.after(scores.unit) - bias
    first = scale.flatten()[bias.abs().argmin()]
    scale = torch.where(bias > HIDDEN, scale, first)
    # Rounding of the subtraction.
    rounding = 8 * torch.finfo(bias.dtype).eps * (first.abs() + bias.masked_fill(bias <= HIDDEN, 0.0).abs().max())
    by_columns = site.over == 2
    query, key = (site.scores.left, site.scores.right) if by_columns else (site.scores.right, site.scores.left)
    groups = entries[:, :: entries.shape[1] // scores.own.numbers["key"].shape[1]]
    return Softmax(
        float(first) if bool((scale - first).abs().max() <= rounding) else scale,
        bias if bool(bias.any()) else None,
        _map(scores.own, "query", query, entries, transposed=not by_columns),
        _map(scores.own, "key", key, groups, transposed=by_columns),
    )


def _map(own: OwnReplay, role: str, factor: Tensor, entries: Tensor, *, transposed: bool) -> Callable[[Tensor], Tensor]:
    """From queries, or keys, to what the module multiplies, by its own steps."""
    run = own.leading_to(factor, own.site.scores.step)

    def mapped(x: Tensor) -> Tensor:
        made = batched(run(*own.sources_with({role: x}))[0])
        return (made.mT if transposed else made)[entries]

    return mapped


@torch.no_grad()
def _holds(form: Softmax, scores: Scores) -> bool:
    own, generator = scores.own, torch.Generator().manual_seed(0)
    q, k, v = (
        torch.randn(own.numbers[role].shape, generator=generator, dtype=torch.float64).to(own.tokens[role].device)
        for role in QKV
    )
    logits, truth = form.logits(q, k), scores.attended(q, k)
    seen = logits > HIDDEN
    same = truth is not None and _close(logits[seen], truth.logits[seen]) and _close(form(q, k, v), own(q, k, v))
    return same and all(_by_token(f, x) for f, x in ((form.query_map, q), (form.key_map, k)))


def _close(x: Tensor, expected: Tensor) -> bool:
    finite = torch.isfinite(expected)  # a query that sees no key has no average
    x, expected = x[finite], expected[finite]
    size = float(expected.abs().max()) if expected.numel() else 0.0
    return torch.allclose(x, expected, rtol=1e-9, atol=1e-9 * size)


def _by_token(f: Callable[[Tensor], Tensor], x: Tensor) -> bool:
    """Whether a token's result depends on that token alone."""
    row = x.shape[2] // 2
    others = 2 * x
    others[:, :, row] = x[:, :, row]
    return torch.allclose(f(x)[:, :, row], f(others)[:, :, row], rtol=1e-12, atol=1e-12)
