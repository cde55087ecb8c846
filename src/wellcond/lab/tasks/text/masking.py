"""BERT's masking: some tokens are hidden, to be filled in."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from wellcond.errors import WellcondError
from wellcond.lab.tasks.base import Batch
from wellcond.lab.tasks.metrics import IGNORED
from wellcond.lab.tasks.text.tokens import Tokens


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
