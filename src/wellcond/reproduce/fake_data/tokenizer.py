"""A fake tokenizer for fake text: every word is a token, the rest of the vocabulary is never used."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from wellcond.errors import WellcondError
from wellcond.lab.tasks.checks import library, whole
from wellcond.lab.tasks.text.documents import DOCUMENT_END

TOKENIZER_FOLDER = "tokenizer"  # the folder beside the data
WORD_LIST = (
    "the a one two old new small large red green blue white quiet bright warm cold boy girl dog cat bird fish tree "
    "river hill house garden road boat stone cloud rain sun moon star night day walks runs sees finds takes gives "
    "makes opens likes asks answers stays over under near with from and but then soon again always never very"
)
WORDS = WORD_LIST.split(" ")
PUNCTUATION = (".", "?", "=", '"', ",")
SPECIAL_TOKENS = {
    "pad_token": "[PAD]",
    "unk_token": "[UNK]",
    "cls_token": "[CLS]",
    "sep_token": "[SEP]",
    "mask_token": "[MASK]",
    "eos_token": DOCUMENT_END,
}
USUAL_VOCABULARY = 1024
# Tokens of published tokenizers by a part of their name; the first that fits.
VOCABULARIES = {
    "cram": 32_768,
    "gpt2": 50_257,
    "gpt-neo": 50_257,
    "tinystories": 50_257,
    "bert-base-uncased": 30_522,
}


def tokenizer_size(tokenizer: str) -> int:
    """Return how many tokens a real tokenizer has, by the last part of its name; 1024 if it is not known.

    >>> [tokenizer_size(name) for name in ("openai-community/gpt2", "JonasGeiping/crammed-bert", "mine")]
    [50257, 32768, 1024]
    """
    name = tokenizer.rstrip("/").rsplit("/", 1)[-1].lower()
    return next((size for part, size in VOCABULARIES.items() if part in name), USUAL_VOCABULARY)


def write_tokenizer(folder: Path, vocabulary: int = USUAL_VOCABULARY) -> None:
    """Write `tokenizer.json` and its configuration, as transformers loads them from a folder.

    Every word and sign of the fake texts is a token, with BERT's five special ones and GPT-2's end of a text. What
    is left of the vocabulary, a number of tokens, is `[unused…]`, as in BERT's own.

    >>> import tempfile
    >>> from wellcond.lab.tasks.text.tokens import tokens_of
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_tokenizer(Path(folder), 300)
    ...     tokens = tokens_of(folder)
    >>> tokens.vocabulary, tokens.ids("the dog runs.").tolist()
    (300, [6, 24, 44, 68])
    """
    tokens = [*SPECIAL_TOKENS.values(), *WORDS, *PUNCTUATION]
    if whole("vocabulary", vocabulary) < len(tokens):
        raise WellcondError(f"fake text has {len(tokens)} tokens, more than vocabulary = {vocabulary}: raise it")
    unused = (f"[unused{number}]" for number in range(vocabulary - len(tokens)))
    numbered = {token: id for id, token in enumerate((*tokens, *unused))}
    tokenizers, transformers = library("tokenizers", "hf"), library("transformers", "hf")
    words = tokenizers.Tokenizer(tokenizers.models.WordLevel(numbered, unk_token=SPECIAL_TOKENS["unk_token"]))
    words.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    transformers.PreTrainedTokenizerFast(tokenizer_object=words, **SPECIAL_TOKENS).save_pretrained(folder)


def words_of(draw: np.random.Generator, count: int, topic: int = 0) -> list[str]:
    """So many words: each is the one after the last in the list of words, or with probability ½ any of the topic's.

    Two topics share half of their words or more.

    >>> words_of(np.random.default_rng(0), 4) == words_of(np.random.default_rng(0), 4)
    True
    """
    places = np.arange(count)
    chosen = (draw.integers(len(WORDS) // 2, size=count) + topic * len(WORDS) // 4) % len(WORDS)
    begun = np.maximum.accumulate(np.where(draw.random(count) < 0.5, places, 0))
    return [WORDS[number] for number in (chosen[begun] + places - begun) % len(WORDS)]


def sentence_of(draw: np.random.Generator, topic: int = 0) -> str:
    """Four to ten words and a full stop."""
    return " ".join(words_of(draw, int(draw.integers(4, 11)), topic)) + "."
