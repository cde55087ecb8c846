"""Tasks: what holds of all of them, and their losses and metrics against scikit-learn, scipy and torch."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from types import SimpleNamespace

import numpy as np
import pytest
import scipy.stats
import sklearn.metrics
import torch
from torch import Tensor

from wellcond.errors import WellcondError
from wellcond.lab.tasks import Batch, Counts, Task, options_of, task, tasks
from wellcond.lab.tasks.metrics import IGNORED, METRICS, count, metric_of
from wellcond.lab.tasks.registry import register_task

EMBEDDED = {
    "digits": {},
    "listops": {"train_examples": 40, "test_examples": 10},
    "pathfinder": {"train_examples": 5, "test_examples": 3, "paddles": 6},
    "topics-text": {"length": 32},
    "masked-text": {"length": 32},
    "shapes": {"train_images": 5, "test_images": 3},
}
WITH_FOLDER = {
    *("cifar10", "cifar100", "lra-image", "flowers", "pets", "food101", "imagenet", "coco", "fashion-mnist"),
    *("tinystories", "wikitext103", "pile", "lra-text", "lra-retrieval", "glue"),
}


def tensors(value: object) -> Iterator[Tensor]:
    if isinstance(value, Batch):
        value = (value.inputs, value.targets)
    if isinstance(value, Tensor):
        yield value
    else:
        for item in value.values() if isinstance(value, dict) else value:
            yield from tensors(item)


def same(first: Batch, second: Batch) -> bool:
    return all(torch.equal(a, b) for a, b in zip(tensors(first), tensors(second), strict=True))


def test_every_task_is_listed_with_a_description():
    assert set(tasks()) == set(EMBEDDED) | WITH_FOLDER
    assert all(tasks().values())


@pytest.mark.parametrize("name", EMBEDDED)
def test_embedded_tasks_are_deterministic_and_touch_no_global_state(name):
    before = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].copy()
    first, second = (task(name, **EMBEDDED[name]) for _ in range(2))
    few = torch.tensor([2, 0, 2])
    batch = first.train[few]
    assert same(batch, second.train[few])
    assert same(first.test[few], second.test[few])
    assert len(batch) == 3
    assert all(tensor.dtype in (torch.float32, torch.int64, torch.uint8) for tensor in tensors(batch))
    each = [first.train[few[i : i + 1]] for i in range(3)]
    assert same(batch, second.train[few])
    assert same(each[0], each[2])
    assert not same(each[0], each[1])
    assert torch.equal(before[0], torch.get_rng_state())
    assert before[1] == random.getstate()
    assert (before[2] == np.random.get_state()[1]).all()
    assert first.description
    assert "\n" not in first.description


@pytest.mark.parametrize("name", EMBEDDED)
def test_defaults_of_device_and_precision_change_nothing(name):
    few = torch.tensor([1, 0])
    plain = task(name, **EMBEDDED[name]).train[few]
    try:
        torch.set_default_device("meta")
        torch.set_default_dtype(torch.float64)
        assert same(plain, task(name, **EMBEDDED[name]).train[few])
    finally:
        torch.set_default_device("cpu")
        torch.set_default_dtype(torch.float32)


@pytest.mark.parametrize("name", EMBEDDED)
def test_an_example_that_does_not_exist_is_an_error(name):
    built = task(name, **EMBEDDED[name])
    for number in (-1, len(built.train)):
        with pytest.raises(IndexError):
            built.train[torch.tensor([number])]


@pytest.mark.parametrize("name", ["digits", "listops", "pathfinder", "shapes"])
def test_another_seed_is_other_data(name):
    few = torch.arange(3)
    first, second = (task(name, **EMBEDDED[name], seed=seed).test[few] for seed in (0, 1))
    assert not same(first, second)


def test_errors_list_what_is_known():
    with pytest.raises(WellcondError, match=r"no task 'cifar'; the closest is cifar10. .*topics-text"):
        task("cifar")
    with pytest.raises(WellcondError, match=r"'digits' has no option 'sead'; its options are seed"):
        task("digits", sead=1)
    with pytest.raises(WellcondError, match=r"'cifar10' needs folder=….*https://"):
        task("cifar10")
    with pytest.raises(WellcondError, match="no task 'x'"):
        options_of("x")
    with pytest.raises(WellcondError, match="already a task 'digits'"):
        register_task("digits", "again")(lambda: None)
    with pytest.raises(WellcondError, match="seed is a whole number"):
        task("digits", seed=-1)
    with pytest.raises(WellcondError, match="kind 'video'"):
        Task("x", "video", {}, None, None, "accuracy", "")


@pytest.mark.parametrize("name", sorted(WITH_FOLDER))
def test_a_missing_folder_says_where_the_data_come_from(name, tmp_path):
    more = {"subset": "cola"} if name == "glue" else {}
    with pytest.raises(WellcondError, match=r"there is no folder .*nowhere.*(https?://|arXiv)"):
        task(name, folder=tmp_path / "nowhere", **more)
    with pytest.raises(WellcondError, match=r"(https?://|arXiv)"):
        task(name, folder=tmp_path, **more)
    with pytest.raises(WellcondError, match="path of a folder"):
        task(name, folder=3, **more)


def test_digits_split_is_stratified_and_normalised():
    digits = task("digits")
    train, test = (part[torch.arange(len(part))] for part in (digits.train, digits.test))
    assert (len(train), len(test)) == (1437, 360)
    shares = [torch.bincount(part.targets) / len(part) for part in (train, test)]
    assert (shares[0] - shares[1]).abs().max() < 0.002
    everything = torch.cat([train.inputs, test.inputs])
    assert abs(everything.mean()) < 1e-3
    assert abs(everything.std() - 1) < 1e-3
    known = {image.numpy().tobytes() for image in train.inputs}
    assert not any(image.numpy().tobytes() in known for image in test.inputs)


CLASSES = torch.Generator().manual_seed(0)
LOGITS = torch.randn(60, 2, generator=CLASSES)
TRUTH = torch.randint(2, (60,), generator=CLASSES)
SCORES = torch.rand(60, generator=CLASSES) * 5


def in_batches(metric: str, output: Tensor, targets: Tensor) -> float:
    counts = Counts()
    for part in torch.arange(len(targets)).split(7):
        counts = counts + count(metric, output[part], targets[part])
    return metric_of(metric, counts)


@pytest.mark.parametrize(
    ("metric", "judge"),
    [
        ("accuracy", sklearn.metrics.accuracy_score),
        ("matthews", sklearn.metrics.matthews_corrcoef),
        ("f1", sklearn.metrics.f1_score),
    ],
)
@pytest.mark.parametrize(
    "logits", [LOGITS, LOGITS * 0 + torch.tensor([1.0, 0.0]), LOGITS * 0 + torch.tensor([0.0, 1.0])]
)
def test_class_metrics_agree_with_scikit_learn(metric, judge, logits):
    assert in_batches(metric, logits, TRUTH) == pytest.approx(judge(TRUTH, logits.argmax(1)), abs=1e-12)


def test_pearson_agrees_with_scipy_and_a_constant_has_none():
    output = LOGITS[:, :1] + 100
    judge = scipy.stats.pearsonr(output[:, 0].double(), SCORES.double()).statistic
    assert in_batches("pearson", output, SCORES) == pytest.approx(judge, abs=1e-9)
    assert math.isnan(in_batches("pearson", torch.full((60, 1), 0.1), SCORES))


def test_perplexity_is_the_exponential_of_the_mean_loss_over_tokens_that_count():
    logits, targets = torch.randn(60, 5, 9, generator=CLASSES), torch.randint(9, (60, 5), generator=CLASSES)
    targets[targets == 3] = IGNORED
    judge = torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten()).exp()
    assert in_batches("perplexity", logits, targets) == pytest.approx(float(judge), rel=1e-6)
    assert metric_of("perplexity", Counts({"nats": 1e9, "tokens": 1})) == math.inf


@pytest.mark.parametrize("metric", METRICS[:-1])
def test_nothing_counted_is_not_a_number(metric):
    assert math.isnan(metric_of(metric, Counts()))


def test_loss_of_classes_is_cross_entropy_also_of_mixed_labels_and_of_an_output_object():
    digits = task("digits")
    batch = digits.train[torch.arange(6)]
    logits = torch.randn(6, 10, generator=CLASSES)
    judge = torch.nn.CrossEntropyLoss(label_smoothing=0.1)
    assert torch.equal(digits.loss(logits, batch, smoothing=0.1), judge(logits, batch.targets))
    assert torch.equal(digits.loss(SimpleNamespace(logits=logits), batch, smoothing=0.1), judge(logits, batch.targets))
    mixed = Batch(batch.inputs, torch.nn.functional.one_hot(batch.targets, 10).float().roll(1, 0) * 0.5 + 0.05)
    assert torch.equal(digits.loss(logits, mixed), torch.nn.CrossEntropyLoss()(logits, mixed.targets))
    assert digits.higher_is_better
    with pytest.raises(WellcondError, match=r"a tensor or something with \.logits, not a tuple"):
        digits.loss((logits,), batch)


def test_loss_of_text_leaves_unpredicted_tokens_out_and_bears_a_batch_without_any():
    text = task("topics-text", length=8)
    targets = text.train[torch.arange(2)].targets
    logits = torch.randn(2, 8, 260, generator=CLASSES, requires_grad=True)
    part = targets.masked_fill(torch.arange(8) < 5, IGNORED)
    judge = torch.nn.CrossEntropyLoss(label_smoothing=0.1)(logits[:, 5:].flatten(0, 1), targets[:, 5:].flatten())
    assert text.loss(logits, Batch(None, part), smoothing=0.1).item() == pytest.approx(judge.item(), rel=1e-6)
    nothing = text.loss(logits, Batch(None, torch.full_like(targets, IGNORED)))
    nothing.backward()
    assert nothing.item() == 0
    assert logits.grad.isfinite().all()
    assert not text.higher_is_better


def test_one_gradient_step_of_a_linear_model_lowers_the_loss():
    digits = task("digits")
    batch = digits.train[torch.arange(256)].to("cpu")
    weight = torch.zeros(64, 10, requires_grad=True)
    before = digits.loss(batch.inputs.flatten(1) @ weight, batch)
    before.backward()
    after = digits.loss(batch.inputs.flatten(1) @ (weight - 0.1 * weight.grad), batch)
    assert after < before
    assert before.item() == pytest.approx(math.log(10))
