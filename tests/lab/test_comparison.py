"""The laboratory: recipes, pairing, runs that are killed and go on, several processes, and what goes wrong."""

from __future__ import annotations

import json
import random
import shutil
import time
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from torch import Tensor
from typer.testing import CliRunner

from tests.commands import wait_until
from tests.laboratory import TINY, interrupt_and_resume, metrics, prepared, quiet, write
from tests.preloaded import WELLCOND, Program, start
from wellcond.cli.main import app
from wellcond.errors import StorageError, WellcondError
from wellcond.lab.analysis.outcome import read_outcomes
from wellcond.lab.comparison import prepare_comparison, run_all, run_one
from wellcond.lab.recipe.arms import arms_of
from wellcond.lab.recipe.recipe import load_recipe, parse_recipe, shipped
from wellcond.lab.recipe.settings import Training
from wellcond.lab.training.checkpoints import latest_checkpoint, write_checkpoint
from wellcond.lab.training.data_order import indices, learning_rate
from wellcond.lab.training.run_folder import RunFolder

# ------------------------------------------------------------------------------------------------ recipes


@pytest.mark.parametrize("name", shipped())
def test_a_recipe_that_comes_along_fits_its_task_and_model(name: str, tmp_path: Path) -> None:
    experiment = prepare_comparison(name, tmp_path / "out")
    assert experiment.recipe.title
    assert len(experiment.left()) == len(experiment.recipe.seeds) * len(arms_of(experiment.recipe))


def test_the_default_recipe_is_what_it_says() -> None:
    assert [arm.name for arm in arms_of(load_recipe("digits"))] == [
        "default", "mimetic", "mimetic, scale only", "mimetic, rotated", "mimetic, calibrated default", "conditioned",
        "conditioned, scale only", "conditioned, calibrated default", "centring", "centring, scale only",
        "centring, rotated", "centring, calibrated default", "shift 1", "shift 10",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (("steps = 40", "stpes = 40"), "train.stpes: no such key; did you mean steps?"),
        (("steps = 40", "steps = -1"), "train.steps: Input should be greater than or equal to 0, got -1"),
        (("steps = 40", "steps = 40\nepochs = 2"), "steps or epochs, not both"),
        (("steps = 40", 'schedule = "steps"'), "milestones belong to schedule = 'steps'"),
        (("steps = 40", 'schedule = "cosin"'), "'cosine', 'constant', 'linear', 'one-cycle' or 'steps'"),
        (("checkpoint_every = 10", "checkpoint_every = 7"), "multiple of log_every"),
        (("seeds = [0, 1]", "seeds = [0, 0]"), "different numbers"),
        (("seeds = [0, 1]", 'seeds = [0, 1]\nbaseline = "standard"'), "baseline is one of the arms"),
        (('condition = "shift"', ""), "strength needs condition"),
        (('init = "conditioned"', ""), "control needs init"),
        (("control = true", 'control = ["scales"]'), "'scale', 'rotation', 'sign' or 'calibrated', got 'scales'"),
        (("control = true", 'control = ["sign", "sign"]'), "control has each kind once, got ['sign', 'sign']"),
        (("control = true", 'control = "scale"'), "arms.conditioned.control: Input should be a valid tuple"),
        (('[arms."shift 1"]', '[arms."conditioned, scale only"]'), "two are called 'conditioned, scale only'"),
        (
            ("[monitor]", '[rates]\n"conditioned, rotated" = 0.1\n[monitor]'),
            "rates: 'conditioned, rotated' is none of",
        ),
        (("[arms.default]", "[arms.default"), "is not TOML"),
        (("[arms.default]", "[schemes.default]"), "write [arms.NAME] in place of [schemes.NAME]"),
        (("[monitor]", "[tuning]\nlr = [0.1, 0.2]\nseeds = [1]\n[monitor]"), "what was tuned on is not reported"),
        (('task = "digits"', ""), "task: Field required"),
        (('task = "digits"', 'task = {name = "digits", seed = "a"}'), "task.seed is a whole number; got 'a'"),
        (
            ('task = "digits"', 'task = {name = "topics-text", files = 2}'),
            "task.files is several of: a string or a Path or None; got 2",
        ),
    ],
)
def test_a_bad_recipe_is_one_line_with_its_file_and_key(change: tuple[str, str], words: str) -> None:
    assert change[0] in TINY
    with pytest.raises(WellcondError) as said:
        parse_recipe(TINY.replace(*change), "my.toml")
    assert words in str(said.value)
    assert str(said.value).startswith("my.toml")
    assert "\n" not in str(said.value).replace("is not TOML", "")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (('init = "conditioned"', 'init = "conditoned"'), "conditioned"),
        (("patch = 4", "patches = 4"), "it takes width"),
        (('task = "digits"', 'task = "topics-text"'), "is for image tasks"),
        (("heads = 2", "heads = 3"), "divisible"),
        (('name = "vit"', 'name = "timm:vit_tiny_patch16_224"'), "timm cannot build"),
    ],
)
def test_a_recipe_that_cannot_run_says_so_before_it_trains(change: tuple[str, str], words: str, tmp_path: Path) -> None:
    path, out = write(tmp_path, TINY.replace(*change)), tmp_path / "out"
    done = CliRunner().invoke(app, ["compare", str(path), "--out", str(out)])
    assert done.exit_code == 2, done.output
    assert words in done.stderr
    assert done.stderr.count("\n") == 1
    assert not out.exists()


def test_a_model_that_does_not_fit_is_told_with_both_shapes(tmp_path: Path) -> None:
    model = '[model]\nname = "timm:vit_tiny_patch16_224"\n'
    text = TINY[: TINY.index("[model]")] + model + TINY[TINY.index("[train]") :]
    with pytest.raises(WellcondError, match=r"does not fit the task 'digits'.*\(2, 1, 8, 8\)"):
        prepare_comparison(write(tmp_path, text), tmp_path / "out")


@pytest.mark.parametrize("workers", [0, 1])
def test_a_photograph_that_is_cut_short_ends_a_comparison_in_one_line(workers: int, tmp_path: Path) -> None:
    """Photographs are read when their turn comes, so nothing before the training has seen it."""
    for place in ("train/cats", "train/dogs", "val/cats", "val/dogs"):
        (tmp_path / "data" / place).mkdir(parents=True)
        for number in range(4):
            Image.new("RGB", (20, 16), (40 * number, 90, 30)).save(tmp_path / "data" / place / f"{number}.jpg")
    cut = tmp_path / "data/train/dogs/2.jpg"
    cut.write_bytes(cut.read_bytes()[:200])
    text = TINY.replace('task = "digits"\n', "").replace(
        "[model]", f'[task]\nname = "imagenet"\nfolder = "{tmp_path / "data"}"\nsize = 16\n[model]'
    )
    path = write(tmp_path, text.replace("steps = 40", f"steps = 40\nworkers = {workers}"))
    done = CliRunner().invoke(app, ["compare", str(path), "--out", str(tmp_path / "out")])
    assert done.exit_code == 2, done.output
    begun, error = done.stderr.splitlines()
    assert begun.endswith("out, 0 of them done already")
    assert error.startswith(f"error: '{cut}' cannot be read as an image")


def test_a_data_file_that_is_cut_short_is_one_line_before_anything_is_trained(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    for path in Path("/usr/share/datasets/fashion-mnist").iterdir():
        (folder / path.name).write_bytes(path.read_bytes()[: 20_000 if "t10k-images" in path.name else None])
    text = TINY.replace('task = "digits"\n', "").replace(
        "[model]", f'[task]\nname = "fashion-mnist"\nfolder = "{folder}"\n[model]'
    )
    done = CliRunner().invoke(app, ["compare", str(write(tmp_path, text)), "--out", str(tmp_path / "out")])
    assert done.exit_code == 2, done.output
    assert "t10k-images" in done.stderr
    assert done.stderr.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_a_folder_of_another_recipe_is_refused(tmp_path: Path) -> None:
    path, out = write(tmp_path), tmp_path / "out"
    prepare_comparison(path, out)
    prepare_comparison(path, out)  # the same again is welcome
    with pytest.raises(WellcondError, match="another recipe"):
        prepare_comparison(write(tmp_path, TINY.replace("steps = 40", "steps = 41")), out)
    other = tmp_path / "other"
    other.mkdir()
    (other / "thesis.tex").write_text("precious")
    with pytest.raises(WellcondError, match="not empty"):
        prepare_comparison(write(tmp_path), other)


def test_a_scheme_that_changed_under_its_name_is_refused(tmp_path: Path) -> None:
    changes: dict[str, Any] = {"seeds": (0,), "train": {"steps": 5}}
    experiment = prepared(write(tmp_path), tmp_path / "out", **changes)
    run_one(experiment, arms_of(experiment.recipe)[-1], 0)
    changed = prepared(write(tmp_path, TINY.replace("strength = 1.0", "strength = 2.0")), tmp_path / "out", **changes)
    with pytest.raises(WellcondError, match="another arm 'shift 1'"):
        changed.left()


# ------------------------------------------------------------------------------------------------ order and rates


def test_every_epoch_sees_every_example_once() -> None:
    seen = torch.cat([indices(3, step, 7, 20) for step in range(20)])
    for epoch in range(7):
        assert sorted(seen[20 * epoch : 20 * epoch + 20].tolist()) == list(range(20))
    assert not torch.equal(seen[:20], seen[20:40])
    assert not torch.equal(indices(3, 0, 7, 20), indices(4, 0, 7, 20))


@pytest.mark.parametrize("schedule", ["cosine", "constant", "linear", "one-cycle"])
def test_rates_rise_to_the_peak_and_end_where_they_should(schedule: Any) -> None:
    settings = Training(steps=100, final_lr=0.05, schedule=schedule)
    rates = [learning_rate(step, 0.5, settings) for step in range(100)]
    assert rates[:10] == pytest.approx([0.05 * (i + 1) for i in range(10)])
    assert max(rates) == pytest.approx(0.5)
    if schedule == "constant":
        assert set(rates[10:]) == {0.5}
    else:
        assert rates[-1] == pytest.approx(0.05, abs=0.006)
        assert all(a >= b for a, b in pairwise(rates[10:]))


# ------------------------------------------------------------------------------------------------ checkpoints


def test_a_damaged_checkpoint_is_passed_over(tmp_path: Path) -> None:
    for step in (10, 20, 30):
        write_checkpoint(tmp_path, step, {"w": torch.full((3,), float(step))})
    assert len(list(tmp_path.iterdir())) == 2
    (last,) = tmp_path.glob("checkpoint-00000030-*")
    content = bytearray(last.read_bytes())
    content[-1] ^= 1
    last.write_bytes(bytes(content))
    found = latest_checkpoint(tmp_path)
    assert found is not None
    assert found[0] == 20
    assert found[1]["w"].tolist() == [20.0] * 3
    (before,) = tmp_path.glob("checkpoint-00000020-*")
    before.write_bytes(before.read_bytes()[:50])
    assert latest_checkpoint(tmp_path) is None


# ------------------------------------------------------------------------------------------------ runs


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A comparison from beginning to end."""
    folder = tmp_path_factory.mktemp("undisturbed")
    out = folder / "out"
    run_all(prepare_comparison(write(folder), out), quiet)
    return out


def test_runs_leave_what_they_measured(undisturbed: Path) -> None:
    runs = sorted(undisturbed.glob("runs/*/seed-*"))
    assert len(runs) == 8
    for run in runs:
        described = json.loads((run / "run.json").read_text())
        assert described["status"] == "finished"
        lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
        assert [line["step"] for line in lines if line["kind"] == "train"] == list(range(5, 41, 5))
        assert [line["step"] for line in lines if line["kind"] == "test"] == [20, 40]
        assert [line["step"] for line in lines if line["kind"] == "monitor"] == [0, 20, 40]
        assert not any(word in line for line in lines for word in ("seconds", "time", "elapsed", "date"))
        assert not list(run.glob("checkpoint-*"))
        assert {"beta", "value_gain", "entropy"} <= set(described["start"])


def test_arms_see_the_same_examples_and_begin_with_the_same_other_weights(undisturbed: Path) -> None:
    """The first training losses of one seed differ by the arm alone; two seeds differ by everything."""
    first = {
        str(path.parent.relative_to(undisturbed)): json.loads(path.read_text().splitlines()[1])["loss"]
        for path in undisturbed.glob("runs/*/*/metrics.jsonl")
    }
    assert len(set(first.values())) == len(first)


def test_the_same_again_is_the_same_to_the_bit(undisturbed: Path, tmp_path: Path) -> None:
    experiment = prepared(write(tmp_path), tmp_path / "out", seeds=(1,))
    run_all(experiment, quiet)
    again = metrics(tmp_path / "out")
    assert again == {name: text for name, text in metrics(undisturbed).items() if "seed-1" in name}


def test_every_arm_goes_on_from_a_checkpoint_to_the_same_bits(
    undisturbed: Path, tmp_path: Path, monkeypatch: Any
) -> None:
    """Interrupted six steps behind the checkpoint of step 20; folded weights need the conditioning's own state."""
    interrupt_and_resume(prepared(write(tmp_path), tmp_path / "out", seeds=(0,)), monkeypatch)
    assert metrics(tmp_path / "out") == {n: text for n, text in metrics(undisturbed).items() if "seed-0" in n}


def test_what_is_done_is_not_done_again(undisturbed: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in undisturbed.glob("runs/*/*/metrics.jsonl")}
    experiment = prepare_comparison(undisturbed.parent / "tiny.toml", undisturbed)
    assert experiment.left() == []
    run_all(experiment, quiet)
    assert before == {path: path.stat().st_mtime_ns for path in before}


def test_a_folder_of_the_first_schema_is_read_and_goes_on(undisturbed: Path, tmp_path: Path) -> None:
    """It had no number, and called an arm `scheme` and its settings `arm`; one of a later version is refused."""
    out = tmp_path / "out"
    shutil.copytree(undisturbed, out)
    before = [asdict(outcome) for outcome in read_outcomes(out)]
    for path in (out / "comparison.json", *out.glob("runs/*/*/run.json")):
        written = json.loads(path.read_text())
        assert written.pop("schema") == 2
        if path.name == "run.json":
            written |= {"scheme": written.pop("arm"), "arm": written.pop("settings")}
        path.write_text(json.dumps(written))
    assert [asdict(outcome) for outcome in read_outcomes(out)] == before
    assert CliRunner().invoke(app, ["report", str(out)]).exit_code == 0
    experiment = prepare_comparison(undisturbed.parent / "tiny.toml", out)
    assert experiment.left() == []
    path.write_text(json.dumps(written | {"schema": 3}))
    for refused in (lambda: read_outcomes(out), experiment.left):
        with pytest.raises(WellcondError, match="has schema 3, and this wellcond reads up to 2: upgrade it"):
            refused()


def comparing(path: Path, out: Path, *more: str) -> Program:
    return start(WELLCOND, "compare", str(path), "--out", str(out), *more, cwd=path.parent)


def killed_and_resumed(undisturbed: Path, tmp_path: Path, times: int, seed: int, seeds: int) -> None:
    """Kill −9 at random moments, start again each time; what was measured is what an undisturbed one measures."""
    path, out, chance = write(tmp_path), tmp_path / "out", random.Random(seed)
    goal = {name: text for name, text in metrics(undisturbed).items() if int(name.split("seed-")[1][0]) < seeds}
    lines = sum(text.count("\n") for text in goal.values())
    stops = sorted(chance.randrange(1, lines) for _ in range(times))
    for stop in stops:
        process = comparing(path, out, "--seeds", str(seeds))
        wait_until(lambda stop=stop: sum(text.count("\n") for text in metrics(out).values()) >= stop)
        time.sleep(chance.random() * 0.05)
        process.kill()
        process.wait()
    ended = comparing(path, out, "--seeds", str(seeds)).wait()
    assert ended.returncode == 0, ended.stderr
    assert metrics(out) == goal


def test_a_killed_comparison_goes_on_to_the_same_bits(undisturbed: Path, tmp_path: Path) -> None:
    killed_and_resumed(undisturbed, tmp_path, times=2, seed=0, seeds=1)


@pytest.mark.long
def test_a_comparison_killed_ten_times_goes_on_to_the_same_bits(undisturbed: Path, tmp_path: Path) -> None:
    killed_and_resumed(undisturbed, tmp_path, times=10, seed=1, seeds=2)


def test_runs_side_by_side_are_the_same(undisturbed: Path, tmp_path: Path) -> None:
    ended = comparing(write(tmp_path), tmp_path / "out", "--jobs", "2", "--seeds", "1").wait()
    assert ended.returncode == 0, ended.stderr
    assert metrics(tmp_path / "out") == {n: text for n, text in metrics(undisturbed).items() if "seed-0" in n}


def test_a_run_that_diverges_or_crashes_is_recorded_and_the_others_go_on(tmp_path: Path, monkeypatch: Any) -> None:
    text = TINY.replace("[arms.default]", "[arms.default]\n[arms.hot]\nlr = 1e9")
    text = text.replace("ema = 0.9", "ema = 0.9\nclip = 1e9")
    experiment = prepared(write(tmp_path, text), tmp_path / "out", seeds=(0,), train={"steps": 20})
    from wellcond.lab.training import train as training

    original = training._update

    def failing(run: Any, *arguments: Any) -> Tensor:
        if run.arm.name == "shift 1":
            raise RuntimeError("out of luck")
        return original(run, *arguments)

    monkeypatch.setattr(training, "_update", failing)
    run_all(experiment, quiet)
    found = {outcome.arm: outcome for outcome in experiment.outcomes()}
    assert found["hot"].status == "diverged"
    assert "loss" in found["hot"].error
    assert found["shift 1"].status == "crashed"
    assert "out of luck" in found["shift 1"].error
    assert found["default"].status == found["conditioned"].status == "finished"
    # A diverged run is a result; a crashed one is tried again.
    assert [arm.name for arm, _ in experiment.left()] == ["shift 1"]
    monkeypatch.setattr(training, "_update", original)
    run_all(experiment, quiet)
    assert experiment.left() == []


def test_a_full_disk_is_one_message(tmp_path: Path, monkeypatch: Any) -> None:
    experiment = prepared(write(tmp_path), tmp_path / "out", seeds=(0,))

    def full(self: RunFolder, name: str, values: dict[str, Any]) -> None:
        raise StorageError(f"'{self.path / name}' cannot be written: No space left on device")

    monkeypatch.setattr(RunFolder, "_append", full)
    with pytest.raises(WellcondError, match="No space left"):
        run_all(experiment, quiet)


def test_trackers_of_accelerate_are_written_into_the_run(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    text = TINY.replace("steps = 40", 'steps = 40\ntrackers = ["tensorboard"]')
    experiment = prepared(write(tmp_path, text), tmp_path / "out", seeds=(0,))
    arm = arms_of(experiment.recipe)[0]
    assert run_one(experiment, arm, 0) == "finished"
    (events,) = experiment.folder(arm, 0).rglob("events.out.tfevents.*")
    found = EventAccumulator(str(events.parent)).Reload()
    tracked = [(event.step, event.value) for event in found.Scalars("train/loss")]
    (outcome,) = experiment.outcomes()
    assert [step for step, _ in tracked] == [step for step, _ in outcome.train]
    assert [value for _, value in tracked] == pytest.approx([loss for _, loss in outcome.train], rel=1e-6)
    assert found.Scalars("test/accuracy")[-1].value == pytest.approx(outcome.result)


def test_a_tracker_that_is_not_there_is_named(tmp_path: Path) -> None:
    text = TINY.replace("steps = 40", 'steps = 40\ntrackers = ["notebook"]')
    experiment = prepared(write(tmp_path, text), tmp_path / "out", seeds=(0,))
    assert run_one(experiment, arms_of(experiment.recipe)[0], 0) == "crashed"
    assert "notebook" in experiment.outcomes()[0].error
