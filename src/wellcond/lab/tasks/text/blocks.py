"""A long text cut into blocks, to be continued or, where BERT's masking hides tokens, filled in."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from wellcond.errors import WellcondError
from wellcond.lab.tasks.base import Batch, Task
from wellcond.lab.tasks.checks import checked_indices, choice, whole
from wellcond.lab.tasks.metrics import IGNORED
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


@dataclass(frozen=True)
class Masking:
    """Choose 15 per cent of the tokens; of these 80 % become the mask, 10 % a random token, 10 % stay; predict them.

    J. Devlin, M.-W. Chang, K. Lee, K. Toutanova, BERT, arXiv 1810.04805, section 3.1 and appendix A.1. Each token is
    chosen by itself, as in transformers' collator, so their number varies. Special tokens are neither chosen nor drawn.

    Args:
        mask: the id of the mask.
        ordinary: ids that may be drawn in place of another.
        special: ids that are left alone.
        rate: of chosen tokens.

    >>> from wellcond.lab.tasks.text.tokens import BYTES
    >>> text = torch.full((1, 1000), 104)
    >>> batch = Masking.of(BYTES)(Batch(text, text), torch.Generator().manual_seed(0))
    >>> int((batch.targets != IGNORED).sum()), int((batch.inputs == BYTES.mask).sum())
    (152, 123)
    """

    mask: int
    ordinary: torch.Tensor
    special: torch.Tensor
    rate: float = 0.15

    @classmethod
    def of(cls, tokens: Tokens, rate: float = 0.15) -> Masking:
        """Return the masking for a tokenizer."""
        if tokens.mask is None:
            raise WellcondError(f"{tokens.name} have no mask token: take a tokenizer that has one, such as BERT's")
        if not isinstance(rate, int | float) or not 0 < rate < 1:
            raise WellcondError(f"rate is a number between 0 and 1, got {rate!r}")
        special = torch.tensor(sorted({*tokens.special, tokens.mask}))
        everything = torch.arange(tokens.vocabulary)
        return cls(tokens.mask, everything[~torch.isin(everything, special)], special, rate)

    def __call__(self, batch: Batch, generator: torch.Generator) -> Batch:
        """Hide tokens; the draws depend on the generator and the shape of the batch alone."""
        ids, device = batch.inputs, batch.inputs.device
        draws = torch.rand(2, *ids.shape, generator=generator, device=generator.device, dtype=torch.float32).to(device)
        drawn = torch.randint(len(self.ordinary), ids.shape, generator=generator, device=generator.device).to(device)
        chosen = (draws[0] < self.rate) & ~torch.isin(ids, self.special.to(device))
        inputs = ids.masked_fill(chosen & (draws[1] < 0.8), self.mask)
        inputs = torch.where(chosen & (draws[1] >= 0.9), self.ordinary.to(device)[drawn], inputs)
        return Batch(inputs, ids.masked_fill(~chosen, IGNORED))


def text_task(
    name: str, train: Ids, test: Ids, tokens: Tokens, *, length: int, objective: str, source: str, rate: float = 0.15
) -> Task:
    """Return a language model's task on two texts.

    Texts are ids of `tokens`, cut into blocks of a length; `source` says in words what they are. The objective is
    causal, to continue each token, or masked, to fill in those that are hidden, at a `rate`.
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
