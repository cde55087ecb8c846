"""Fake sentences in the tsv files of GLUE, with the columns that each task of it has."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from wellcond.lab.tasks.text.glue import SUBSETS, Subset
from wellcond.reproduce.fake_data import new_file
from wellcond.reproduce.fake_data.tokenizer import sentence_of

ROW_COUNTS = {"train": 24, "dev": 12}
PARSE_COLUMNS = tuple(f"sentence{number}_{kind}" for kind in ("binary_parse", "parse") for number in (1, 2))
SENTENCE_PAIR = ("sentence1", "sentence2")
COLUMNS = {
    "cola": ("source", "label", "star", "sentence"),  # its files have no line of names
    "sst2": ("sentence", "label"),
    "mrpc": ("Quality", "#1 ID", "#2 ID", "#1 String", "#2 String"),
    "qqp": ("id", "qid1", "qid2", "question1", "question2", "is_duplicate"),
    "stsb": ("index", "genre", "filename", "year", "old_index", "source1", "source2", *SENTENCE_PAIR, "score"),
    "mnli": ("index", "promptID", "pairID", "genre", *PARSE_COLUMNS, *SENTENCE_PAIR, "label1", "gold_label"),
    "qnli": ("index", "question", "sentence", "label"),
    "rte": ("index", *SENTENCE_PAIR, "label"),
}
ANNOTATOR_LABELS = ("label1", "label2", "label3", "label4", "label5")  # of MNLI; only the first is in its training set


def write_glue(folder: Path, options: Mapping[str, Any], draw: np.random.Generator) -> None:
    """`CoLA/train.tsv`, `CoLA/dev.tsv` and so on for all eight, as gluebenchmark.com has them but for the tests.

    A. Wang et al., GLUE, arXiv 1804.07461. All eight are written whichever `subset` is asked for, since recipes train
    on one after the other from the same folder. Tests are left out: they have no labels and are not read.
    """
    for subset, which in SUBSETS.items():
        inside = folder / which.folder
        _write(inside / "train.tsv", which, COLUMNS[subset], ROW_COUNTS["train"], draw)
        if subset == "mnli":
            columns = (*COLUMNS[subset][:-2], *ANNOTATOR_LABELS, "gold_label")
            for name in ("dev_matched.tsv", "dev_mismatched.tsv"):
                _write(inside / name, which, columns, ROW_COUNTS["dev"], draw)
        else:
            _write(inside / "dev.tsv", which, COLUMNS[subset], ROW_COUNTS["dev"], draw)


def _write(path: Path, which: Subset, columns: tuple[str, ...], rows: int, draw: np.random.Generator) -> None:
    lines = [] if which.columns else ["\t".join(columns)]
    for number in range(rows):
        topic = number % (len(which.classes) or 6)
        label = which.classes[topic] if which.classes else f"{topic * draw.uniform(0.8, 1):.3f}"
        cells = {name: _other(name, number, draw) for name in columns}
        cells |= {name: sentence_of(draw, topic) for name in which.texts}
        cells |= dict.fromkeys((which.label, *ANNOTATOR_LABELS), label)
        lines.append("\t".join(cells[name] for name in columns))
    new_file(path, "\n".join(lines) + "\n")


def _other(name: str, number: int, draw: np.random.Generator) -> str:
    """Fill a column that is neither a sentence nor a label, and is not read."""
    if name == "star":
        return "" if number % 2 else "*"
    if name.endswith("parse"):
        return "( made ( up . ) )"
    if name in ("genre", "filename", "source", "source1", "source2"):
        return "fake"
    return str(number if name in ("index", "id") else int(draw.integers(1000, 9999)))
