"""Malformed batches, inputs and targets for `wc.recommend`, the first or a later one."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import datasets
import torch
from torch.utils.data import DataLoader, Dataset, TensorDataset

from tests.advice.bad_calls import INF, NAN, batches, fail, later, one, pairs, text
from wellcond.errors import BatchError, NotFiniteError


class Failing(Dataset[Any]):
    def __init__(self, at: int) -> None:
        self.at = at

    def __len__(self) -> int:
        return 24

    def __getitem__(self, index: int) -> Any:
        if index == self.at:
            raise OSError(f"no\nimage {index}")
        return torch.zeros(3, 16, 16), 0


class Unreadable:
    def __iter__(self) -> Any:
        raise KeyError("root")


def drawing_then(what: Callable[[], Any], after: int = 2) -> Iterator[Any]:
    """Batches that draw from the global generator, and then something else."""
    for batch in pairs()[:after]:
        yield batch[0] + 0 * torch.rand(()), batch[1]
    yield what()


X, Y = pairs()[0]
BATCHES = [
    batches("nothing", BatchError, "got NoneType", lambda: None),
    batches("a number", BatchError, "a list or a loader of (input, target)", lambda: 5),
    batches("text", BatchError, "got a str", lambda: "train"),
    batches("bytes", BatchError, "got a bytes", lambda: b"train"),
    batches("a tensor", BatchError, "got a Tensor", lambda: X),
    batches("an empty list", BatchError, "there is no batch", list),
    batches("an empty generator", BatchError, "there is no batch", lambda: iter(())),
    batches("an empty loader", BatchError, "there is no batch", lambda: DataLoader(TensorDataset(X[:0], Y[:0]))),
    batches("a generator that raises at once", BatchError, "cannot be read: ValueError", lambda: (fail() for _ in "a")),
    batches("a generator that raises later", BatchError, "cannot be read", lambda: drawing_then(fail)),
    batches("a generator that exits", BatchError, "cannot be read: SystemExit", lambda: drawing_then(sys.exit)),
    batches("a loader whose data raise", BatchError, "OSError: no image 9", lambda: DataLoader(Failing(9), 4)),
    batches(
        "a loader whose workers raise",
        BatchError,
        ": OSError: no image 9",
        lambda: DataLoader(Failing(9), 4, num_workers=1),
    ),
    batches("a data set", BatchError, "got TensorDataset, whose items are single", lambda: TensorDataset(X, Y)),
    batches(
        "a data set of Hugging Face",
        BatchError,
        "got Dataset, whose items are single examples: give DataLoader",
        lambda: datasets.Dataset.from_dict({"x": [1.0, 2.0]}).with_format("torch"),
    ),
    batches("a function", BatchError, "got function", lambda: pairs),
    batches("what cannot be iterated", BatchError, "KeyError: 'root'", Unreadable),
    batches("a list of tensors", BatchError, "batch 1 of 6: a batch is a pair", lambda: [X] * 6),
    batches("a list of texts", BatchError, "got a str", lambda: ["ab", "cd"]),
    batches("a list of numbers", BatchError, "got a int", lambda: [1, 2]),
    batches("triples", BatchError, "got a tuple of 3", lambda: [(X, X, Y)] * 6),
    batches("inputs alone", BatchError, "got a tuple of 1", lambda: [(X,)] * 6),
    batches("objects", BatchError, "got a SimpleNamespace", lambda: [SimpleNamespace(x=X, y=Y)] * 6),
    batches("empty dicts", BatchError, "got a dict of []", lambda: [{}] * 6),
    batches("dicts of numbers", BatchError, "got a dict of [0, 1]", lambda: [{0: X, 1: Y}] * 6),
    batches("dicts of other names", BatchError, "takes x", lambda: [{"image": X, "label": Y}] * 6),
    batches("a later triple", BatchError, "batch 2 of 6: a batch is a pair", later(2, (X, Y, Y))),
    batches("a later nothing", BatchError, "batch 5 of 6: a batch is a pair", later(5, None)),
    batches("a later dict", BatchError, "batch 6 of 6: ", later(6, {"image": X})),
    batches("a later image of other channels", BatchError, "batch 4 of 6: Vis", later(4, (X[:, :1], Y))),
    batches("a later class too many", BatchError, "batch 3 of 6: cross_entropy", later(3, (X, Y + 7))),
    batches("a later nan", NotFiniteError, "batch 6 of 6: its loss", later(6, (X * NAN, Y))),
    batches("a later target of other length", BatchError, "batch 2 of 6: cross_entropy", later(2, (X, Y[:2]))),
    batches("an input of text", BatchError, "cannot be run on 'cat'", one("cat")),
    batches("an input of numbers", BatchError, "cannot be run on (1, 2)", one([1, 2])),
    batches("an array", BatchError, "cannot be run on a numpy.ndarray of shape", one(X.numpy())),
    batches("one channel", BatchError, "Tensor (4, 1, 16, 16)", one(X[:, :1])),
    batches("another size", BatchError, "Tensor (4, 3, 8, 8)", one(X[..., :8, :8])),
    batches("flat images", BatchError, "Tensor (4, 768)", one(X.flatten(1))),
    batches("images of whole numbers", BatchError, "of uint8", one(X.byte())),
    batches("complex images", BatchError, "of complex64", one(X + 0j)),
    batches("images on the meta device", BatchError, "cannot be copied to cpu", one(X.to("meta"))),
    batches("images that are not numbers", NotFiniteError, "batch 1 of 6: its loss in evaluation is nan", one(X * NAN)),
    batches("infinite images", NotFiniteError, "look at its inputs and targets", one(X + INF)),
    batches("no images in a batch", NotFiniteError, "its loss", lambda: [(X[:0], Y[:0])] * 6),
    batches("a keyword it does not take", BatchError, "unexpected keyword argument 'image'", one({"image": X})),
    batches("arguments too many", BatchError, "positional arguments", one((X, X, X, X))),
    batches("a target of nothing", BatchError, "cross_entropy(output, target) raised", lambda: [(X, None)] * 6),
    batches("a target of text", BatchError, "a target 'cat'", one(y="cat")),
    batches("classes too many", BatchError, "IndexError: Target", one(y=Y + 5)),
    batches("negative classes", BatchError, "raised IndexError", one(y=Y - 7)),
    batches("too few targets", BatchError, "target Tensor (3,)", one(y=Y[:3])),
    batches("targets of another shape", BatchError, "target Tensor (4, 2)", one(y=torch.zeros(4, 2))),
    batches("targets of nan", NotFiniteError, "its loss", one(y=torch.full((4, 5), NAN))),
    text("ids beyond the vocabulary", BatchError, "out of range", lambda b: {n: x + 10**9 for n, x in b.items()}),
    text("negative ids", BatchError, "out of range", lambda b: {name: x - 70 for name, x in b.items()}),
    text("ids of real numbers", BatchError, "of float32", lambda b: b | {"input_ids": b["input_ids"].float()}),
    text("texts too long", BatchError, "cannot be run on", lambda b: {n: x.repeat(1, 9) for n, x in b.items()}),
    text("no labels", BatchError, "without a loss: say loss=", lambda b: {"input_ids": b["input_ids"]}),
    text("labels by another name", BatchError, "without a loss", lambda b: {"input_ids": b["input_ids"], "lables": 1}),
    text("labels that all are left out", NotFiniteError, "nan", lambda b: b | {"labels": b["labels"] * 0 - 100}),
    text("a key that is no text", BatchError, "a dict of ['input_ids', 1]", lambda b: {"input_ids": b["labels"], 1: 2}),
]
