"""Tasks of one's own: forms of data, collate functions, losses and metrics, and what is refused in one line."""

from __future__ import annotations

import itertools
import random
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional
from torch.utils.data import Dataset, TensorDataset

from tests.lab.own_models import both, nano_gpt, of_llama, of_nano_gpt, of_vit
from wellcond.errors import BatchError, DataError, WellcondError
from wellcond.lab.recipe.recipe import parse_recipe
from wellcond.lab.tasks import Task, task
from wellcond.lab.tasks.base import Batch
from wellcond.lab.tasks.own.task_of import task_of
from wellcond.lab.training.batches import Batches

X, Y = torch.randn(8, 3, generator=torch.Generator().manual_seed(0)), torch.arange(8) % 3
PAIR = (X, Y)
MSE: dict[str, Any] = {"train": (X, X), "test": (X, X), "loss": functional.mse_loss}


def of(**changes: Any) -> Task:
    return task_of({**MSE, **changes}, "data")


def first(found: Task, count: int = 2) -> Batch:
    return found.train[torch.arange(count)]


# ------------------------------------------------------------------------------------------------ data


@pytest.mark.parametrize(
    "data",
    [
        PAIR,
        [X, Y],
        (X.numpy(), Y.numpy()),
        list(zip(X, Y, strict=True)),
        [(x.tolist(), int(y)) for x, y in zip(X, Y, strict=True)],
        [[x.numpy(), np.int64(y)] for x, y in zip(X, Y, strict=True)],
        TensorDataset(X, Y),
    ],
)
def test_pairs_in_any_form_give_the_same_batch(data: Any) -> None:
    found = of(train=data).train
    batch = found[torch.tensor([5, 2])].to("cpu")
    assert len(found) == 8
    assert len(batch) == 2
    assert torch.equal(batch.inputs, X[[5, 2]])
    assert torch.equal(batch.targets, Y[[5, 2]])


def test_rows_of_hugging_face_datasets_become_tensors_and_text_is_left_out() -> None:
    rows = of_llama()
    data = datasets.Dataset.from_list(rows)
    found = task_of({"train": data, "test": data.select([3, 1])}, "data")
    assert found.test[torch.tensor([0])].inputs["labels"].tolist() == [rows[3]["labels"]]
    batch = first(found)
    assert batch.targets is None
    assert list(batch.inputs) == ["input_ids", "labels"]
    assert batch.inputs["input_ids"].tolist() == [row["input_ids"] for row in rows[:2]]


def test_a_text_is_cut_into_blocks_of_its_bytes() -> None:
    found = task_of({"train": "abcdefghi", "test": "abcde", "length": 4}, "data")
    batch = first(found)
    assert (found.kind, found.metric, found.higher_is_better) == ("causal-text", "perplexity", False)
    assert bytes((batch.inputs[1] - 4).tolist()) == b"efgh"
    assert bytes((batch.targets[1] - 4).tolist()) == b"fghi"


@pytest.mark.parametrize("given_targets", [True, False])
def test_a_text_has_the_perplexity_of_its_next_bytes(given_targets: bool) -> None:
    """nanoGPT gives all logits only with targets; a model that takes none gives them always."""
    found = task_of({"train": "to be or not to be " * 4, "test": "to be or not to be " * 4, "length": 8}, "data")
    model = nano_gpt(vocab_size=260)
    whole = model.forward

    class Plain(torch.nn.Module):
        def forward(self, ids: Tensor) -> Tensor:
            return whole(ids, 1 * ids)[0]

    taken = model if given_targets else Plain()
    batch = first(found, 3)
    assert found.own is not None
    output = found.own.output(taken, batch)
    expected = functional.cross_entropy(
        whole(1 * batch.inputs, 1 * batch.inputs)[0].flatten(0, 1), batch.targets.flatten()
    )
    torch.testing.assert_close(found.loss(output, batch), expected, rtol=1e-6, atol=0)
    assert found.metric_of(found.score(output, batch)) == pytest.approx(expected.exp().item(), rel=1e-5)


def test_ragged_rows_are_put_together_by_a_collate_function() -> None:
    rows = [{"ids": [1] * (number + 1)} for number in range(4)]

    def padded(examples: list[dict[str, list[int]]]) -> dict[str, Tensor]:
        parts = [torch.tensor(example["ids"]) for example in examples]
        return {"ids": torch.nn.utils.rnn.pad_sequence(parts, batch_first=True)}

    assert first(of(train=rows, collate=padded)).inputs["ids"].tolist() == [[1, 0], [1, 1]]
    with pytest.raises(DataError, match=r"data: train: the examples 0, 1 are no batch: 'ids' differ.*give collate="):
        first(of(train=rows))


# ------------------------------------------------------------------------------------------------ draws


class Noisy(Dataset[tuple[Tensor, float]]):
    """Draws from all three generators when an example is read."""

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> tuple[Tensor, float]:
        return torch.rand(2) + index, random.random() + np.random.rand()


RECIPE = """
task = "digits"
model = "vit"
[train]
batch = 4
[arms.default]
"""


def step(found: Task, number: int, seed: int = 0, processes: int = 1, accumulate: int = 1) -> Tensor:
    """All numbers of a step's batch, whoever makes them."""
    recipe = parse_recipe(RECIPE.replace("batch = 4", f"batch = 4\naccumulate = {accumulate}"), "my.toml")
    ranks = [Batches(recipe, found, seed, rank, processes)[number] for rank in range(processes)]
    parts = [batch for rank in ranks for batch, _ in rank]
    return torch.cat([torch.cat([batch.inputs, batch.targets[:, None]], 1) for batch in parts])


def test_what_is_random_in_examples_follows_from_seed_and_step() -> None:
    found = of(train=Noisy())
    before = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].copy()  # type: ignore[union-attr]
    one, again, later = step(found, 3), step(found, 3), step(found, 5)
    assert torch.equal(one, again)
    assert not torch.equal(step(found, 3, seed=1), one)
    # The same example of another epoch is drawn anew.
    shared = [(a, b) for a, b in itertools.product(one, later) if int(a[0]) == int(b[0])]
    assert shared
    assert all(not torch.equal(a, b) for a, b in shared)
    assert torch.equal(torch.get_rng_state(), before[0])
    assert random.getstate() == before[1]
    assert (np.random.get_state()[1] == before[2]).all()  # type: ignore[index]


@pytest.mark.parametrize(("processes", "accumulate"), [(2, 1), (1, 2), (2, 2)])
def test_a_batch_is_the_same_however_it_is_divided(processes: int, accumulate: int) -> None:
    found = of(train=Noisy())
    assert torch.equal(step(found, 2), step(found, 2, 0, processes, accumulate))


def test_an_example_of_the_test_set_is_always_the_same() -> None:
    found = of(train=Noisy()).train
    whole = found[torch.arange(8)].inputs
    assert torch.equal(found[torch.tensor([6, 1])].inputs, whole[[6, 1]])


# ------------------------------------------------------------------------------------------------ metrics


def l1(output: Tensor, target: Tensor) -> float:
    return float((output - target).abs().mean())


@pytest.mark.parametrize("cuts", [[8], [3, 3, 2], [1] * 8])
def test_a_metric_of_ones_own_is_a_mean_over_examples_however_they_are_cut(cuts: list[int]) -> None:
    found = of(metric=l1, higher_is_better=False)
    parts = [found.test[part] for part in torch.arange(8).split(cuts)]
    counts = [found.score(2 * part.inputs, part) for part in parts]
    total = counts[0]
    for count in counts[1:]:
        total = total + count
    assert found.metric == "l1"
    assert found.metric_of(total) == pytest.approx(float(X.abs().mean()), rel=1e-6)


def test_without_a_metric_it_is_the_loss() -> None:
    found = of()
    batch = first(found, 8)
    assert (found.metric, found.higher_is_better) == ("loss", False)
    assert found.metric_of(found.score(0 * X, batch)) == pytest.approx(float(X.square().mean()), rel=1e-6)


def test_known_metrics_are_those_of_tasks_that_come_along() -> None:
    found = of(train=PAIR, test=PAIR, loss=functional.cross_entropy, metric="accuracy")
    batch = first(found, 8)
    logits = functional.one_hot(Y.roll(1), 3).float()
    assert found.higher_is_better
    assert found.metric_of(found.score(logits, batch)) == float((Y.roll(1) == Y).float().mean())


@pytest.mark.parametrize(
    ("metric", "output", "target", "words"),
    [
        ("accuracy", torch.zeros(8, 3), Y[:, None], r"accuracy is of logits \(8, 1, classes\)"),
        ("accuracy", torch.zeros(8), Y, r"accuracy is of logits \(8, classes\)"),
        ("accuracy", torch.zeros(8, 3), Y.float(), "for targets from 0 on"),
        ("accuracy", torch.zeros(8, 3), Y - 100, "for targets from 0 on"),
        ("f1", torch.zeros(8, 3), Y, r"f1 is of logits \(8, 2\)"),
        ("matthews", torch.zeros(8, 3), Y, r"matthews is of logits \(8, 2\)"),
        ("perplexity", torch.zeros(8, 3, 5), Y, r"perplexity is of logits \(8, classes\)"),
        ("pearson", torch.zeros(8, 3), Y, "pearson is of a number for each target"),
        ("accuracy", (torch.zeros(8, 3), None), Y, "the model gives .Tensor .8, 3. of float32, None"),
    ],
)
def test_a_known_metric_counts_nothing_that_it_does_not_fit(
    metric: str, output: Any, target: Tensor, words: str
) -> None:
    found = of(metric=metric)
    with pytest.raises(BatchError, match=words):
        found.score(output, Batch(X, target, 8))


def test_a_known_metric_does_not_guess_the_target_of_a_dict() -> None:
    found = task_of(both(of_nano_gpt(), metric="accuracy"), "data")
    with pytest.raises(BatchError, match=r"accuracy is of pairs .* give metric as a function of .output, batch."):
        found.score(torch.zeros(2, 7, 17), first(found))


# ------------------------------------------------------------------------------------------------ refusals


class NoLength:
    def __getitem__(self, index: int) -> Any:
        return X[index], Y[index]


class BadLength(NoLength):
    def __len__(self) -> int:
        raise RuntimeError("not yet\nknown")


class Breaks(NoLength):
    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> Any:
        raise KeyError("column\n'label'")


BAD: dict[str, tuple[Any, str]] = {
    "nothing": (None, "gives None; expected a dict with train and test"),
    "a number": (3, "gives 3; expected a dict"),
    "a list": ([PAIR, PAIR], "expected a dict"),
    "an empty dict": ({}, "train is missing"),
    "no test": ({"train": PAIR}, "test is missing"),
    "test is None": ({"train": PAIR, "test": None}, "test is missing"),
    "a key misspelt": ({**MSE, "metrics": None}, "there is no 'metrics'; did you mean metric?"),
    "a key unknown": ({**MSE, "optimizer": "sgd"}, "there is no 'optimizer'; there are train, test"),
    "a key that is a number": ({**MSE, 3: 4}, "there is no 3"),
    "a tensor": ({**MSE, "train": X}, "train is a torch.Tensor of shape (8, 3), which has no targets"),
    "an array": ({**MSE, "test": X.numpy()}, "test is a numpy.ndarray of shape (8, 3), which has no targets"),
    "a number as data": ({**MSE, "train": 7}, "train is 7, which is no data: give a dataset"),
    "a function as data": ({**MSE, "train": l1}, "train is a function, which is no data"),
    "a loader": (
        {**MSE, "train": torch.utils.data.DataLoader(TensorDataset(X, Y))},
        "train is a torch.DataLoader, which is in batches already: give its dataset",
    ),
    "a generator": ({**MSE, "train": (x for x in X)}, "train is a generator, which can only be read in order"),
    "a stream": ({**MSE, "train": datasets.Dataset.from_list(of_llama()).to_iterable_dataset()}, "read in order"),
    "columns": ({**MSE, "train": {"x": X, "y": Y}}, "which has no examples by number"),
    "splits": ({**MSE, "train": datasets.DatasetDict()}, "which has no examples by number"),
    "bytes": ({**MSE, "train": b"text"}, "which is not a text: decode it"),
    "no length": ({**MSE, "train": NoLength()}, "train is a NoLength, which is no data"),
    "a length that fails": ({**MSE, "train": BadLength()}, "train: its length raised RuntimeError: not yet known"),
    "no examples": ({**MSE, "train": []}, "train has no example"),
    "tensors without examples": ({**MSE, "train": (X[:0], Y[:0])}, "train has no example"),
    "tensors of other lengths": ({**MSE, "test": (X, Y[:5])}, "test has 8 inputs and 5 targets"),
    "tensors without dimensions": ({**MSE, "train": (X, Y.sum())}, "train has 8 inputs and 0 targets"),
    "arrays of objects": ({**MSE, "train": (np.array([None, "a"]), np.zeros(2))}, "make no tensors"),
    "one text": ({"train": "abc", "test": PAIR}, "one of train and test is a text"),
    "a short text": ({"train": "abc", "test": "abc"}, "3 tokens to train on, less than a block: lower length"),
    "an empty text": ({"train": "", "test": ""}, "0 tokens to train on"),
    "a text and a loss": ({"train": "abc" * 99, "test": "abc" * 99, "loss": l1}, "leave loss out"),
    "a text and a metric": ({"train": "abc" * 99, "test": "abc" * 99, "metric": l1}, "leave metric out"),
    "a length of nothing": ({"train": "abc", "test": "abc", "length": 0}, "length is a whole number from 1 on, got 0"),
    "a length in words": (
        {"train": "abc", "test": "abc", "length": "8"},
        "length is a whole number from 1 on, got '8'",
    ),
    "a length of pairs": ({**MSE, "length": 8}, "length is of a text"),
    "a loss by name": ({**MSE, "loss": "mse"}, "loss is a function of (output, target), got 'mse'"),
    "a collate by name": ({**MSE, "collate": "pad"}, "collate is a function of a list of examples, got 'pad'"),
    "a metric unknown": ({**MSE, "metric": "accurcy"}, "or one of accuracy, perplexity, matthews, f1, pearson"),
    "a metric of detections": ({**MSE, "metric": "ap"}, "got 'ap'"),
    "a metric that is a number": ({**MSE, "metric": 0.5}, "got 0.5"),
    "a metric of unknown sense": ({**MSE, "metric": l1}, "say whether more of l1 is better: higher_is_better="),
    "a sense in words": (
        {**MSE, "metric": l1, "higher_is_better": "no"},
        "higher_is_better is True or False, got 'no'",
    ),
    "a loss to grow": ({**MSE, "higher_is_better": True}, "less of the loss is better"),
    "an accuracy to fall": ({**MSE, "metric": "accuracy", "higher_is_better": False}, "more of accuracy is better"),
}
BAD_EXAMPLES: dict[str, tuple[Any, Any, str]] = {
    "three parts": ([(X[0], X[0], Y[0])] * 4, None, "an example is a pair (input, target), or a dict; got"),
    "one part": ([X[0]] * 4, None, "an example is a pair"),
    "pairs, then others": ([(X[0], Y[0]), X[0]], None, "got Tensor (3,)"),
    "dicts, then others": ([{"x": 1}, (1, 2)], None, "one has x, another is (1, 2)"),
    "dicts of other names": ([{"x": 1}, {"y": 1}], None, "one has x, another has y"),
    "texts alone": ([{"text": "a"}] * 2, None, "they are texts (text), and a model takes numbers: tokenize them"),
    "text as input": ([("a", 1)] * 2, None, "inputs are text, and a model takes numbers"),
    "text as target": ([(1.0, "cat")] * 2, None, "targets are text"),
    "nothing as target": ([(1.0, None)] * 2, None, "targets are nothing (None)"),
    "nothing in a column": ([{"x": 1, "y": None}] * 2, None, "'y' are nothing (None)"),
    "names that are numbers": ([{1: 2.0}] * 2, None, "the names of a dict are texts, got 1"),
    "ragged inputs": ([(X[0], 1), (X[0][:2], 1)], None, "inputs differ in shape, (3,) and (2,): give collate="),
    "ragged lists": ([([1, 2], 1), ([1], 1)], None, "inputs differ in shape, (2,) and (1,)"),
    "lists in lists": ([([[1], [1, 2]], 1)] * 2, None, "inputs are lists that make no tensor"),
    "objects": ([(object(), 1)] * 2, None, "inputs are not put together by torch (TypeError"),
    "a dataset that fails": (Breaks(), None, "train[0] raised KeyError:"),
    "a collate that fails": ([PAIR] * 2, lambda examples: examples[9], "<lambda>, which is given a list of examples,"),
    "a collate that gives nothing": ([PAIR] * 2, lambda examples: None, "<lambda> returned None; expected a pair"),
    "a collate that gives a tensor": ([PAIR] * 2, lambda examples: X, "<lambda> returned Tensor (8, 3) of float32"),
    "a collate that gives three": ([PAIR] * 2, lambda examples: (X, X, Y), "expected a pair (input, target)"),
    "a collate of no names": ([PAIR] * 2, lambda examples: {}, "<lambda> returned {}"),
    "a collate without arguments": ([PAIR] * 2, lambda: X, "takes 0 positional arguments but 1 was given"),
}  # fmt: skip


def one_line(error: BaseException, begins: str, words: str) -> None:
    said = str(error)
    assert said.startswith(begins)
    assert words in said
    assert "\n" not in said
    assert len(said) < 500


@pytest.mark.parametrize("given", BAD)
def test_a_task_that_is_malformed_is_one_line(given: str) -> None:
    value, words = BAD[given]
    with pytest.raises(DataError) as caught:
        task_of(value, "my.py:task")
    one_line(caught.value, "my.py:task", words)


@pytest.mark.parametrize("given", BAD_EXAMPLES)
def test_examples_that_make_no_batch_are_one_line(given: str) -> None:
    data, collate, words = BAD_EXAMPLES[given]
    with pytest.raises(DataError) as caught:
        first(task_of({**MSE, "train": data, "collate": collate}, "my.py:task"))
    one_line(caught.value, "my.py:task: train", words)


# ------------------------------------------------------------------------------------------------ files

HEAD = "import torch, random\nfrom torch.nn import functional\nx = torch.randn(6, 3)\npair = x, x\n"


def written(folder: Path, body: str) -> str:
    (folder / "my.py").write_text(f"{HEAD}{body}\n")
    return f"{folder / 'my.py'}:task"


def test_a_function_in_a_file_gives_a_task_and_takes_options(tmp_path: Path) -> None:
    name = written(tmp_path, "def task(count=2): return {'train': (x[:count], x[:count]), 'test': pair}")
    found = task(name, count=4)
    assert (found.name, found.kind, len(found.train), len(found.test)) == (name, "custom", 4, 6)
    whole = written(tmp_path, "from wellcond.lab.tasks import task as of\ndef task(): return of('digits', seed=3)")
    assert task(whole).kind == "image"


def test_data_that_a_function_draws_are_the_same_each_time(tmp_path: Path) -> None:
    name = written(
        tmp_path,
        "def task():\n    x = torch.rand(4, 1) + random.random()\n    return {'train': (x, x), 'test': (x, x)}",
    )
    before = torch.get_rng_state()
    assert torch.equal(first(task(name)).inputs, first(task(name)).inputs)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize(
    ("body", "function", "options", "words"),
    [
        ("", "task", {}, "has no function 'task'"),
        ("task = 3", "task", {}, "has no function 'task'"),
        ("def task(): return 1 +", "task", {}, "cannot be run: SyntaxError"),
        ("import nonesuch", "task", {}, "cannot be run: ModuleNotFoundError: No module named 'nonesuch' (line 5)"),
        ("def task(): return x.nonesuch", "task", {}, "raised AttributeError: 'Tensor' object has no attribute"),
        ("def task(): raise SystemExit('no\\ndata')", "task", {}, "raised SystemExit: no data"),
        ("def task(): return None", "task", {}, "gives None; expected a dict with train and test, or a Task"),
        ("def task(): return pair", "task", {}, "gives a tuple; expected a dict"),
        ("def task(count): return {}", "task", {}, "missing 1 required positional argument: 'count'"),
        ("def task(): return {}", "task", {"count": 3}, "unexpected keyword argument 'count'"),
        ("def task(): return {'train': pair, 'test': 3}", "task", {}, "test is 3, which is no data"),
        ("def task(): return {}", "tsk", {}, "has no function 'tsk'"),
        ("def task(): return {}", "", {}, "names no function: write path/to/file.py:function"),
    ],
)
def test_a_file_that_gives_no_task_is_one_line(
    body: str, function: str, options: dict[str, Any], words: str, tmp_path: Path
) -> None:
    name = written(tmp_path, body).removesuffix("task") + function
    with pytest.raises(DataError) as caught:
        task(name, **options)
    said = str(caught.value)
    assert words in said
    assert str(tmp_path / "my.py") in said
    assert "\n" not in said


def test_a_file_that_is_not_there_is_one_line() -> None:
    with pytest.raises(WellcondError, match=r"there is no file 'nowhere.py'"):
        task("nowhere.py:task")


def test_images_and_their_classes_are_a_task_of_ones_own_too() -> None:
    found = task_of(both(of_vit(), loss=functional.cross_entropy), "data")
    assert first(found).inputs.shape == (2, 3, 8, 8)
    assert first(found).targets.tolist() == [0, 1]
