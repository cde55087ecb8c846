"""Sequences of unequal lengths in memory, end to end, and pairs of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from wellcond.lab.tasks.base import Batch
from wellcond.lab.tasks.checks import checked_indices


@dataclass(frozen=True)
class Ragged:
    """Sequences of unequal lengths, stored end to end, padded with a given id when asked for.

    Args:
        flat: all ids one after the other.
        starts: `(N + 1,)`, where each begins and the last ends.
        labels: `(N,)`.
        tokens: the length to pad to; nothing is longer.
        types: of each id of `flat`, for a model that is told which sentence a token belongs to.
        pad: the id of padding.

    >>> two = Ragged(torch.tensor([7, 8, 9]), torch.tensor([0, 1, 3]), torch.tensor([0, 1]), tokens=3)
    >>> two[torch.tensor([1, 0])].inputs
    {'input_ids': tensor([[8, 9, 0],
            [7, 0, 0]]), 'attention_mask': tensor([[1, 1, 0],
            [1, 0, 0]])}
    """

    flat: Tensor
    starts: Tensor
    labels: Tensor
    tokens: int
    types: Tensor | None = None
    pad: int = 0

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, indices: Tensor) -> Batch:
        chosen = checked_indices(indices, len(self))
        return Batch(self.padded(chosen), self.labels[chosen])

    def padded(self, chosen: Tensor) -> dict[str, Tensor]:
        """Return ids, mask and perhaps types, `(B, tokens)` each."""
        starts, ends = self.starts[chosen], self.starts[chosen + 1]
        places = starts[:, None] + torch.arange(self.tokens, device="cpu")
        mask = places < ends[:, None]
        flat = self.flat if len(self.flat) else self.flat.new_zeros(1)  # all of them may be empty
        places = places.clamp(max=len(flat) - 1)
        inputs = {"input_ids": flat[places].long().where(mask, self.pad), "attention_mask": mask.long()}
        if self.types is not None:
            inputs["token_type_ids"] = self.types[places].long().where(mask, 0)
        return inputs


@dataclass(frozen=True)
class Pairs:
    """Two sequences each, padded alike: `input_ids` and `attention_mask` are `(B, 2, tokens)`."""

    first: Ragged
    second: Ragged

    def __len__(self) -> int:
        return len(self.first)

    def __getitem__(self, indices: Tensor) -> Batch:
        chosen = checked_indices(indices, len(self))
        sides = [side.padded(chosen) for side in (self.first, self.second)]
        return Batch(
            {name: torch.stack([side[name] for side in sides], 1) for name in sides[0]}, self.first.labels[chosen]
        )


def packed(sequences: Sequence[Tensor], labels: Tensor, tokens: int, pad: int = 0) -> Ragged:
    """Store sequences end to end, each cut at `tokens`.

    >>> packed([torch.tensor([1, 2, 3]), torch.tensor([4])], torch.tensor([0, 1]), tokens=2).flat
    tensor([1, 2, 4])
    """
    cut = [sequence[:tokens] for sequence in sequences]
    lengths = torch.tensor([0, *map(len, cut)], device="cpu")
    flat = torch.cat(cut) if cut else torch.zeros(0, dtype=torch.int64, device="cpu")
    return Ragged(flat, lengths.cumsum(0), labels, tokens, pad=pad)
