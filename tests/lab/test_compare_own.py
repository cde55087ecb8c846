"""The laboratory on one's own model and data: `wc.compare`, `task = "my.py:task"`, its guarantees and its refusals."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import datasets
import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import Dataset
from typer.testing import CliRunner

import wellcond as wc
from tests.commands import wait_until
from tests.lab.own_models import EXAMPLES, MODELS, both, example, nano_gpt, odd, of_llama, of_nano_gpt, of_odd
from tests.laboratory import metrics
from tests.pages import opened
from tests.preloaded import WELLCOND, run, start
from wellcond.cli.main import app
from wellcond.errors import DataError, WellcondError
from wellcond.inputs.objective import Objective
from wellcond.lab.analysis.outcome import read_outcomes
from wellcond.lab.models import OwnModel
from wellcond.lab.own_identity import check_same_data, data_identity
from wellcond.lab.recipe.recipe import load_recipe
from wellcond.lab.tasks.base import Batch
from wellcond.lab.tasks.own.rules import OwnRules
from wellcond.lab.tasks.own.task_of import task_of
from wellcond.lab.training import train as training
from wellcond.lab.training.data_order import indices

if TYPE_CHECKING:
    from playwright.sync_api import Browser

DATA = both(of_odd(24))
FAST: dict[str, Any] = {"schemes": ["mimetic"], "steps": 2, "seeds": 1, "batch": 4, "controls": False, "monitor": False}
MSE = functional.mse_loss


def compared(build: Any = odd, data: Any = DATA, **changes: Any) -> Any:
    return wc.compare(build, data, **{**FAST, "loss": MSE, **changes})


# ------------------------------------------------------------------------------------------------ models and data


@pytest.mark.parametrize("name", MODELS)
def test_a_model_and_data_as_people_write_them(name: str) -> None:
    build, data = MODELS[name]
    found = compared(build, data, loss=None, schemes=["conditioned"], controls=True)
    assert [arm.arm for arm in found.arms] == ["default", *(f"conditioned{end}" for end in ENDS)]
    assert [arm.control for arm in found.arms] == [None, None, "scale", "calibrated"]
    assert all(dict(arm.runs) == {"finished": 1, "diverged": 0, "crashed": 0} for arm in found.arms)
    results = {arm.arm: arm.results[0] for arm in found.arms}
    assert len(set(results.values())) > 1, "arms differ"
    assert "conditioned, scale only" in str(found)


ENDS = ("", ", scale only", ", calibrated default")


def test_a_dataset_of_hugging_face() -> None:
    data = datasets.Dataset.from_list(of_llama(24)).train_test_split(0.25, seed=0)
    found = compared(MODELS["llama"][0], dict(data), loss=None, schemes=["conditioned"])
    assert found.metric == "loss"
    assert [arm.runs["finished"] for arm in found.arms] == [1, 1]


def test_a_model_by_name_on_a_text_and_a_task_that_comes_along() -> None:
    text = both("to be or not to be, " * 20, length=16)
    assert compared("gpt", text, loss=None).metric == "perplexity"
    vit = compared(lambda: example_vit(), "digits", loss=None)
    assert vit.metric == "accuracy"


def example_vit() -> nn.Module:
    return wc.build_model(
        "timm:vit_tiny_patch16_224",
        img_size=8,
        patch_size=4,
        in_chans=1,
        num_classes=10,
        embed_dim=16,
        depth=1,
        num_heads=2,
    )


def test_arms_begin_with_the_schemes_weights_and_train_as_plain_torch_does() -> None:
    """One step of SGD by hand, on the examples that the order says, gives the loss of the lab to rounding."""
    x, y = DATA["train"]
    settings = {"optimizer": "sgd", "lr": 0.1, "schedule": "constant", "warmup": 0.0, "weight_decay": 0.0, "clip": 1e9}
    found = compared(seeds=[3], steps=2, betas=(0.0, 0.0), **settings)
    for arm in found.arms:
        model = OwnModel(odd).built(3)
        if arm.arm == "mimetic":
            wc.init_(model, "mimetic", seed=3, layers=wc.attention_layers(model, DATA["test"][0][:2]))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for step in range(2):
            part = indices(3, step, 4, len(x))
            optimizer.zero_grad()
            MSE(model(x[part]), y[part]).backward()
            optimizer.step()
        assert arm.results[3] == pytest.approx(float(MSE(model(DATA["test"][0]), DATA["test"][1]).detach()), rel=1e-5)


# ------------------------------------------------------------------------------------------------ guarantees


def test_equal_seeds_see_equal_batches_in_all_arms(tmp_path: Path) -> None:
    seen: list[Tensor] = []

    def collate(examples: list[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
        x = torch.stack([x for x, _ in examples])
        return x + torch.rand(()), torch.stack([y for _, y in examples])

    def watching(output: Tensor, target: Tensor) -> Tensor:
        seen.append(target)
        return MSE(output, target)

    compared(loss=watching, collate=collate, seeds=2, steps=3, out=tmp_path / "out")
    order = [target for target in seen if target.shape == (4, 6, 4)]
    # Each arm and seed: three steps, then the test set in two parts; before them one step that is only tried.
    runs = [torch.stack(order[begin : begin + 3]) for begin in range(3, len(order), 5)]
    assert len(runs) == 4
    assert torch.equal(runs[0], runs[1])
    assert torch.equal(runs[2], runs[3])
    assert not torch.equal(runs[0], runs[2])


def interrupted(monkeypatch: Any, at: int) -> Callable[[], None]:
    """Have a comparison stopped at a step of its second run; the function that is returned undoes it."""
    original, calls = training.steer_, []

    def stopping(optimizer: Any, step: int, *others: Any) -> None:
        calls.append(step)
        if calls.count(at) == 2:
            raise KeyboardInterrupt
        original(optimizer, step, *others)

    monkeypatch.setattr(training, "steer_", stopping)
    return lambda: monkeypatch.setattr(training, "steer_", original)


class Noisy(nn.Module):
    """Dropout, and noise from NumPy, which is of the seed and the step too."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.drop = odd(), nn.Dropout(0.2)

    def forward(self, x: Tensor) -> Tensor:
        import numpy as np

        return self.drop(self.inner(x)) + (0.1 * float(np.random.rand()) if self.training else 0.0)


def test_a_call_that_was_stopped_goes_on_to_the_same_bits(tmp_path: Path, monkeypatch: Any) -> None:
    more = {"steps": 9, "log_every": 1, "checkpoint_every": 3, "test_every": 4}
    whole, resumed = tmp_path / "whole", tmp_path / "resumed"
    compared(Noisy, out=whole, **more)
    go_on = interrupted(monkeypatch, at=7)
    with pytest.raises(KeyboardInterrupt):
        compared(Noisy, out=resumed, **more)
    go_on()
    assert any("checkpoint" in path.name for path in resumed.rglob("*"))
    found = compared(Noisy, out=resumed, **more)
    assert metrics(resumed) == metrics(whole)
    before = {path: path.stat().st_mtime_ns for path in resumed.glob("runs/*/*/metrics.jsonl")}
    assert compared(Noisy, out=resumed, **more).to_dict()["arms"][0]["results"] == {"0": found.arms[0].results[0]}
    assert {path: path.stat().st_mtime_ns for path in before} == before


def test_a_folder_is_of_one_model_one_data_and_one_loss(tmp_path: Path) -> None:
    out = tmp_path / "out"
    compared(out=out)
    compared(out=out, schemes=["mimetic", "conditioned"])  # more arms are welcome
    x, y = DATA["train"]

    def other_model() -> nn.Module:
        return nn.Sequential(odd(), nn.Linear(4, 4))

    other_model.__name__ = "odd"
    other = x.clone()
    other[0] += 1
    for changes, words in (
        ({"data": {**DATA, "train": (other, y)}}, "from before the data to train on changed"),
        ({"data": {**DATA, "test": (x[:3], y[:3])}}, "from before the data to test changed"),
        ({"loss": functional.l1_loss}, "from before the loss changed"),
        ({"loss": lambda output, target: MSE(output, target)}, "from before the loss changed"),
        ({"metric": MSE, "higher_is_better": False}, "from before the metric changed"),
        ({"build": other_model}, "from before the model changed"),
        ({"build": lambda: odd()}, "holds the runs of another recipe"),
        ({"lr": 0.5}, "holds the runs of another recipe"),
    ):
        with pytest.raises(WellcondError, match=words):
            compared(**{"out": out, **changes})


def test_a_function_is_known_by_what_it_does_not_by_where_it_stands(tmp_path: Path) -> None:
    codes = ["lambda a, b: ((a - b) ** 2).mean()", "\n\n(lambda a, b: ((a - b) ** 2).mean())  # as before"]
    first, second = (eval(compile(code.strip(), f"cell-{number}", "eval")) for number, code in enumerate(codes))
    compared(loss=first, out=tmp_path / "out")
    compared(loss=second, out=tmp_path / "out")
    with pytest.raises(WellcondError, match="the loss changed"):
        compared(loss=lambda a, b: ((a - b) ** 4).mean(), out=tmp_path / "out")


def test_nothing_is_left_and_nothing_of_the_callers_moves(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    torch.manual_seed(5)
    before = torch.get_rng_state()
    with torch.inference_mode():
        found = compared()
    assert torch.equal(torch.get_rng_state(), before)
    assert list(tmp_path.iterdir()) == []
    assert len(found.records()) == 2


def test_the_page_opens(browser: Browser, tmp_path: Path) -> None:
    compared(out=tmp_path / "out", controls=True)
    page = (tmp_path / "out" / "report.html").read_text()
    with opened(browser, page, tmp_path / "page.html") as shown:
        assert "odd on data" in shown.inner_text("body")
        assert "mimetic, scale only" in shown.inner_text("body")
    assert CliRunner().invoke(app, ["report", str(tmp_path / "out")]).exit_code == 0


def test_a_model_that_crashes_everywhere_says_so() -> None:
    calls: list[int] = []

    def failing(output: Tensor, target: Tensor) -> Tensor:
        calls.append(1)
        if len(calls) > 3:
            raise RuntimeError("out of luck")
        return MSE(output, target)

    with pytest.raises(WellcondError, match=r"every run crashed, the first with .*failing.*out of luck"):
        compared(loss=failing)


# ------------------------------------------------------------------------------------------------ recipes

RECIPE = (EXAMPLES / "my.toml").read_text().replace("steps = 200", "steps = 8\ncheckpoint_every = 2\nlog_every = 1")


def folder(tmp_path: Path, text: str = RECIPE, **replaced: str) -> Path:
    """The example's files, changed."""
    code = (EXAMPLES / "my.py").read_text()
    for old, new in replaced.items():
        code = code.replace(old.replace("_", " "), new)
    (tmp_path / "my.py").write_text(code)
    (tmp_path / "my.toml").write_text(text)
    return tmp_path


def test_the_recipe_of_the_examples_trains(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(folder(tmp_path))
    more = ["--seeds", "1", "--set", "monitor=false"]
    done = CliRunner().invoke(app, ["compare", "my.toml", *more])
    assert done.exit_code == 0, done.output
    found = {run.arm: run for run in read_outcomes(tmp_path / "runs" / "my")}
    assert list(found) == ["default", *(f"mimetic{end}" for end in ENDS)]
    assert all(run.status == "finished" and run.metric == "accuracy" for run in found.values())
    again = CliRunner().invoke(app, ["compare", "my.toml", *more, "--set", "task.count=300"])
    assert again.exit_code == 2
    assert "another recipe" in again.stderr
    with (tmp_path / "my.py").open("a") as file:
        file.write("# a comment\n")
    edited = CliRunner().invoke(app, ["compare", "my.toml", *more])
    assert edited.exit_code == 2
    assert edited.stderr.count("\n") == 1
    assert "'runs/my' holds runs from before 'my.py' changed: give another --out, or delete it" in edited.stderr


@pytest.mark.long
def test_two_processes_side_by_side_measure_the_same(tmp_path: Path) -> None:
    path = folder(tmp_path)
    more = ("--seeds", "1", "--set", "monitor=false")
    for name, jobs in (("one", ()), ("two", ("--jobs", "2"))):
        ended = run(WELLCOND, "compare", "my.toml", "--out", name, *more, *jobs, cwd=path)
        assert ended.returncode == 0, ended.stderr
    assert metrics(path / "one") == metrics(path / "two")


@pytest.mark.long
def test_a_process_with_other_data_is_refused(tmp_path: Path) -> None:
    path = folder(tmp_path)
    code = (
        (path / "my.py").read_text().replace("torch.randn(count, tokens)", "torch.randn(count, tokens) + os.getpid()")
    )
    (path / "my.py").write_text(code.replace("import torch\n", "import os\n\nimport torch\n", 1))
    more = ("--seeds", "1", "--jobs", "2", "--set", "monitor=false")
    ended = run(WELLCOND, "compare", "my.toml", "--out", "out", *more, cwd=path)
    assert ended.returncode == 2
    assert "gives each process other examples to train on: begin with equal numbers" in ended.stderr


def test_data_of_another_process_are_held_to_those_of_the_first() -> None:
    one, other = (task_of({**DATA, "train": (x, x)}, "my.py:task") for x in (torch.zeros(9, 2), torch.ones(9, 2)))
    check_same_data(one, data_identity(one))
    with pytest.raises(DataError, match=r"my.py:task gives each process other examples to train on"):
        check_same_data(other, data_identity(one))


@pytest.mark.long
def test_a_killed_comparison_of_ones_own_goes_on_to_the_same_bits(tmp_path: Path) -> None:
    path = folder(tmp_path, RECIPE.replace("steps = 8", "steps = 40"))
    more = ("--seeds", "1", "--set", "monitor=false")
    assert run(WELLCOND, "compare", "my.toml", "--out", "whole", *more, cwd=path).returncode == 0
    for lines in (30, 95):
        process = start(WELLCOND, "compare", "my.toml", "--out", "killed", *more, cwd=path)
        wait_until(lambda lines=lines: sum(text.count("\n") for text in metrics(path / "killed").values()) >= lines)
        time.sleep(0.03)
        process.kill()
        process.wait()
    ended = run(WELLCOND, "compare", "my.toml", "--out", "killed", *more, cwd=path)
    assert ended.returncode == 0, ended.stderr
    assert metrics(path / "killed") == metrics(path / "whole")


@pytest.mark.long
def test_the_example_runs_as_it_stands(tmp_path: Path) -> None:
    shutil.copy(EXAMPLES / "own_model.py", tmp_path)
    ended = run((EXAMPLES / "own_model.py").read_text(), cwd=tmp_path)
    assert ended.returncode == 0, ended.stderr
    assert "conditioned, scale only" in ended.stdout


def test_the_example_compares() -> None:
    own = example("own_model")
    found = compared(own.build, own.data)
    assert len((EXAMPLES / "own_model.py").read_text().splitlines()) < 45
    assert [arm.runs["finished"] for arm in found.arms] == [1, 1]


@pytest.mark.parametrize("command", ["tune", "sensitivity"])
def test_a_task_of_ones_own_is_tuned_and_its_sensitivity_measured(
    command: str, tmp_path: Path, monkeypatch: Any
) -> None:
    arms = RECIPE.partition("[arms.mimetic]")[0].replace('"my.py:task"', '"my.py:by_loss"')
    path = folder(tmp_path, arms)
    with (path / "my.py").open("a") as file:
        file.write("def by_loss():\n    return {k: v for k, v in task().items() if k != 'metric'}\n")
    monkeypatch.chdir(path)
    changes = ["--set", "train.steps=3", "--set", "seeds=[0]"]
    done = CliRunner().invoke(app, [command, "my.toml", "--lr", "0.001,0.1", "--out", "out", *changes])
    assert done.exit_code == 0, done.output
    assert "loss at" in done.stdout


# ------------------------------------------------------------------------------------------------ refusals


def no_gradient(output: Tensor, target: Tensor) -> Tensor:
    return MSE(output.detach(), target)


def of_a_kind(value: Any) -> Callable[..., Any]:
    def given(output: Any, target: Any) -> Any:
        return value(output) if callable(value) else value

    return given


def raising(*_: Any) -> Any:
    raise ValueError("not\ntoday")


def uncopied() -> nn.Module:
    model = odd()
    model.handle = (x for x in ())  # type: ignore[assignment]
    return model


class Chance(Dataset[Any]):
    """Examples with noise from a generator of its own."""

    def __init__(self) -> None:
        self.noise = torch.Generator().manual_seed(0)

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> Any:
        x = torch.randn(6, 4, generator=self.noise)
        return x, x


ONE = odd()
GPT_ROWS = both(of_nano_gpt())
BAD: dict[str, tuple[dict[str, Any], str]] = {
    "no loss": ({"loss": None}, "data: the model gives Tensor (4, 6, 4) of float32, without a loss: say loss="),
    "a loss that raises": ({"loss": raising}, "data: raising(output, target) raised ValueError: not today for"),
    "a loss of nothing": ({"loss": of_a_kind(None)}, "given(output, target) returns one number as a tensor; got None"),
    "a loss that is a number": ({"loss": of_a_kind(1.5)}, "returns one number as a tensor; got float"),
    "a loss for each example": ({"loss": of_a_kind(lambda x: x)}, "one number as a tensor; got Tensor (4, 6, 4)"),
    "a loss in whole numbers": ({"loss": of_a_kind(torch.tensor(1))}, "got Tensor () of int64"),
    "a loss without gradient": ({"loss": no_gradient}, "data: the loss has no gradient"),
    "a loss that is NaN": ({"loss": of_a_kind(lambda x: x.mean() * float("nan"))}, "loss of the first batch is nan"),
    "a loss without end": ({"loss": of_a_kind(lambda x: x.mean() * float("inf"))}, "the loss of the first batch is"),
    "a loss of one argument": ({"loss": lambda output: output.mean()}, "<lambda>(output, target) raised TypeError"),
    "a loss of another library": ({"loss": functional.cross_entropy, "data": both((*map(Tensor.long, of_odd()),))},
                                  "data: Sequential cannot be run on Tensor (4, 6, 4) of int64"),
    "a metric that raises": ({"metric": raising, "higher_is_better": True}, "raising(output, target) raised"),
    "a metric of nothing": ({"metric": of_a_kind(None), "higher_is_better": True}, "a mean over the batch; got None"),
    "a metric in words": ({"metric": of_a_kind("good"), "higher_is_better": True}, "got str"),
    "a metric for each": ({"metric": of_a_kind(lambda x: x), "higher_is_better": True}, "got Tensor (4, 6, 4)"),
    "a metric that is NaN": ({"metric": of_a_kind(float("nan")), "higher_is_better": True}, "is nan for a batch of"),
    "accuracy of numbers": ({"metric": "accuracy"}, "data: accuracy is of logits (4, 6, 4, classes)"),
    "a metric twice": ({"metric": "pearson", "data": {**DATA, "metric": "f1"}}, "metric is an argument and in data"),
    "data in no form": ({"data": 3}, "compare: data is a dict"),
    "a task of no name": ({"data": "digit", "loss": None}, "there is no task 'digit'; the closest is digits"),
    "a task with another loss": ({"data": "digits"}, "the task 'digits' has its own loss, metric and batches"),
    "no test data": ({"data": {"train": DATA["train"]}}, "data: test is missing"),
    "a collate that raises": ({"collate": raising}, "data: train: raising, which is given a list of examples, raised"),
    "a length of no text": ({"length": 4}, "data: length is of a text"),
    "an odd length": ({"length": 0}, "compare: length is a whole number of at least 1 or None; got 0"),
    "data of chance": ({"data": {**DATA, "test": Chance()}}, "data: test has other numbers each time it is read"),
    "targets of another shape": ({"data": {**DATA, "train": (DATA["train"][0], DATA["train"][1][:, :, :3])}},
                                 "mse_loss(output, target) raised RuntimeError"),
    "inputs of another shape": ({"data": {**DATA, "train": (DATA["train"][0][:, :, :3], DATA["train"][1])}},
                                "data: Sequential cannot be run on Tensor (4, 6, 3) of float32: RuntimeError"),
    "names that forward does not have": ({"data": both([{"x": 1.0, "y": 2.0}] * 6), "build": nano_gpt},
                                         "GPT takes idx, targets, and the batch has x, y"),
    "a dict for a plain model": ({"data": GPT_ROWS, "loss": None}, "Sequential takes input, and the batch has idx"),
    "the same model twice": ({"build": lambda: ONE}, "build_model() returns the same weights twice"),
    "the same weights twice": ({"build": lambda: nn.Sequential(ONE)}, "build_model() returns the same weights twice"),
    "a model of chance": ({"build": lambda: chance(odd())}, "build_model() returns other '0.weight' each time"),
    "no model": ({"build": lambda: None}, "build_model() returns None; it must return a torch.nn.Module"),
    "a class of arguments": ({"build": nn.Linear}, "Linear() raised TypeError"),
    "a model that raises": ({"build": raising}, "raising() raised ValueError: not today"),
    "a model itself": ({"build": 3}, "build_model is a function that builds a model, or the name of one; got 3"),
    "a model that is built": ({"build": ONE}, "got a model: write lambda: Sequential(…)"),
    "a model on meta": ({"build": lambda: odd().to("meta")}, "'0.weight' has no numbers, as it is on the meta device"),
    "a lazy model": ({"build": lambda: nn.Sequential(nn.LazyLinear(4))}, "as it is lazy: run the model once"),
    "a model without attention": ({"build": lambda: nn.Linear(4, 4)}, "has no attention layer"),
    "a model without parameters": ({"build": nn.Identity}, "Identity has no parameter to train"),
    "a model that is frozen": ({"build": lambda: odd().requires_grad_(False)}, "Sequential has no parameter to train"),
    "a model that is not copied": ({"build": uncopied}, "Sequential cannot be copied (TypeError"),
    "a model of no name": ({"build": "resnet"}, "'resnet' is not the name of a model"),
    "a model of no file": ({"build": "nowhere.py:model"}, "there is no file 'nowhere.py'"),
    "a model for images": ({"build": "vit"}, "model 'vit' is for image tasks, and 'data' is a custom task"),
    "no schemes": ({"schemes": []}, "compare: schemes are one or more different ones of wc.schemes(); got []"),
    "a scheme twice": ({"schemes": ["mimetic", "mimetic"]}, "compare: schemes are one or more different"),
    "schemes in one text": ({"schemes": "mimetic"}, "compare: schemes is several of"),
    "a scheme of no name": ({"schemes": ["mimetix"]}, "arm 'mimetix': |no scheme 'mimetix'"),
    "a role of no name": ({"schemes": [{"zz": "mimetic"}]}, "'zz'"),
    "less than no steps": ({"steps": -1}, "compare: steps is a whole number of at least 0; got -1"),
    "no seeds": ({"seeds": 0}, "compare: seeds is a whole number of at least 1"),
    "an empty list of seeds": ({"seeds": []}, "compare: seeds: Tuple should have at least 1 item"),
    "a seed twice": ({"seeds": [1, 1]}, "seeds are different numbers"),
    "a batch of none": ({"batch": 0}, "compare: batch is a whole number of at least 1; got 0"),
    "an optimizer of no name": ({"optimizer": "adam"}, "compare: optimizer is 'adamw', 'sgd', 'muon' or 'head-muon'"),
    "no learning rate": ({"lr": 0}, "compare: lr is a number above 0; got 0"),
    "an argument misspelt": ({"metrics": "accuracy"}, "compare: train.metrics: no such key"),
    "smoothing": ({"smoothing": 0.1}, "smoothing is of labels, and data has a loss of its own"),
    "a batch in too many parts": ({"accumulate": 8}, "a batch of 4 cannot be divided into 8 parts"),
    "a folder that is a file": ({"out": __file__}, "cannot be made"),
}  # fmt: skip


def chance(model: nn.Module) -> nn.Module:
    """A model whose weights no seed repeats."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += torch.rand(parameter.shape, generator=torch.Generator().manual_seed(time.perf_counter_ns()))
    return model


@pytest.mark.parametrize("given", BAD)
def test_what_is_malformed_is_one_line_and_nothing_is_trained(given: str, tmp_path: Path, monkeypatch: Any) -> None:
    changes, words = BAD[given]
    monkeypatch.setattr(training, "_update", lambda *_: pytest.fail("it trained"))
    out = tmp_path / "out"
    before = torch.get_rng_state()
    with pytest.raises((WellcondError, ValueError)) as caught:
        compared(**{"out": out, **changes})
    assert isinstance(caught.value, WellcondError), repr(caught.value)
    said = str(caught.value)
    assert any(one in said for one in words.split("|")), said
    assert "\n" not in said
    assert len(said) < 600
    assert not out.exists()
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize(
    ("change", "code", "words"),
    [
        ((RECIPE, '"my.py:task"', '"my.py:tsk"'), "", "'my.py' has no function 'tsk'"),
        ((RECIPE, '"my.py:task"', '"no.py:task"'), "", "there is no file 'no.py'"),
        ((RECIPE, '"my.py:task"', '"my.py"'), "", "'my.py' names no function: write path/to/file.py:function"),
        (
            (RECIPE, '"my.py:task"', '{ name = "my.py:task", cuont = 3 }'),
            "",
            "my.py:task raised TypeError: task() got an",
        ),
        ((RECIPE, '"my.py:task"', '{ name = "my.py:task", count = 0 }'), "", "my.py:task: train has no example"),
        ((RECIPE, '"my.py:task"', '"my.py:own"'), "def own(): return []", "my.py:own gives []; expected a dict"),
        ((RECIPE, '"my.py:task"', '"my.py:own"'), "def own(): return 1 / 0", "my.py:own raised ZeroDivisionError"),
        (
            (RECIPE, '"my.py:task"', '"my.py:own"'),
            "def own(): return {**task(), 'loss': None}",
            "my.py:own: the model gives",
        ),
        ((RECIPE, '"my.py:model"', '"my.py:own"'), "def own(): return 3", "my.py:own returned a int; it must return"),
        ((RECIPE, '"my.py:model"', '"vit"'), "", "model 'vit' is for image tasks, and 'my.py:task' is a custom task"),
        (
            (RECIPE, '"my.py:model"', '{ name = "my.py:model", tokens = 5 }'),
            "",
            "my.py:task: Net cannot be run on Tensor",
        ),
        ((RECIPE, "[arms.default]", "[augment]\nflip = 0.5\n[arms.default]"), "", "is of kind 'custom': leave it out"),
        (
            (RECIPE, "batch = 32", "batch = 32\nsmoothing = 0.1"),
            "",
            "smoothing is of labels, and my.py:task has a loss",
        ),
        ((RECIPE, '"mimetic"\n', '"impulse"\n'), "", "arm 'mimetic': "),
    ],
)
def test_a_recipe_that_is_malformed_is_one_line_and_exit_code_2(
    change: tuple[str, str, str], code: str, words: str, tmp_path: Path, monkeypatch: Any
) -> None:
    path = folder(tmp_path, change[0].replace(*change[1:]))
    with (path / "my.py").open("a") as file:
        file.write(f"\n{code}\n")
    monkeypatch.chdir(path)
    done = CliRunner().invoke(app, ["compare", "my.toml", "--set", "monitor=false"])
    assert done.exit_code == 2, done.output
    assert words in done.stderr
    assert done.stderr.count("\n") == 1
    assert not (path / "runs").exists()


def test_an_example_that_breaks_in_training_ends_the_comparison_in_one_line(tmp_path: Path) -> None:
    """What is wrong with data is nobody's result."""
    rows: list[Any] = list(zip(*DATA["train"], strict=True))
    rows[5] = (rows[5][0][:3], rows[5][1])
    with pytest.raises(WellcondError, match=r"data: train: the examples .* inputs differ in shape") as caught:
        compared(data={**DATA, "train": rows}, steps=8)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("kind", [np.float32, np.array], ids=["number", "array"])
def test_a_metric_may_be_a_number_of_numpy(kind: Callable[[float], Any]) -> None:
    rules = OwnRules(Objective(functional.mse_loss), lambda output, target: kind(0.25), higher_is_better=True)
    assert rules.metric_of(rules.score(torch.zeros(2, 1), Batch(torch.zeros(2, 1), torch.zeros(2, 1), 2))) == 0.25


FIRST_CALL = """
import random, torch, wellcond as wc
before = random.getstate()
build = lambda: torch.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
x = torch.zeros(8, 5, 8)
wc.compare(build, {"train": (x, x), "test": (x, x)}, schemes=["mimetic"], loss=torch.nn.functional.mse_loss, steps=0,
           seeds=1, monitor=False)
assert random.getstate() == before
"""


@pytest.mark.long
def test_the_first_call_of_a_process_leaves_pythons_generator(tmp_path: Path) -> None:
    """Libraries draw from it while they are imported, so the process is one that has imported nothing."""
    subprocess.run([sys.executable, "-c", FIRST_CALL], cwd=tmp_path, check=True)


def test_the_recipe_in_the_folder_says_what_was_run(tmp_path: Path) -> None:
    compared(out=tmp_path / "out")
    about = json.loads((tmp_path / "out" / "comparison.json").read_text())
    assert set(about["identity"]) >= {"the data to train on", "the data to test", "the loss", "the model"}
    assert load_recipe(tmp_path / "out" / "recipe.toml").arms.keys() == {"default", "mimetic"}
