"""Text as token ids: its bytes, or a tokenizer on this machine."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wellcond.errors import WellcondError
from wellcond.inputs.models import offline
from wellcond.lab.tasks.checks import library

Ids = NDArray[Any]


@dataclass(frozen=True)
class Tokens:
    """A tokenizer: how text becomes ids; a special one that it does not have is None."""

    name: str  # for descriptions
    vocabulary: int  # ids are smaller than this
    pad: int  # fills a sequence up
    first: int | None  # begins a sequence, as BERT's [CLS]
    between: int | None  # ends a sentence, as BERT's [SEP]
    mask: int | None  # stands for a hidden token
    tokenizer: Any = None  # of transformers; None for bytes

    @property
    def special(self) -> tuple[int, ...]:
        """Return ids that are no text: never masked, never drawn in place of a masked one."""
        if self.tokenizer is not None:
            return tuple(self.tokenizer.all_special_ids)
        return tuple(id for id in (self.pad, self.first, self.between, self.mask) if id is not None)

    def ids(self, text: str) -> Ids:
        """Return the ids of a text, without special ones; one for each byte of its UTF-8, or the tokenizer's.

        >>> BYTES.ids("ab")
        array([101, 102], dtype=uint16)
        """
        if self.tokenizer is None:
            return np.frombuffer(text.encode(errors="surrogatepass"), dtype=np.uint8).astype(np.uint16) + 4
        found = self.tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]
        return np.asarray(found, dtype=np.uint16 if self.vocabulary <= 2**16 else np.int32)


# Four special ids, then the 256 bytes.
BYTES = Tokens("bytes", 260, pad=0, first=1, between=2, mask=3)


def tokens_of(tokenizer: str | None) -> Tokens:
    """Return bytes if None, else a tokenizer of transformers, from a folder or the local cache; nothing is fetched.

    >>> tokens_of(None).vocabulary
    260
    """
    if tokenizer is None:
        return BYTES
    transformers = library("transformers", "hf")
    try:
        with offline():
            found = transformers.AutoTokenizer.from_pretrained(
                str(tokenizer), local_files_only=True, trust_remote_code=False
            )
    except Exception as error:  # files of any age and kind
        raise WellcondError(
            f"the tokenizer {str(tokenizer)!r} cannot be loaded ({type(error).__name__}): give a folder with its "
            f"tokenizer.json, or put it into the local cache with hf download {tokenizer}"
        ) from error
    if len(found) <= len(found.all_special_tokens):  # from a configuration alone transformers makes an empty one
        raise WellcondError(f"the tokenizer {str(tokenizer)!r} knows no word: give a folder with its tokenizer.json")
    pad = found.pad_token_id if found.pad_token_id is not None else found.eos_token_id
    return Tokens(
        f"tokens of {tokenizer}",
        len(found),
        pad=0 if pad is None else pad,
        first=found.cls_token_id,
        between=found.sep_token_id,
        mask=found.mask_token_id,
        tokenizer=found,
    )
