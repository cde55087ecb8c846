"""A long text cut into blocks, to be continued or filled in."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from wellcond.errors import WellcondError
from wellcond.lab.tasks.base import Batch, Task
from wellcond.lab.tasks.checks import checked_indices, choice, whole
from wellcond.lab.tasks.text.masking import Masking
from wellcond.lab.tasks.text.tokens import Ids, Tokens

OBJECTIVES = ("causal", "masked")


@dataclass(frozen=True)
class TextBlocks:
    """Blocks of a text, side by side; nothing overlaps, and a rest shorter than a block is left out.

    Args:
        ids: of the whole text; an array, or a file mapped into memory.
        length: of a block.
        ahead: 1 if the target of each token is the next one (causal), 0 if it is the token itself (masked).

    >>> batch = TextBlocks(np.arange(9), length=4, ahead=1)[torch.tensor([1])]
    >>> batch.inputs, batch.targets
    (tensor([[4, 5, 6, 7]]), tensor([[5, 6, 7, 8]]))
    """

    ids: Ids
    length: int
    ahead: int

    def __len__(self) -> int:
        return max(0, (len(self.ids) - self.ahead) // self.length)

    def __getitem__(self, indices: Tensor) -> Batch:
        chosen = checked_indices(indices, len(self))
        places = chosen[:, None].numpy() * self.length + np.arange(self.length + self.ahead)
        found = torch.from_numpy(self.ids[places].astype(np.int64))
        return Batch(found[:, : self.length], found[:, self.ahead :])


def text_task(
    name: str, train: Ids, test: Ids, tokens: Tokens, *, length: int, objective: str, source: str, rate: float = 0.15
) -> Task:
    """Return a language model's task on two texts.

    Args:
        name: of the task.
        train: ids of the text to learn.
        test: ids of the text to be judged by.
        tokens: what the ids are.
        length: of a block.
        objective: causal, to continue each token; or masked, to fill in those that are hidden.
        source: what the text is, in words.
        rate: of hidden tokens.
    """
    whole("length", length)
    causal = choice("objective", objective, OBJECTIVES) == "causal"
    parts = [TextBlocks(ids, length, ahead=int(causal)) for ids in (train, test)]
    for part, which in zip(parts, ("train on", "test"), strict=True):
        if not len(part):
            raise WellcondError(f"{source} has {len(part.ids)} tokens to {which}, less than a block: lower length")
    masking = None if causal else Masking.of(tokens, rate)
    kind, hidden = ("causal-text", "") if causal else ("masked-text", f"{100 * rate:g} % hidden, ")
    counted = f"{len(parts[0])} blocks of {length} {tokens.name} to train on, {len(parts[1])} to test"
    shape = {"tokens": length, "vocabulary": tokens.vocabulary}
    return Task(name, kind, shape, parts[0], parts[1], "perplexity", f"{source}, {hidden}{counted}", masking)


def split_text(ids: Ids, part: float) -> tuple[Ids, Ids]:
    """Cut a text in two: the last `part` of it is for the test.

    >>> split_text(np.arange(10), 0.2)[1]
    array([8, 9])
    """
    if not isinstance(part, int | float) or not 0 < part < 1:
        raise WellcondError(f"test_part is a number between 0 and 1, got {part!r}")
    cut = len(ids) - round(part * len(ids))
    return ids[:cut], ids[cut:]
