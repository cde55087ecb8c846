"""Comparisons that follow each other: weights that are loaded or selected, rates that are tuned, strengths swept."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save
from torch import nn
from typer.testing import CliRunner

import wellcond as wc
from tests.laboratory import TINY, metrics, prepared, quiet, write
from wellcond.cli.main import app
from wellcond.errors import WellcondError
from wellcond.lab.analysis.outcome import Outcome, read_outcome
from wellcond.lab.analysis.tuning import rates_of, tuning_recipe
from wellcond.lab.comparison import Experiment, run_all, run_one
from wellcond.lab.models import lab_model
from wellcond.lab.recipe.arms import arms_of
from wellcond.lab.recipe.recipe import Recipe, load_recipe, parse_recipe, recipe_toml, shipped
from wellcond.lab.recipe.settings import Tuning, Weights
from wellcond.lab.recipe.stages import stages_of
from wellcond.lab.tasks import task
from wellcond.lab.training.optimize import averaged_tensors, averaged_weights
from wellcond.lab.training.run_folder import RunFolder
from wellcond.lab.training.stage_weights import fitting_weights, keep_weights, kept_weights, whole_state
from wellcond.lab.training.train import Run, _begin
from wellcond.lab.training.training_state import TrainingState

SHORT = TINY.replace("seeds = [0, 1]", "seeds = [0]").replace("steps = 40", "steps = 10").replace("ema = 0.9", "")
STAGES = """
[[stages]]
name = "first"

[[stages]]
name = "second"
after = "first"
train = { steps = 0 }

[[stages]]
name = "smaller"
after = "first"
take = "select"
model = { name = "vit", width = 8, depth = 1, heads = 1, patch = 4 }
train = { steps = 5, precision = "bf16" }
"""


def runs(recipe: Recipe, out: Path) -> list[Experiment]:
    found = []
    for each, folder in stages_of(recipe, out):
        found.append(prepared_recipe(each, folder))
        run_all(found[-1], quiet)
    return found


def prepared_recipe(recipe: Recipe, out: Path) -> Experiment:
    from wellcond.lab.comparison import prepare_comparison

    return prepare_comparison(recipe, out)


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> list[Experiment]:
    return runs(parse_recipe(SHORT + STAGES, "stages.toml"), tmp_path_factory.mktemp("stages"))


def test_a_stage_begins_where_the_one_before_it_ended(three: list[Experiment]) -> None:
    """No step is made in the second, so it tests what the first ended with, arm by arm, conditioned or not."""
    first, second, _ = ({o.arm: o for o in each.outcomes()} for each in three)
    assert set(first) == set(second) == {"default", "conditioned", "conditioned, scale only", "shift 1"}
    for arm, outcome in second.items():
        assert outcome.status == "finished", outcome.error
        assert outcome.result == first[arm].result
        assert outcome.train == ()


def test_kept_weights_are_what_the_model_computed_with(three: list[Experiment]) -> None:
    """For a folded shift of 1 on a fresh model, W_Q of head 0 minus the kept one is within training of the identity."""
    experiment = three[0]
    arm = next(s for s in arms_of(experiment.recipe) if s.name == "shift 1")
    kept = load_file(experiment.folder(arm, 0) / "weights.safetensors")
    model = lab_model("vit", experiment.recipe.model.options, experiment.task, 0)
    before = wc.attention_layers(model)[0].query.read().clone()
    model.load_state_dict(kept)
    moved = wc.attention_layers(model)[0].query.read() - before
    # Ten steps of AdamW move an entry by at most ten times the learning rate.
    identity = torch.eye(16)[:, :8].T if moved.shape[1:] == (8, 16) else torch.eye(16)[:, :8]
    assert (moved[0].detach() - identity).abs().max() < 10 * experiment.recipe.train.lr * 1.1


def test_a_smaller_model_selects_from_the_larger_one(three: list[Experiment]) -> None:
    large, small = three[0], three[2]
    for arm in arms_of(small.recipe):
        outcome = next(o for o in small.outcomes() if o.arm == arm.name)
        assert outcome.status == "finished", outcome.error
    from wellcond.lab.training.stage_weights import kept_weights, selected_weights

    assert small.recipe.weights is not None
    arm = arms_of(small.recipe)[0]
    kept = kept_weights(small.recipe.weights, arm, 0)
    assert kept == large.folder(arm, 0) / "weights.safetensors"
    model = lab_model("vit", small.recipe.model.options, small.task, 0)
    selected_weights(model, kept)
    teacher = load_file(kept)["blocks.0.mlp.fc1.weight"]
    own: Any = model.get_parameter("blocks.0.mlp.fc1.weight")
    assert torch.equal(own, teacher[::2, ::2])  # half as wide: every second row and column


def test_stages_that_do_not_follow_are_refused(tmp_path: Path) -> None:
    for change, words in (
        (('after = "first"', 'after = "fist"'), "comes after one of the stages before it, first; got 'fist'"),
        (('name = "second"', 'name = "first"'), "two stages 'first'"),
        (("train = { steps = 0 }", "train = { stepps = 0 }"), "stages: 'second': train.stepps"),
    ):
        with pytest.raises(WellcondError, match=words):
            stages_of(parse_recipe(SHORT + STAGES.replace(*change, 1), "stages.toml"), tmp_path)
    with pytest.raises(WellcondError, match=r"stages.1.name"):
        parse_recipe(SHORT + STAGES.replace('"second"', '"../up"'), "stages.toml")


def test_weights_that_are_not_there_are_told_with_their_arm(tmp_path: Path) -> None:
    text = SHORT + f'[weights]\nruns = "{tmp_path / "nowhere"}"\n'
    experiment = prepared(write(tmp_path, text), tmp_path / "out")
    run_all(experiment, quiet)
    assert {o.status for o in experiment.outcomes()} == {"crashed"}
    assert "keeps no weights of the arm 'default' with seed 0" in experiment.outcomes()[0].error


def test_stages_are_one_command(tmp_path: Path) -> None:
    path, out = write(tmp_path, SHORT[: SHORT.index("[arms.conditioned]")] + STAGES), tmp_path / "out"
    done = CliRunner().invoke(app, ["compare", str(path), "--out", str(out)])
    assert done.exit_code == 0, done.output
    assert {p.parent.name for p in out.glob("*/report.html")} == {"first", "second", "smaller"}
    assert done.stdout.count("arm") >= 3
    again = CliRunner().invoke(app, ["compare", str(path), "--out", str(out), "--json"])
    assert list(json.loads(again.stdout)) == ["first", "second", "smaller"]


# ------------------------------------------------------------------------------------------------ tuning and sweeps


def test_several_strengths_are_several_arms(tmp_path: Path) -> None:
    recipe = parse_recipe(TINY.replace('[arms."shift 1"]', "[arms.shift]").replace("1.0", "[1.0, 4.0, 10.0]"), "my")
    assert [s.name for s in arms_of(recipe)][-3:] == ["shift 1", "shift 4", "shift 10"]
    assert [s.settings.strength for s in arms_of(recipe)][-3:] == [1.0, 4.0, 10.0]


def outcome(arm: str, seed: int, value: float, control_of: str | None = None, status: str = "finished") -> Outcome:
    return Outcome(
        arm, control_of, seed, status, "", "accuracy", True, 10, (), ((10, value),), (), 1.0, {}
    )  # fmt: skip


def test_the_best_rate_of_each_arm_is_chosen_and_a_diverged_one_is_not() -> None:
    recipe = parse_recipe(TINY[: TINY.index('[arms."shift 1"]')], "my.toml")
    recipe = recipe.model_copy(update={"tuning": Tuning(lr=(0.1, 0.2, 0.3), seeds=(8, 9))})
    means = {"default": (0.5, 0.7, 0.9), "conditioned": (0.6, 0.6, 0.2), "conditioned, scale only": (0.1, 0.4, 0.3)}
    found = []
    for name, values in means.items():
        for lr, value in zip((0.1, 0.2, 0.3), values, strict=True):
            for seed, by in ((8, -0.05), (9, 0.05)):
                base, comma, rest = name.partition(",")
                control = f"{base} at {lr:g}" if comma else None
                status = "diverged" if (name, lr, seed) == ("default", 0.3, 9) else "finished"
                found.append(outcome(f"{base} at {lr:g}{comma}{rest}", seed, value + by, control, status))
    rates = rates_of(recipe, found)
    assert rates.best() == {"default": 0.2, "conditioned": 0.1, "conditioned, scale only": 0.2}
    assert "at the edge" in str(rates)
    assert rates.found["default"][0.3] is None


def test_tuning_runs_every_arm_at_every_rate_on_its_own_seeds() -> None:
    recipe = load_recipe("digits").model_copy(update={"tuning": Tuning(lr=(1e-3, 1e-2), seeds=(77,))})
    tuning = tuning_recipe(recipe)
    assert tuning.seeds == (77,)
    assert tuning.monitor is None
    assert len(arms_of(tuning)) == 2 * len(arms_of(recipe))
    assert {s.settings.lr for s in arms_of(tuning)} == {1e-3, 1e-2}


def test_a_recipe_with_tuning_is_tuned_first_and_trained_at_what_was_found(tmp_path: Path) -> None:
    text = SHORT[: SHORT.index("[arms.conditioned]")] + "[tuning]\nlr = [1e-9, 1e-2]\n"
    path, out = write(tmp_path, text.replace("steps = 10", "steps = 30")), tmp_path / "out"
    done = CliRunner().invoke(app, ["compare", str(path), "--out", str(out)])
    assert done.exit_code == 0, done.output
    (run,) = out.glob("runs/*/seed-0/run.json")
    assert json.loads(run.read_text())["lr"] == 1e-2
    assert len(list(out.glob("tuning/runs/*/seed-1000/run.json"))) == 2
    before = metrics(out)
    assert CliRunner().invoke(app, ["compare", str(path), "--out", str(out)]).exit_code == 0
    assert metrics(out) == before


def test_tuning_is_a_command_of_its_own_that_writes_a_recipe(tmp_path: Path) -> None:
    path, out = write(tmp_path, SHORT[: SHORT.index("[arms.conditioned]")]), tmp_path / "out"
    done = CliRunner().invoke(app, ["tune", str(path), "--lr", "1e-9,1e-2", "--out", str(out)])
    assert done.exit_code == 0, done.output
    tuned = load_recipe(out / "tuned.toml")
    assert tuned.rates.keys() == {"default"}
    assert tuned.tuning is None
    assert tuned.seeds == (0,)
    wrong = CliRunner().invoke(app, ["tune", str(path), "--lr", "fast", "--out", str(tmp_path / "other")])
    assert wrong.exit_code == 2
    assert "--lr" in wrong.stderr


# ------------------------------------------------------------------------------------------------ as text


@pytest.mark.parametrize("name", shipped())
def test_a_recipe_is_written_as_it_was_read_without_defaults(name: str) -> None:
    recipe = load_recipe(name)
    text = recipe_toml(recipe)
    assert parse_recipe(text, "again.toml") == recipe
    assert "betas" not in text


def test_a_monitor_that_is_off_stays_off_when_written() -> None:
    recipe = parse_recipe(TINY.replace("[monitor]\nevery = 20\nheads = 1\nexamples = 2", "").replace(
        'task = "digits"', 'task = "digits"\nmonitor = false'), "my.toml")  # fmt: skip
    assert recipe.monitor is None
    assert parse_recipe(recipe_toml(recipe), "again.toml").monitor is None


def test_epochs_become_steps() -> None:
    text = TINY.replace("steps = 40", "epochs = 0.5")
    experiment = Experiment.of(parse_recipe(text, "my.toml"), Path("unused"))
    assert experiment.recipe.train.steps == round(0.5 * len(task("digits").train) / 16)


# ------------------------------------------------------------------------------------------------ weights, once more


def test_a_selected_shift_is_not_added_twice(tmp_path: Path) -> None:
    """What was kept is W + C: selected from it and conditioned, the small model has C once."""
    shift = '[arms."shift 10"]\ncondition = "shift"\nstrength = 10.0\n'
    text = SHORT[: SHORT.index("[arms.conditioned]")] + shift + STAGES
    *_, small = runs(parse_recipe(text, "stages.toml"), tmp_path)
    arm = arms_of(small.recipe)[1]
    run = Run(small.recipe, arm, 0, 1e-3, small.task, RunFolder(tmp_path / "fresh"))
    model, conditioning = _begin(run)
    assert conditioning is not None
    query = wc.attention_layers(model)[0].query.read()
    diagonal = query[0].diagonal() if query[0].shape[0] >= query[0].shape[1] else query[0].T.diagonal()
    assert (diagonal > 5).any()
    assert (diagonal < 15).all()


def test_weights_of_another_width_are_refused_and_select_is_named(tmp_path: Path) -> None:
    text = SHORT[: SHORT.index("[arms.conditioned]")] + STAGES.replace('take = "select"\n', "")
    *_, small = runs(parse_recipe(text, "stages.toml"), tmp_path)
    (outcome,) = small.outcomes()
    assert outcome.status == "crashed"
    assert "take = 'select'" in outcome.error


def test_a_method_that_stores_nothing_of_its_own_is_loaded_too(tmp_path: Path) -> None:
    text = SHORT[: SHORT.index("[arms.conditioned]")] + '[arms.norm]\ncondition = "qk_norm"\n'
    first, second, _ = runs(parse_recipe(text + STAGES, "stages.toml"), tmp_path)
    results = [{o.arm: o.result for o in each.outcomes()} for each in (first, second)]
    assert results[0] == results[1]
    assert None not in results[0].values()


def test_tuning_and_stages_do_not_mix() -> None:
    with pytest.raises(WellcondError, match="tuning is of a training from the beginning"):
        parse_recipe(SHORT + STAGES + "[tuning]\nlr = [1e-3, 1e-2]\n", "my.toml")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[tuning]\nlr = [0.0, 0.1]\n", "tuning.lr.0"),
        ("[tuning]\nlr = [0.1, 0.1]\n", "different numbers"),
        ("[rates]\ndefalt = 0.1\n", "rates: 'defalt' is none of the arms"),
        ('[arms.shift]\ncondition = "shift"\nstrength = [1.0, 2.0]\n', "two are called 'shift 1'"),
    ],
)
def test_values_that_would_be_ignored_are_refused(text: str, words: str) -> None:
    with pytest.raises(WellcondError, match=words):
        parse_recipe(TINY + text, "my.toml")


def test_a_change_of_a_stage_that_is_not_there_is_refused() -> None:
    with pytest.raises(WellcondError, match="no stage 'frist'; there are first, second, smaller"):
        parse_recipe(SHORT + STAGES, "my.toml", stages={"frist": {"train": {"steps": 1}}})


def test_a_scheme_added_before_another_leaves_its_runs_where_they_are(tmp_path: Path) -> None:
    text = SHORT[: SHORT.index("[arms.conditioned]")]
    later = '[arms.mimetic]\ninit = "mimetic"\n'
    run_all(prepared(write(tmp_path, text + later), tmp_path / "out"), quiet)
    before = metrics(tmp_path / "out")
    added = prepared(write(tmp_path, text + '[arms.conditioned]\ninit = "conditioned"\n' + later), tmp_path / "out")
    assert [arm.name for arm, _ in added.left()] == ["conditioned"]
    run_all(added, quiet)
    assert before.items() <= metrics(tmp_path / "out").items()
    assert [o.arm for o in added.outcomes()] == ["default", "conditioned", "mimetic"]


# ------------------------------------------------------------------------------------------------ averages and scales


def test_an_average_has_the_statistics_of_batchnorm_too() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.BatchNorm1d(2))
    average = {name: tensor.clone() for name, tensor in averaged_tensors(model).items()}
    assert {"0.weight", "1.running_mean", "1.running_var"} <= set(average)
    assert "1.num_batches_tracked" not in average
    model(torch.full((4, 2), 7.0) + torch.eye(4, 2))
    moved = model[1].running_mean.clone()
    with averaged_weights(model, average):
        assert torch.equal(model[1].running_mean, torch.zeros(2))
    assert torch.equal(model[1].running_mean, moved)


def test_the_scale_of_a_loss_is_restored() -> None:
    model = torch.nn.Linear(2, 2)
    optimizer = torch.optim.AdamW(model.parameters())
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0, growth_interval=2)
    for _ in range(3):
        scaler.scale(model(torch.ones(1, 2)).sum()).backward()
        scaler.step(optimizer)
        scaler.update()
    fresh = torch.amp.GradScaler("cpu", init_scale=8.0, growth_interval=2)
    again = torch.nn.Linear(2, 2)
    TrainingState(again, torch.optim.AdamW(again.parameters()), None, {}, fresh).load_(
        TrainingState(model, optimizer, None, {}, scaler).tensors()
    )
    assert scaler.state_dict()["scale"] == 16.0
    assert fresh.state_dict() == scaler.state_dict()


def test_a_result_that_is_no_number_is_none(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run")
    folder.describe(arm="s", seed=0, status="finished", metric="pearson", higher_is_better=True, steps=1)
    folder.measure("test", 1, pearson=float("nan"), other=2.0)
    found = read_outcome(tmp_path / "run")
    assert found.result is None
    assert found.final == {"other": 2.0}


def test_a_folder_with_the_name_of_a_recipe_does_not_hide_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "digits").mkdir()
    assert load_recipe("digits").task.name == "digits"


CHAIN = """
[[stages]]
name = "a"

[[stages]]
name = "b"
after = "a"
monitor = false

[[stages]]
name = "c"
after = "b"
"""


def test_a_stage_follows_the_one_that_it_names_and_can_turn_the_monitor_off() -> None:
    a, b, c = (recipe for recipe, _ in stages_of(parse_recipe(SHORT + CHAIN, "chain.toml"), Path("runs")))
    assert a.weights is None
    assert b.weights is not None
    assert c.weights is not None
    assert (Path(b.weights.runs).name, Path(c.weights.runs).name) == ("a", "b")
    assert [each.monitor is None for each in (a, b, c)] == [False, True, False]
    assert [each.title for each in (a, b, c)] == ["tiny: a", "tiny: b", "tiny: c"]
    assert [each.train.keep for each in (a, b, c)] == [True, True, False]


def test_weights_are_those_of_the_same_seed_and_why_there_are_none_is_said(tmp_path: Path) -> None:
    (arm, *_), weights = arms_of(parse_recipe(SHORT, "tiny.toml")), Weights(runs=str(tmp_path))
    folders = [tmp_path / "runs" / f"00-{arm.folder}" / f"seed-{seed}" for seed in range(3)]
    for folder in folders:
        folder.mkdir(parents=True)
    for seed in (0, 1):
        keep_weights(folders[seed], {"w": torch.full((1,), float(seed))})
    assert load_file(kept_weights(weights, arm, 1))["w"].item() == 1
    RunFolder(folders[2]).describe(status="diverged")
    with pytest.raises(WellcondError, match="with seed 2: its run there diverged"):
        kept_weights(weights, arm, 2)


def test_a_file_of_weights_that_is_cut_short_is_told_by_name(tmp_path: Path) -> None:
    model = lab_model("vit", {"width": 16, "depth": 1, "heads": 2, "patch": 4}, task("digits"), seed=0)
    keep_weights(tmp_path, model.state_dict())
    path = tmp_path / "weights.safetensors"
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(WellcondError, match=r"weights\.safetensors' cannot be read"):
        fitting_weights(model, path, "")


def test_tied_weights_are_kept() -> None:
    shared = nn.Linear(3, 3, bias=False)
    model = nn.ModuleDict({"one": shared, "other": shared})
    state = whole_state(model)
    assert len({tensor.data_ptr() for tensor in state.values()}) == 2
    assert save(state)  # refuses tensors that share memory


@pytest.mark.parametrize("content", ["{}", "[]", "null", '{"arm": "default"}', "\xff", "", "[" * 2000])
def test_a_damaged_run_is_one_line_and_neither_a_result_nor_made_again(content: str, tmp_path: Path) -> None:
    run = tmp_path / "runs" / "00-default" / "seed-0"
    run.mkdir(parents=True)
    (run / "run.json").write_bytes(content.encode("latin-1"))
    with pytest.raises(WellcondError, match="seed-0"):
        read_outcome(run)
    with pytest.raises(WellcondError, match=r"run\.json.*delete .* to train this run again"):
        RunFolder(run).describe(status="running")
    assert (run / "run.json").read_bytes() == content.encode("latin-1")


def test_a_run_that_cannot_be_read_is_not_made_again(tmp_path: Path) -> None:
    run = tmp_path / "seed-0"
    (run / "run.json").mkdir(parents=True)  # as unreadable as a file without permission, for root too
    with pytest.raises(WellcondError, match="cannot be read"):
        _ = RunFolder(run).description


def test_what_diverges_or_crashes_is_reported_as_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[tuple[int, float]] = []
    text = SHORT.replace("steps = 10", "steps = 10\nlr = 1e30\nclip = inf")
    experiment = prepared(write(tmp_path, text), tmp_path / "out")
    arm = arms_of(experiment.recipe)[0]
    assert run_one(experiment, arm, 0, lambda step, loss: said.append((step, loss))) == "diverged"
    assert said[-1][0] == 10
    monkeypatch.setattr("wellcond.lab.comparison.train", lambda run, report: 1 / 0)
    assert run_one(experiment, arm, 0, lambda step, loss: said.append((step, loss))) == "crashed"
    assert said[-1][0] == 10
    assert said[-1][1] != said[-1][1]
