r"""Spectral entropy of the updates of weights, head by head: how many directions training moves them in.

With σ² the squared singular values of W_now − W_before and p = σ²/Σσ², it is −Σ p log p ÷ log d: 1 where all directions
move alike, 0 where one does. An update that collapses into few directions comes before logits explode. Weights alone
are needed, so it works where nothing else can be measured.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from wellcond._core.linalg import eigenvalues, wide
from wellcond.attention.roles import QKV
from wellcond.attention.view import AttentionLayer

REMEMBERED, NEEDED = 8, 3  # earlier looks that a trend is against, and how many of them it takes


def update_entropy(update: Tensor) -> list[float | None]:
    """Return the entropy of each head's update, `(heads, D, d)`; None where nothing moved, or not to finite numbers.

    >>> update = torch.zeros(2, 6, 3)
    >>> update[0, :3] = torch.eye(3)
    >>> first, second = update_entropy(update)
    >>> round(first, 9), second
    (1.0, None)
    """
    update = wide(update)
    gram = update.mT @ update if update.shape[1] >= update.shape[2] else update @ update.mT
    total = gram.diagonal(dim1=1, dim2=2).sum(1)
    known = torch.isfinite(total) & (total > 0)
    found: list[float | None] = [None] * len(update)
    if bool(known.any()):
        share = eigenvalues(gram[known] / total[known][:, None, None]).clamp_min(0.0)
        entropy = torch.special.entr(share).sum(1) / math.log(max(gram.shape[-1], 2))
        for head, value in zip(torch.nonzero(known)[:, 0].tolist(), entropy.tolist(), strict=True):
            found[head] = value
    return found


@dataclass(frozen=True)
class UpdateReading:
    """One head's update since the last look.

    Args:
        entropy: of the update, from 0 to 1.
        trend: entropy ÷ its median over earlier looks; None where there are too few.
    """

    entropy: float
    trend: float | None


class UpdateWatch:
    """Remembers weights from look to look, and the entropies of what changed between them."""

    def __init__(self) -> None:
        self._weights: dict[str, Tensor] = {}  # by layer and role
        self._past: dict[str, list[list[float]]] = {}  # and head: entropies of the last looks

    def look(self, layers: Iterable[AttentionLayer]) -> dict[tuple[str, str, int], UpdateReading]:
        """Return the updates since the last look by layer, role and head; none at the first.

        >>> import wellcond as wc
        >>> model, watch = torch.nn.MultiheadAttention(8, 2), UpdateWatch()
        >>> watch.look(wc.attention_layers(model))
        {}
        """
        found = {}
        for layer in layers:
            for role, projection in layer.projections(*QKV):
                key, now = f"{layer.name} {role}", projection.read()
                before = self._weights.get(key)
                self._weights[key] = now
                if before is None or before.shape != now.shape:
                    continue
                past = self._past.setdefault(key, [[] for _ in range(len(now))])
                for head, entropy in enumerate(update_entropy(wide(now) - wide(before))):
                    if entropy is not None:
                        found[layer.name, role, head] = UpdateReading(entropy, _trend(entropy, past[head]))
                        past[head] = [*past[head], entropy][-REMEMBERED:]
        return found

    def remember(self, layers: Iterable[AttentionLayer]) -> None:
        """Take the weights as they are now for those that the next look compares with."""
        for layer in layers:
            for role, projection in layer.projections(*QKV):
                self._weights[f"{layer.name} {role}"] = projection.read()

    def state_dict(self) -> dict[str, Any]:
        """What a resumed watch compares with."""
        return {"weights": dict(self._weights), "entropies": {key: list(past) for key, past in self._past.items()}}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a state."""
        self._weights = dict(state["weights"])
        self._past = {key: [list(each) for each in past] for key, past in state["entropies"].items()}


def _trend(entropy: float, past: Sequence[float]) -> float | None:
    usual = statistics.median(past) if len(past) >= NEEDED else 0.0
    return entropy / usual if usual else None
