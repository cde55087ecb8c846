"""Fake text in the formats of TinyStories, WikiText-103, the Pile and the Long Range Arena."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from wellcond.lab.tasks.checks import library
from wellcond.lab.tasks.text.documents import DOCUMENT_END
from wellcond.reproduce.fake_data import new_file
from wellcond.reproduce.fake_data.tokenizer import sentence_of, words_of

BLOCK_COUNTS = {"train": 32, "validation": 8, "test": 8}  # of `length` words; with bytes for tokens there are more
REVIEW_COUNTS = {"train": 12, "test": 6}  # of each class
PAIR_COUNTS = {"train": 16, "eval": 8, "test": 8}


def write_tinystories(folder: Path, options: Mapping[str, Any], draw: np.random.Generator) -> None:
    """`TinyStories-train.txt` and `TinyStories-valid.txt`: stories, each followed by a line `<|endoftext|>`."""
    for name, part in (("train", "train"), ("valid", "validation")):
        stories = _documents(draw, BLOCK_COUNTS[part] * options.get("length", 512))
        text = "".join(f"{' '.join(story)}\n{DOCUMENT_END}\n" for story in stories)
        new_file(folder / f"TinyStories-{name}.txt", text)


def write_wikitext103(folder: Path, options: Mapping[str, Any], draw: np.random.Generator) -> None:
    """`wikitext-103-raw/wiki.train.raw`, `.valid.raw` and `.test.raw`: articles, their headings between `=`.

    Words and signs are parted by spaces, and each line begins and ends with one.
    """
    for name, part in (("train", "train"), ("valid", "validation"), ("test", "test")):
        lines: list[str] = []
        for article in _documents(draw, BLOCK_COUNTS[part] * options.get("length", 1024)):
            title = " ".join(words_of(draw, 3))
            lines += ["", f"= {title} =", "", " ".join(article).replace(".", " ."), ""]
        text = "".join(f" {line} \n" if line else " \n" for line in lines)
        new_file(folder / "wikitext-103-raw" / f"wiki.{name}.raw", text)


def write_pile(folder: Path, options: Mapping[str, Any], draw: np.random.Generator) -> None:
    """`data/train-00000-of-00001.parquet`, `val-….parquet` and `test-….parquet`, with columns `text` and `meta`.

    `meta` is a string of JSON that says which part of the Pile a document is from.
    """
    arrow, parquet = library("pyarrow", "data"), library("pyarrow.parquet", "data")
    (folder / "data").mkdir()
    for name, part in (("train", "train"), ("val", "validation"), ("test", "test")):
        texts = [" ".join(document) for document in _documents(draw, BLOCK_COUNTS[part] * options.get("length", 128))]
        meta = [json.dumps({"pile_set_name": "Fake"})] * len(texts)
        parquet.write_table(
            arrow.table({"text": texts, "meta": meta}), folder / "data" / f"{name}-00000-of-00001.parquet"
        )


def write_lra_text(folder: Path, options: Mapping[str, Any], draw: np.random.Generator) -> None:
    """`aclImdb/train/neg/0_1.txt`, …: number and rating in the name, 1 to 4 for `neg`, 7 to 10 for `pos`.

    Some are shorter than `tokens` bytes, some longer.
    """
    for part, count in REVIEW_COUNTS.items():
        for topic, (name, lowest) in enumerate((("neg", 1), ("pos", 7))):
            for number in range(count):
                text = _long(draw, options.get("tokens", 4000), topic)
                file = f"{number}_{lowest + int(draw.integers(4))}.txt"
                new_file(folder / "aclImdb" / part / name / file, text)


def write_lra_retrieval(folder: Path, options: Mapping[str, Any], draw: np.random.Generator) -> None:
    """`tsv_data/new_aan_pairs.train.tsv`, `.eval.tsv` and `.test.tsv`: label 0.0 or 1.0, two ids, two texts.

    Two papers of which one cites the other are of the same topic.
    """
    for name, count in PAIR_COUNTS.items():
        lines = []
        for number in range(count):
            cited, topic = number % 2, number // 2 % 2
            first, second = (
                _long(draw, options.get("tokens", 4000), 2 * t) for t in (topic, topic if cited else 1 - topic)
            )
            ids = (f"P{number:02d}-{paper:04d}" for paper in draw.integers(1000, 9999, size=2))
            lines.append("\t".join([f"{cited}.0", *ids, first, second]) + "\n")
        new_file(folder / "tsv_data" / f"new_aan_pairs.{name}.tsv", "".join(lines))


def _documents(draw: np.random.Generator, words: int) -> Iterator[list[str]]:
    """Documents of up to eight sentences, each of a topic, with so many words or a few more."""
    found = 0
    while found <= words:
        topic = int(draw.integers(4))
        document = [sentence_of(draw, topic) for _ in range(int(draw.integers(2, 9)))]
        found += sum(sentence.count(" ") + 1 for sentence in document)
        yield document


def _long(draw: np.random.Generator, characters: int, topic: int) -> str:
    """A text of a quarter to five quarters of so many characters, and a few more."""
    least, text = int(characters * draw.uniform(0.25, 1.25)), ""
    while len(text) < least:
        text += sentence_of(draw, topic) + " "
    return text.rstrip()
