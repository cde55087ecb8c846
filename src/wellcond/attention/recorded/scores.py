"""From a site's product of queries and keys to its softmax: the recorded steps between, and their results in order."""

from __future__ import annotations

import torch
from torch import Tensor

from wellcond.attention.recorded.own_replay import OwnReplay
from wellcond.attention.recorded.rerun import Rerun
from wellcond.attention.recorded.sites import Site, batched
from wellcond.attention.recorded.tape import Step
from wellcond.attention.replay import MASKED, Attended
from wellcond.attention.verify import TOLERANCE

HIDDEN = -5e3  # masks are −10000 or lower
NORMALISING = ("_softmax", "_safe_softmax", "_log_softmax")


class Scores:
    """Scores, logits and probabilities of a recorded site as `(B, H, N, T)`.

    Args:
        own: the site's replay.
        step: its softmax.
        order: of each element of the softmax, its index among the scores.
    """

    def __init__(self, own: OwnReplay, step: Step, order: Tensor) -> None:
        self.own, self.step, self.order = own, step, order
        self.entries = own.site.entries[own.mixtures]  # (B, H)
        self._tail = Rerun(own.site.origins.tape.until(step), [own.site.scores.result], [step.operands[0]], own.dtype)
        self.zero = self._without_product()
        self.bias = self.after(self.zero)

    def laid_out(self, made: Tensor, order: Tensor | None = None) -> Tensor:
        """Return a tensor with an element for each score as `(B, H, N, T)`."""
        flat, shape = made.flatten(), batched(self.own.site.scores.result).shape
        order = self.order if order is None else order
        scores = torch.empty_like(flat).index_put((order,), flat).reshape(shape)
        return (scores if self.own.site.over == 2 else scores.mT)[self.entries]

    def after(self, scores: Tensor) -> Tensor:
        """Return the logits that the module makes of scores, `(B, H, N, T)`."""
        (made,) = self._tail(scores.reshape(self.own.site.scores.result.shape))
        return self.laid_out(made.to(scores.dtype))

    def _without_product(self) -> Tensor:
        """What the product of scores gives where queries and keys have a product of zero: a third tensor, if any."""
        step, like = self.own.site.scores.step, batched(self.own.site.scores.result)
        zero = torch.zeros_like(like, dtype=self.own.dtype)
        if step.name not in ("baddbmm", "addmm"):
            return zero
        added: Tensor = step.args[0].to(zero)
        return zero + float(step.kwargs.get("beta", 1)) * added

    @property
    def unit(self) -> Tensor:
        """What it gives where they have a product of one."""
        return self.zero + float(self.own.site.scores.step.kwargs.get("alpha", 1))

    @property
    def hidden(self) -> Tensor:
        """True where a mask takes a key out: see `Softmax.hidden`."""
        return self.bias < MASKED

    def attended(self, q: Tensor, k: Tensor) -> Attended | None:
        """Logits and what values are averaged by, at other queries and keys; None if that is no average."""
        given = {"query": q, "key": k}
        logits = self.own.leading_to(self.step.operands[0], self.step)(*self.own.sources_with(given))[0]
        logits, order = self.laid_out(logits), _order(self.own.site.weights.first, self.own.site)
        if order is None:
            return None
        blind = self.hidden.all(-1, keepdim=True)  # queries that see no key
        p = self.laid_out(self.own.weights(given), order).masked_fill(blind, 0.0)
        off = (p.double().sum(-1) - 1).abs().masked_fill(blind[..., 0], 0.0).max()
        average = bool(off <= TOLERANCE[p.dtype]) and bool((p >= 0).all())
        # A mask may depend on the scores, or come after the softmax.
        hidden = self.hidden | (logits < HIDDEN) | ((p == 0) & (logits.softmax(-1) > 0))
        return Attended(logits, p, hidden) if average else None


def scores_of(own: OwnReplay) -> Scores | None:
    """Return the scores of a site; None where its softmax is over more than its scores, or over part of them."""
    site = own.site
    if own.joint or site.channel or bool((site.entries[own.mixtures] < 0).any()):
        return None
    step = next((step for step in site.origins.tape.steps if _normalises(step, site)), None)
    if step is None:
        return None
    origin = site.origins.of(step.operands[0])
    order = None if origin is None else _order(origin.first, site)
    if order is None:
        return None
    found = Scores(own, step, order)
    shape = own.numbers["query"].shape[2], own.numbers["key"].shape[2]
    return found if found.bias.shape[2:] == shape and own.numbers["value"].shape[2] == shape[1] else None


def _order(numbers: Tensor, site: Site) -> Tensor | None:
    """Of each element, its index among the scores; None unless it is all of them: with a sink, or other keys."""
    order = _filled(numbers - site.scores.first)
    whole = order is not None and torch.equal(order.sort().values, torch.arange(site.scores.result.numel()))
    return order if whole else None


def _normalises(step: Step, site: Site) -> bool:
    origin = site.origins.of(step.operands[0]) if step.name in NORMALISING else None
    return origin is not None and origin.source is site.scores


def _filled(numbers: Tensor) -> Tensor | None:
    """Numbers of a re-arranged batch of matrices, those that a mask has replaced too; None if they follow no strides.

    >>> _filled(torch.tensor([[0, -1], [1, 3]]))
    tensor([0, 2, 1, 3])
    """
    matrices = numbers.flatten(0, -3) if numbers.ndim > 2 else numbers[None]
    known, offset = matrices >= 0, torch.zeros((), dtype=torch.long)
    for dim in (1, 2):
        size = matrices.shape[dim]
        low, high = matrices.narrow(dim, 0, size - 1), matrices.narrow(dim, 1, size - 1)
        steps = (high - low)[(low >= 0) & (high >= 0)]
        offset = offset[..., None] + (steps[0] if len(steps) else 0) * torch.arange(size)
    first = torch.where(known, matrices - offset, -1).amax((1, 2))
    whole = first[:, None, None] + offset
    fits = bool(known.any((1, 2)).all()) and torch.equal(whole[known], matrices[known])
    return whole.flatten() if fits else None
