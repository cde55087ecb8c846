"""Queries and keys of a call, how its layer makes logits of them, and the sharpness that these have."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from wellcond.attention.recorded.replay import RecordedMixing
from wellcond.attention.replay import Attended, Call, Replay, Softmax, project
from wellcond.attention.view import AttentionLayer
from wellcond.scale.mean_over_processes import mean_over_processes
from wellcond.scale.sharpness import sharpness


@dataclass(frozen=True)
class QueriesAndKeys:
    """Queries `(B, H, N, d)` and keys `(B, G, T, d)` of a layer's call, and how it scores them."""

    layer: AttentionLayer
    mixing: Softmax | RecordedMixing
    query: Tensor
    key: Tensor

    def attended(self) -> Attended | None:
        """Logits and probabilities; None where they are no average over the tokens alone."""
        return self.mixing.attended(self.query, self.key)

    def scored(
        self, query: Sequence[float] | None = None, key: Sequence[float] | None = None
    ) -> tuple[Tensor, Tensor | None] | None:
        """Logits, with queries and keys of every head multiplied by numbers, and where keys are hidden.

        None where they are no average over the tokens alone.
        """
        q, k = _times(self.query, query), _times(self.key, key)
        if isinstance(self.mixing, Softmax):  # probabilities are not asked for
            return self.mixing.logits(q, k), self.mixing.hidden
        seen = self.mixing.attended(q, k)
        return None if seen is None else (seen.logits, seen.hidden)

    def sharpness(self, query: Sequence[float] | None = None, key: Sequence[float] | None = None) -> list[float | None]:
        """β of every head with its queries and keys multiplied by numbers, mean over processes; none without logits."""
        seen = self.scored(query, key)
        return [] if seen is None else mean_over_processes(sharpness(*seen))


def queries_and_keys(layer: AttentionLayer, call: Call, replay: Replay) -> QueriesAndKeys | None:
    """Return what a layer scores in a call; None where it has no softmax over tokens."""
    mixing = replay.mixing(call)
    if not isinstance(mixing, (Softmax, RecordedMixing)) or layer.query is None or layer.key is None:
        return None
    tokens = replay.tokens(call)
    q, k = project(layer.query, tokens["query"]), project(layer.key, tokens["key"])
    return QueriesAndKeys(layer, mixing, q, k)


def _times(x: Tensor, factors: Sequence[float] | None) -> Tensor:
    return x if factors is None else x * x.new_tensor(factors)[:, None, None]
