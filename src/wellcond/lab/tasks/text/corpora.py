"""Language modelling on corpora that the user has: TinyStories, WikiText-103, the Pile."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path

import numpy as np

from wellcond._core.atomic import replacing
from wellcond._core.keyed_random import key
from wellcond.errors import WellcondError
from wellcond.lab.tasks.base import Task
from wellcond.lab.tasks.checks import choice, folder_of, whole
from wellcond.lab.tasks.registry import register_task
from wellcond.lab.tasks.text.blocks import OBJECTIVES, text_task
from wellcond.lab.tasks.text.documents import DOCUMENT_END, documents, files_like, first_characters
from wellcond.lab.tasks.text.tokens import Ids, Tokens, tokens_of

Folder = str | Path
DATA_SOURCES = {
    "tinystories": "https://huggingface.co/datasets/roneneldan/TinyStories: TinyStories-train.txt and -valid.txt",
    "wikitext103": "https://huggingface.co/datasets/Salesforce/wikitext: parquet files of wikitext-103-raw-v1",
    "pile": "train/*.jsonl, val.jsonl and test.jsonl of the Pile (arXiv 2101.00027), or any files named like these",
}
# Patterns of files by the part; the first that has any is taken. {part} is train, validation or test; {short} is what
# the files themselves call it.
FILE_PATTERNS = {
    "tinystories": (
        "TinyStories-{short}.txt",
        "TinyStoriesV2-GPT4-{short}.txt",
        "{part}-*.parquet",
        "data/{part}-*.parquet",
    ),
    "wikitext103": (
        "wiki.{short}.tokens",
        "wiki.{short}.raw",
        "wikitext-103*/wiki.{short}.*",
        "{part}-*.parquet",
        "wikitext-103*/{part}-*.parquet",
    ),
    "pile": ("{short}/*.jsonl*", "{short}.jsonl*", "{short}*.parquet", "data/{short}*.parquet", "{short}*.txt*"),
}
SHORT_VALIDATION = {"tinystories": "valid", "wikitext103": "valid", "pile": "val"}  # names of that part in the files


@register_task("tinystories", "continue short stories for children", DATA_SOURCES["tinystories"])
def tinystories(
    *,
    folder: Folder,
    length: int = 512,
    tokenizer: str | None = None,
    cache: Folder | None = None,
    train_characters: int | None = None,
) -> Task:
    """Two million stories that GPT-3.5 and GPT-4 wrote; the validation file is the test, there is no other.

    R. Eldan and Y. Li, TinyStories, arXiv 2305.07759.

    Args:
        folder: of the text or parquet files.
        length: of a block of tokens.
        tokenizer: of transformers, a folder or a name in the local cache; None for bytes.
        cache: a folder to keep the tokens in; otherwise they are made anew each time, and held in memory.
        train_characters: only the first so many.
    """
    return _corpus("tinystories", folder, length, tokenizer, cache, train_characters, "causal", "validation")


@register_task("wikitext103", "continue articles of Wikipedia", DATA_SOURCES["wikitext103"])
def wikitext103(
    *,
    folder: Folder,
    length: int = 1024,
    tokenizer: str | None = None,
    cache: Folder | None = None,
    train_characters: int | None = None,
    held_out: str = "validation",
) -> Task:
    """A hundred million words of good articles, raw or with rare words replaced, as the files are.

    S. Merity, C. Xiong, J. Bradbury, R. Socher, Pointer Sentinel Mixture Models, arXiv 1609.07843.

    Options are those of `tinystories`, with a folder of `wiki.train.tokens`, `wiki.train.raw` or parquet files, or the
    one above; and `held_out`, validation or test.
    """
    return _corpus("wikitext103", folder, length, tokenizer, cache, train_characters, "causal", held_out)


@register_task("pile", "continue, or fill in, text of all kinds", DATA_SOURCES["pile"])
def pile(
    *,
    folder: Folder,
    length: int = 128,
    tokenizer: str | None = None,
    cache: Folder | None = None,
    train_characters: int | None = None,
    objective: str = "masked",
    rate: float = 0.25,
    held_out: str = "validation",
) -> Task:
    """The Pile, or a part of it; by default as Crammed BERT is trained on it: 128 tokens, a quarter of them hidden.

    L. Gao et al., The Pile, arXiv 2101.00027; J. Geiping and T. Goldstein, Cramming, arXiv 2212.14034.

    Options are those of `tinystories`, with a folder of JSON lines, parquet or text; and `objective`, masked or causal,
    `rate` of hidden tokens, and `held_out`, validation or test.
    """
    return _corpus("pile", folder, length, tokenizer, cache, train_characters, objective, held_out, rate)


def _corpus(
    name: str, folder: Folder, length: int, tokenizer: str | None, cache: Folder | None, characters: int | None,
    objective: str, held_out: str, rate: float = 0.15,
) -> Task:  # fmt: skip
    choice("held_out", held_out, ("validation", "test"))
    choice("objective", objective, OBJECTIVES)  # before hours are spent on tokens
    whole("length", length)
    path, tokens = folder_of(folder, DATA_SOURCES[name]), tokens_of(tokenizer)
    limit = None if characters is None else whole("train_characters", characters)
    train, test = (
        corpus_ids(_files(name, path, part), tokens, cache, most, end="" if name == "wikitext103" else DOCUMENT_END)
        for part, most in (("train", limit), (held_out, None))
    )
    return text_task(name, train, test, tokens, length=length, objective=objective, source=name, rate=rate)


def _files(name: str, folder: Path, part: str) -> list[Path]:
    short = SHORT_VALIDATION[name] if part == "validation" else part
    return files_like(folder, [p.format(part=part, short=short) for p in FILE_PATTERNS[name]], DATA_SOURCES[name])


def corpus_ids(files: Sequence[Path], tokens: Tokens, cache: Folder | None, characters: int | None, *, end: str) -> Ids:
    """Return all ids of some files in order: in memory, or mapped from a file that is written once.

    The name of that file is a hash of the names, sizes and times of the texts, the tokenizer and the limit.
    """
    texts = first_characters(chain.from_iterable(documents(file, end=end) for file in files), characters)
    pieces = (tokens.ids(text) for text in texts)
    small = np.uint16 if tokens.vocabulary <= 2**16 else np.int32
    if cache is None:
        return np.concatenate([np.zeros(0, small), *pieces])
    states = [(str(file.resolve()), file.stat().st_size, file.stat().st_mtime_ns) for file in files]
    kept = Path(cache).expanduser() / f"tokens-{key(states, tokens.name, tokens.vocabulary, characters, end):016x}.bin"
    if not kept.is_file():
        _write(kept, pieces)
    if not kept.stat().st_size:
        raise WellcondError(f"{', '.join(map(str, files))}: there is no text in it")
    return np.memmap(kept, dtype=small, mode="r")


def _write(path: Path, pieces: Iterator[Ids]) -> None:
    """Write a file piece by piece, whole or not at all: a corpus may be larger than memory."""
    with replacing(path, WellcondError) as temporary:
        path.parent.mkdir(parents=True, exist_ok=True)
        with temporary.open("wb") as handle:
            for piece in pieces:
                handle.write(piece.tobytes())
