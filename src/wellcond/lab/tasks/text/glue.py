"""GLUE: eight tasks on English sentences and pairs of them, from the tsv files that they are distributed as."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from wellcond.errors import WellcondError
from wellcond.lab.tasks.base import Task
from wellcond.lab.tasks.checks import choice, first_of, folder_of, read_utf8, whole
from wellcond.lab.tasks.registry import register_task
from wellcond.lab.tasks.sequences import Pairs, Ragged, packed
from wellcond.lab.tasks.text.tokens import Tokens, tokens_of

SOURCE = "https://gluebenchmark.com/tasks: one zip for each task, unpacked (CoLA/train.tsv, CoLA/dev.tsv, …)"
YES_NO, ENTAILED = ("0", "1"), ("entailment", "not_entailment")


@dataclass(frozen=True)
class Subset:
    """Files, columns and classes of one task of GLUE."""

    folder: str  # of its files
    texts: tuple[str, ...]  # names of the columns of one or two sentences
    label: str  # name of the column
    metric: str = "accuracy"  # as GLUE reports it first
    classes: tuple[str, ...] = YES_NO  # labels in the order of their numbers; none for a real number
    columns: tuple[str, ...] = ()  # names, for a file without a line of them
    held_out: str = "dev.tsv"  # name of the file to test on


SUBSETS = {
    "cola": Subset("CoLA", ("sentence",), "label", "matthews", columns=("source", "label", "star", "sentence")),
    "sst2": Subset("SST-2", ("sentence",), "label"),
    "mrpc": Subset("MRPC", ("#1 String", "#2 String"), "Quality", "f1"),
    "qqp": Subset("QQP", ("question1", "question2"), "is_duplicate", "f1"),
    "stsb": Subset("STS-B", ("sentence1", "sentence2"), "score", "pearson", classes=()),
    "mnli": Subset(
        "MNLI",
        ("sentence1", "sentence2"),
        "gold_label",
        classes=("entailment", "neutral", "contradiction"),
        held_out="dev_matched.tsv",
    ),
    "qnli": Subset("QNLI", ("question", "sentence"), "label", classes=ENTAILED),
    "rte": Subset("RTE", ("sentence1", "sentence2"), "label", classes=ENTAILED),
}


@register_task(
    "glue", "one of eight tasks on English sentences, subset=cola, sst2, mrpc, qqp, stsb, mnli, qnli, rte", SOURCE
)
def glue(
    *,
    folder: str | Path,
    subset: str,
    tokens: int = 128,
    tokenizer: str | None = None,
    joined: bool = False,
    mismatched: bool = False,
) -> Task:
    """Sentences to classes (or a likeness from 0 to 5 for stsb); judged on the development set, the test has no labels.

    A. Wang et al., GLUE, arXiv 1804.07461. The metric is Matthews' correlation for cola, F1 for mrpc and qqp,
    Pearson's correlation for stsb, accuracy for the rest.

    Args:
        folder: with `CoLA`, `SST-2`, …; or that of the one task.
        subset: the task.
        tokens: of a sequence, at most; longer ones are cut.
        tokenizer: of transformers, a folder or a name in the local cache; None for bytes.
        joined: a pair is one sequence `[CLS] a [SEP] b [SEP]` with `token_type_ids`, as BERT reads it (kind sequence);
            otherwise two (kind pair).
        mismatched: test mnli on genres that are not in the training set.
    """
    which = SUBSETS[choice("subset", subset, SUBSETS)]
    whole("tokens", tokens, least=4)
    path = folder_of(folder, SOURCE, which.folder)
    if mismatched and subset != "mnli":
        raise WellcondError(f"mismatched is an option of mnli, not of {subset}")
    words = tokens_of(tokenizer)
    files = ("train.tsv", "dev_mismatched.tsv" if mismatched else which.held_out)
    train, test = (_part(first_of(path, (name,), SOURCE), which, words, tokens, joined) for name in files)
    kind = "pair" if len(which.texts) == 2 and not joined else "sequence"
    shape = {"tokens": tokens, "vocabulary": words.vocabulary, "classes": len(which.classes) or 1}
    title = f"GLUE {which.folder}, {words.name}: {len(train)} to train on, {len(test)} to test ({files[1]})"
    return Task("glue", kind, shape, train, test, which.metric, title)


def read_table(path: Path, which: Subset) -> tuple[list[tuple[str, ...]], list[str]]:
    """Read sentences and labels of a file; tabs part columns and quotes mean nothing, as they do in GLUE.

    A few lines of QQP are short of columns as distributed: up to one in a hundred is left out, more is an error.
    """
    lines = read_utf8(path).rstrip("\n").split("\n")  # splitlines() would also part at characters inside a text
    rows = [line.rstrip("\r").split("\t") for line in lines]
    columns = list(which.columns) or rows.pop(0)
    lacking = [name for name in (*which.texts, which.label) if name not in columns]
    if lacking:
        raise WellcondError(
            f"{str(path)!r} has no column {lacking[0]!r}, only {', '.join(columns)}. The data: {SOURCE}"
        )
    places = [columns.index(name) for name in which.texts]
    # Some files have more columns in a line than in the first: the label of MNLI is the last one named.
    label = columns.index(which.label)
    whole_rows = [row for row in rows if len(row) > max(label, *places)]
    if len(rows) - len(whole_rows) > len(rows) / 100 or not whole_rows:
        broken = next((i for i, row in enumerate(rows) if len(row) <= max(label, *places)), 0)
        raise WellcondError(
            f"{str(path)!r} is damaged: line {broken + 1 + (not which.columns)} has too few columns "
            f"({len(rows) - len(whole_rows)} such lines of {len(rows)}). The data: {SOURCE}"
        )
    return [tuple(row[place] for place in places) for row in whole_rows], [row[label] for row in whole_rows]


def _part(path: Path, which: Subset, words: Tokens, tokens: int, joined: bool) -> Ragged | Pairs:
    texts, named = read_table(path, which)
    labels = _labels(path, named, which.classes)
    sides = [[torch.from_numpy(words.ids(text).astype("int32")) for text in side] for side in zip(*texts, strict=True)]
    if len(sides) == 2 and joined:
        return joined_pairs(sides[0], sides[1], labels, words, tokens)
    parts = [packed([begun_and_ended(ids, words, tokens) for ids in side], labels, tokens, words.pad) for side in sides]
    return Pairs(*parts) if len(parts) == 2 else parts[0]


def _labels(path: Path, named: Sequence[str], classes: tuple[str, ...]) -> Tensor:
    try:
        if not classes:
            return torch.tensor([float(name) for name in named], dtype=torch.float32, device="cpu")
        return torch.tensor([classes.index(name) for name in named], device="cpu")
    except ValueError as error:
        wanted = f"one of {', '.join(classes)}" if classes else "a number"
        raise WellcondError(f"{str(path)!r} has a label that is not {wanted}: {error}. The data: {SOURCE}") from error


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
    return Ragged(torch.cat(pieces), torch.tensor(lengths).cumsum(0), labels, tokens, torch.cat(types), words.pad)


def _special(id: int | None, like: Tensor) -> Tensor:
    return like.new_tensor([] if id is None else [id])
