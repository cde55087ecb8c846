"""The replay of a recorded site: the module's own steps, as a softmax in closed form where they are one."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import cache

import torch
from torch import Tensor

from wellcond._core.safe_text import briefly
from wellcond.attention.apart import tied_roles
from wellcond.attention.recorded.columns import Undescribed
from wellcond.attention.recorded.describe import Described
from wellcond.attention.recorded.joined_replay import JoinedReplay
from wellcond.attention.recorded.own_replay import OwnReplay
from wellcond.attention.recorded.scores import scores_of
from wellcond.attention.recorded.softmax_form import softmax_form
from wellcond.attention.replay import Attended, Mixing, Replay, project, shared_tensors
from wellcond.attention.roles import QKV
from wellcond.attention.verify import TOLERANCE, Verification, compare
from wellcond.attention.view import AttentionLayer


def verified_replay(layer: AttentionLayer, sites: Sequence[Described]) -> tuple[Replay | None, Verification]:
    """Return the replay of a site if it rebuilds from the layer's weights what was recorded, and how closely.

    Several sites are the products of one call.
    """
    tied = tied_roles(layer)
    if tied:
        return None, Verification(layer.name, "recording", math.inf, 0.0, tied)
    try:
        own = JoinedReplay(sites) if len(sites) > 1 else _alone(sites[0])
        tokens = own.tokens
        if own.recorded().shape[2] != tokens["query"].shape[1] and sites[0].layer.output is None:
            raise Undescribed("its queries are pooled, and what it averages is not all that it gives")
        projected = {role: project(getattr(layer, role), tokens[role]) for role in QKV}
        weights, rebuilt = own.weights(projected), own(*projected.values())
    except Undescribed as problem:
        return None, Verification(layer.name, "recording", math.inf, 0.0, str(problem))
    except RuntimeError as problem:
        detail = f"its recorded steps cannot be run again: {briefly(problem, 100)}"
        return None, Verification(layer.name, "recording", math.inf, 0.0, detail)
    # Values may be zero, and show nothing. A kernel for half precision may add up in float32.
    for made, recorded in ((rebuilt, own.recorded()), (weights, own.weights({}))):
        found = compare(layer.name, "recording", made, recorded)
        checked = replace(found, tolerance=TOLERANCE[tokens["value"].dtype])
        if not checked:
            return None, checked
    return _replay(own), checked


def _alone(site: Described) -> OwnReplay:
    own = OwnReplay(site)
    return own if own.is_whole() else OwnReplay(site, joint=True)


class RecordedMixing:
    """The module's own steps from Q, K and V to what it mixed."""

    def __init__(self, own: OwnReplay | JoinedReplay) -> None:
        self.own = own
        self.scores = scores_of(own) if isinstance(own, OwnReplay) else None

    @property
    def rows(self) -> int:
        """Number of rows that are mixed."""
        return self.own.recorded().shape[2]

    @property
    def hidden(self) -> Tensor | None:
        """True where a mask takes a key out, `(B, H, N, T)`; None if not known."""
        return None if self.scores is None else self.scores.hidden

    def __call__(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Mix the values: `(B, H, N, d_v)`."""
        return self.own(q, k, v)

    def attended(self, q: Tensor, k: Tensor) -> Attended | None:
        """Logits and probabilities of the module's own softmax; None where it is not over the tokens alone."""
        return None if self.scores is None else self.scores.attended(q, k)


def _replay(own: OwnReplay | JoinedReplay) -> Replay:
    @cache
    def at(dtype: torch.dtype | None) -> tuple[dict[str, Tensor], Mixing]:
        there = own if dtype is None else own.to(dtype)
        form = softmax_form(there) if isinstance(there, OwnReplay) else None
        return shared_tensors(there.tokens), form or RecordedMixing(there)

    return Replay(mixing=lambda call: at(call.dtype)[1], tokens=lambda call: at(call.dtype)[0])
