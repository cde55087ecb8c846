"""Controls in recipes: which arms they make, what these begin with, and folders from before there were several."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import wellcond as wc
from tests.lab.recipe.test_stages import outcome
from tests.laboratory import TINY, prepared, write
from wellcond.lab.analysis.outcome import read_outcome
from wellcond.lab.analysis.tuning import rates_of, tuning_recipe
from wellcond.lab.comparison import Experiment, prepare_comparison, run_one
from wellcond.lab.models import lab_model
from wellcond.lab.models.build import monitor_inputs
from wellcond.lab.recipe.arms import arms_of
from wellcond.lab.recipe.recipe import Recipe, load_recipe, parse_recipe, recipe_toml, shipped
from wellcond.lab.recipe.settings import ArmSettings, Tuning
from wellcond.lab.tasks import task as build_task
from wellcond.lab.training.run_folder import RunFolder
from wellcond.scale.measure_scales import measure_scales

ALL = ["scale", "rotation", "sign"]
CLAIMING = [name for name in shipped() if any(arm.init is not None for arm in load_recipe(name).arms.values())]


def recipe(control: str, init: str = '"conditioned"', more: str = "") -> Recipe:
    text = TINY.replace('init = "conditioned"', f"init = {init}").replace(
        "control = true", f"control = {control}{more}"
    )
    return parse_recipe(text, "my.toml")


def test_each_control_is_an_arm_behind_its_own() -> None:
    found = arms_of(recipe('["rotation", "scale", "sign"]'))
    assert [(arm.name, arm.control_of, arm.control) for arm in found] == [
        ("default", None, None),
        ("conditioned", None, None),
        ("conditioned, rotated", "conditioned", "rotation"),
        ("conditioned, scale only", "conditioned", "scale"),
        ("conditioned, sign flipped", "conditioned", "sign"),
        ("shift 1", None, None),
    ]
    assert len({arm.folder for arm in found}) == len(found)


def test_true_is_scale_and_what_is_written_is_read_again() -> None:
    for written, meant in (("true", ["scale"]), ("false", []), ("[]", []), (json.dumps(ALL), ALL)):
        made = recipe(written)
        assert list(made.arms["conditioned"].control) == meant
        assert parse_recipe(recipe_toml(made), "again.toml") == made
    assert 'control = [\n    "scale",\n]' in recipe_toml(recipe("true"))
    assert ArmSettings(init="mimetic", control=True) == ArmSettings(init="mimetic", control=("scale",))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("init", "options"),
    [
        ('"centring"', {}),
        ('"mimetic"', {"vo_alpha": 0.2}),
        ('{ qk = "conditioned", vo = "mimetic" }', {}),
    ],
)
def test_controls_begin_with_what_their_scheme_makes_of_the_arm_s(init: str, options: dict[str, Any]) -> None:
    """To the bit, its options included; the model's other weights are those of the arm itself."""
    more = f"\noptions = {{ {', '.join(f'{name} = {value}' for name, value in options.items())} }}" if options else ""
    made = recipe(json.dumps(ALL), init, more)
    task = build_task(made.task.name)
    states = {}
    for arm in arms_of(made):
        model = lab_model("vit", made.model.options, task, seed=5)
        arm.initialise_(model, seed=5)
        states[arm.name] = model.state_dict()
    scheme = made.arms["conditioned"].init
    of = wc.plan(lab_model("vit", made.model.options, task, 5), scheme, **options).scheme  # type: ignore[arg-type]
    for suffix, name in ((", scale only", "scale_matched"), (", rotated", "rotated"), (", sign flipped", "flipped")):
        model = lab_model("vit", made.model.options, task, seed=5)
        wc.init_(model, name, of=of, seed=5)
        found = states[f"conditioned{suffix}"]
        assert all(torch.equal(found[key], value) for key, value in model.state_dict().items())
        assert not torch.equal(found["blocks.0.attn.proj.weight"], states["conditioned"]["blocks.0.attn.proj.weight"])
        assert torch.equal(found["blocks.0.mlp.fc1.weight"], states["default"]["blocks.0.mlp.fc1.weight"])


def test_a_calibrated_default_has_the_sharpness_and_the_gains_of_its_arm() -> None:
    made = recipe('["calibrated"]', '"centring"')
    task = build_task(made.task.name)
    images = task.test[torch.arange(8)]
    default, own, control = arms_of(made)[:3]
    models = {}
    for arm in (default, own, control):
        models[arm.name] = lab_model("vit", made.model.options, task, seed=5)
        arm.initialise_(models[arm.name], 5, lambda model: monitor_inputs(images))
    wanted, found = (measure_scales(models[arm.name], monitor_inputs(images)) for arm in (own, control))
    for name, scale in wanted.items():
        assert found[name].beta == pytest.approx(scale.beta, rel=0.02)
        assert found[name].branch == pytest.approx(scale.branch, rel=0.02)
    q, default_q = (wc.attention_layers(models[arm.name])[0].query.read() for arm in (control, default))  # type: ignore[union-attr]
    ratio = q / default_q
    assert torch.allclose(ratio, ratio[:, :1, :1].expand_as(ratio), rtol=1e-4)  # a number for each head
    assert control.name == "conditioned, calibrated default"


@pytest.mark.parametrize("name", CLAIMING)
def test_a_start_that_a_shipped_recipe_compares_has_its_controls(name: str, tmp_path: Path) -> None:
    """A Gaussian of its scale; and the calibrated default, wherever attention has a sharpness to calibrate."""
    experiment = prepare_comparison(name, tmp_path / "out")
    made, inputs = experiment.recipe, monitor_inputs(experiment.task.test[torch.arange(4)])

    def fresh() -> torch.nn.Module:
        return lab_model(made.model.name, made.model.options, experiment.task, seed=0)

    sharp = all(layer.beta for layer in measure_scales(fresh(), inputs).values())
    for arm, settings in made.arm_settings():
        if settings.init is not None:
            assert "scale" in settings.control, arm
            assert ("calibrated" in settings.control) == sharp, arm
    for own in arms_of(made):
        if own.control == "calibrated":
            own.initialise_(fresh(), 0, lambda model: inputs)  # which refuses what it cannot reach


def pretend_done(experiment: Experiment, name: str, seed: int) -> Path:
    """A finished run as it was described when there was one kind of control: `control` was not written."""
    arm = next(arm for arm in arms_of(experiment.recipe) if arm.name == name)
    folder = RunFolder(experiment.folder(arm, seed))
    folder.describe(
        arm=name,
        control_of=arm.control_of,
        seed=seed,
        status="finished",
        error="",
        metric="accuracy",
        higher_is_better=True,
        steps=40,
        lr=experiment.rate(arm),
        settings={"init": "conditioned"} if "conditioned" in name else {},
    )
    return folder.path


def test_a_folder_from_before_goes_on_with_more_controls(tmp_path: Path) -> None:
    old = prepared(write(tmp_path), tmp_path / "out", seeds=(0,))
    for name in ("default", "conditioned", "conditioned, scale only"):
        path = pretend_done(old, name, 0)
    assert "control" not in json.loads((path / "run.json").read_text())
    assert read_outcome(path).control == "scale"
    written = tmp_path / "out" / "recipe.toml"
    written.write_text(written.read_text().replace('control = [\n    "scale",\n]', "control = true"))
    assert [arm.name for arm, _ in prepared(written, tmp_path / "out").left()] == ["shift 1"]
    more = write(tmp_path, TINY.replace("control = true", f"control = {json.dumps(ALL)}"))
    left = [arm.name for arm, _ in prepared(more, tmp_path / "out", seeds=(0,)).left()]
    assert left == ["conditioned, rotated", "conditioned, sign flipped", "shift 1"]


def test_a_run_says_which_control_it_is(tmp_path: Path) -> None:
    text = TINY.replace("control = true", 'control = ["rotation"]').replace("steps = 40", "steps = 0")
    experiment = prepared(write(tmp_path, text), tmp_path / "out", seeds=(0,), monitor=False)
    for arm in arms_of(experiment.recipe)[1:3]:
        run_one(experiment, arm, 0)
    own, control = experiment.outcomes()
    assert (own.control_of, control.control_of, control.control) == (None, "conditioned", "rotation")
    assert control.status == "finished", control.error


def test_each_control_is_tuned_by_itself() -> None:
    made = load_recipe("digits").model_copy(
        update={
            "arms": {"default": ArmSettings(), "centring": ArmSettings(init="centring", control=("scale", "rotation"))},
            "tuning": Tuning(lr=(0.1, 0.2), seeds=(77,)),
        }
    )
    names = [arm.name for arm in arms_of(tuning_recipe(made))]
    assert names[2:5] == ["centring at 0.1", "centring at 0.1, scale only", "centring at 0.1, rotated"]
    values = dict(zip(names, (0.5, 0.6, 0.5, 0.4, 0.8, 0.6, 0.3, 0.1), strict=True))
    runs = [outcome(arm.name, 77, values[arm.name], control_of=arm.control_of) for arm in arms_of(tuning_recipe(made))]
    best = rates_of(made, runs).best()
    assert best == {"default": 0.2, "centring": 0.2, "centring, scale only": 0.1, "centring, rotated": 0.1}
    Recipe.model_validate(made.model_copy(update={"rates": best, "tuning": None}).model_dump())
