"""Sentences as BERT reads them: begun, parted and ended by special tokens, cut to fit."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from wellcond.lab.tasks.sequences import Ragged
from wellcond.lab.tasks.text.tokens import Tokens


def begun_and_ended(ids: Tensor, words: Tokens, tokens: int) -> Tensor:
    """Return `[CLS] ids [SEP]`, cut to a number of tokens; without those that the tokenizer does not have.

    >>> from wellcond.lab.tasks.text.tokens import BYTES
    >>> begun_and_ended(torch.tensor([104, 105, 106]), BYTES, tokens=4)
    tensor([  1, 104, 105,   2])
    """
    first, last = _special(words.first, ids), _special(words.between, ids)
    return torch.cat([first, ids[: tokens - len(first) - len(last)], last])


def joined_pairs(
    first: Sequence[Tensor], second: Sequence[Tensor], labels: Tensor, words: Tokens, tokens: int
) -> Ragged:
    """Join pairs to `[CLS] a [SEP] b [SEP]`, of type 0 up to the first `[SEP]`, then 1; the longer one is cut first.

    J. Devlin et al., BERT, arXiv 1810.04805, section 3.

    >>> from wellcond.lab.tasks.text.tokens import BYTES
    >>> a, b = torch.tensor([104, 105, 106, 107]), torch.tensor([108])
    >>> joined_pairs([a], [b], torch.tensor([0]), BYTES, tokens=6)[[0]].inputs["token_type_ids"]
    tensor([[0, 0, 0, 0, 1, 1]])
    """
    pieces, types, lengths = [], [], [0]
    for a, b in zip(first, second, strict=True):
        begin, between = _special(words.first, a), _special(words.between, a)
        room = tokens - len(begin) - 2 * len(between)
        half = (room + (len(a) > len(b))) // 2  # an odd token goes to the longer one, as in transformers
        kept = max(room - len(b), min(len(a), half))
        left = torch.cat([begin, a[:kept], between])
        right = torch.cat([b[: room - min(kept, len(a))], between])
        pieces += [left, right]
        types += [torch.zeros(len(left), dtype=torch.uint8), torch.ones(len(right), dtype=torch.uint8)]
        lengths.append(len(left) + len(right))
    return Ragged(torch.cat(pieces), torch.tensor(lengths).cumsum(0), labels, tokens, words.pad, torch.cat(types))


def _special(id: int | None, like: Tensor) -> Tensor:
    return like.new_tensor([] if id is None else [id])
