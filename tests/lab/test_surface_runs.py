"""Surfaces from recipe to page: arms in other coordinates, the grid, the command, and runs that are killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from tests.laboratory import TINY, metrics
from wellcond.cli.main import app
from wellcond.errors import WellcondError
from wellcond.lab.recipe.arms import Arm, arms_of
from wellcond.lab.recipe.recipe import Recipe, load_recipe, parse_recipe, recipe_toml
from wellcond.lab.recipe.settings import ArmSettings, Targets
from wellcond.lab.recipe.surface_grid import surface_grid
from wellcond.lab.shown_layers import first_inputs
from wellcond.lab.tasks import task
from wellcond.scale.measure_scales import measure_scales

ARMS = """
[surface]
beta = [0.02, 0.1, 0.5]
branch = [0.05, 0.3, 1.5]
seeds = [0, 1]

[arms.default]

[arms.conditioned]
init = "conditioned"
control = ["scale"]

[arms."shift 1"]
condition = "shift"
strength = 1.0
"""
SMALL = TINY.partition("[arms")[0].replace("steps = 40", "steps = 12").replace("ema = 0.9", "") + ARMS
MODELS = {
    "vit": 'name = "vit"\nwidth = 16\ndepth = 2\nheads = 2\npatch = 4',
    "with QK-norm": 'name = "vit"\nwidth = 16\ndepth = 2\nheads = 2\npatch = 4\nqk_norm = true',
}


def written(model: str = "vit") -> Recipe:
    before, _, rest = SMALL.partition("[model]")
    return parse_recipe(f"{before}[model]\n{MODELS[model]}\n\n[train]{rest.partition('[train]')[2]}", "my.toml")


def begun(recipe: Recipe, settings: ArmSettings, seed: int = 0) -> tuple[torch.nn.Module, Any]:
    """A model in float64 as an arm begins with it, and the images that it was calibrated on."""
    digits = task("digits")
    arm = Arm("arm", settings)
    model = arm.built(recipe, digits, seed).double()
    images = first_inputs(model, digits, 16)
    images = images.double() if isinstance(images, torch.Tensor) else {k: v.double() for k, v in images.items()}
    arm.initialise_(model, seed, lambda _: images)
    return model.eval(), images


def output(model: torch.nn.Module, images: Any) -> torch.Tensor:
    found: torch.Tensor = model(**images) if isinstance(images, dict) else model(images)
    return found


@pytest.mark.parametrize("change", [{"coordinates": 16.0}, {"coordinates": 0.25}, {"balance": True}])
@pytest.mark.parametrize("init", [None, "fan_in", "conditioned"])
def test_other_coordinates_are_the_same_function_in_other_weights(change: dict[str, Any], init: str | None) -> None:
    recipe = written()
    plain, images = begun(recipe, ArmSettings(init=init))
    other, _ = begun(recipe, ArmSettings(init=init, **change))
    torch.testing.assert_close(output(other, images), output(plain, images), rtol=1e-9, atol=1e-10)
    ours, theirs = (measure_scales(model, images) for model in (other, plain))
    for name, scale in theirs.items():
        assert ours[name].beta == pytest.approx(scale.beta, rel=1e-6)
        assert ours[name].branch == pytest.approx(scale.branch, rel=1e-6)
    moved = [
        not torch.allclose(one, two)
        for one, two in zip(other.parameters(), plain.parameters(), strict=True)
        if one.dim() > 1
    ]
    assert any(moved)


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize(("beta", "branch"), [(0.02, 1.5), (0.5, 0.05)])
def test_a_start_of_the_grid_has_the_sharpness_and_the_gain_that_its_name_says(
    model: str, beta: float, branch: float
) -> None:
    recipe = written(model)
    name = f"β {beta:g}, g {branch:g}"
    made, images = begun(recipe, surface_grid(recipe).arms[name])
    for scale in measure_scales(made, images).values():
        assert scale.branch == pytest.approx(branch, rel=0.02)
        known = [one for one in scale.beta if one is not None]
        if model == "vit":
            assert known == pytest.approx([beta] * 2, rel=0.02)
        else:  # a gain of a QK-norm is shared by the heads
            assert sum(known) / 2 == pytest.approx(beta, rel=0.02)


def test_a_grid_has_every_start_and_every_arm_that_only_begins_otherwise() -> None:
    grid = surface_grid(written())
    names = [arm.name for arm in arms_of(grid)]
    assert names[:3] == ["default", "conditioned", "conditioned, scale only"]
    assert len(names) == 3 + 9
    assert "shift 1" not in names
    assert grid.seeds == (0, 1)
    assert grid.train.test_first
    assert grid.arms["β 0.1, g 1.5"] == ArmSettings(calibrate=Targets(beta=0.1, branch=1.5))
    assert parse_recipe(recipe_toml(grid), "again.toml") == grid


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (("beta = [0.02, 0.1, 0.5]", "beta = [0.02, 0.1]"), "surface.beta: Tuple should have at least 3 items"),
        (("beta = [0.02, 0.1, 0.5]", "beta = [0.02, 0.1, 0.1]"), "surface: beta are different numbers"),
        (("branch = [0.05, 0.3, 1.5]", "branch = [0.0, 0.3, 1.5]"), "surface.branch.0: Input should be greater than 0"),
        (("branch = [0.05, 0.3, 1.5]", "gain = [1, 2, 3]"), "surface.gain: no such key"),
    ],
)
def test_a_grid_that_is_none_is_refused_in_a_line(change: tuple[str, str], words: str) -> None:
    with pytest.raises(WellcondError) as error:
        parse_recipe(SMALL.replace(*change), "my.toml")
    assert words in str(error.value)
    assert "\n" not in str(error.value)


def command(file: Path, out: Path, *more: str) -> list[str]:
    return ["surface", str(file), "--out", str(out), *more]


@pytest.fixture(scope="module")
def surface(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, str]:
    """A recipe's file, the folder of its surface, and what the command printed."""
    folder = tmp_path_factory.mktemp("surface")
    file, out = folder / "small.toml", folder / "out"
    file.write_text(SMALL)
    made = CliRunner().invoke(app, command(file, out))
    assert made.exit_code == 0, made.output
    return file, out, made.output


def test_the_command_writes_numbers_a_picture_and_a_page(surface: tuple[Path, Path, str]) -> None:
    file, out, printed = surface
    assert "9 starts of 2 seeds" in printed
    assert "best of the surface" in printed
    data = json.loads((out / "surface.json").read_text())
    assert [one["arm"] for one in data["arms"]] == ["default", "conditioned", "conditioned, scale only"]
    assert (out / "surface.png").read_bytes().startswith(b"\x89PNG")
    assert "conditioned, scale only" in (out / "surface.html").read_text()
    again = CliRunner().invoke(app, [*command(file, out), "--json"])
    assert json.loads(again.stdout) == data  # read back, not trained again


def test_options_take_the_place_of_the_grid(surface: tuple[Path, Path, str], tmp_path: Path) -> None:
    file, *_ = surface
    more = ["--beta", "0.05,0.1,0.2", "--branch", "0.1,0.2,0.4,0.8", "--seeds", "1", "--set", "train.steps=1"]
    made = CliRunner().invoke(app, command(file, tmp_path / "out", *more))
    assert made.exit_code == 0, made.output
    assert "12 starts of 1 seed" in made.output
    grid = load_recipe(tmp_path / "out" / "recipe.toml").surface
    assert (grid.beta, grid.seeds) == ((0.05, 0.1, 0.2), (0,))


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (["--set", "surface=3"], "surface"),
        (["--beta", "0.1,0.2"], "--beta takes three numbers or more"),
        (["--beta", "a,b,c"], "--beta takes three numbers or more"),
        (["--branch", "0.1,-1,2"], "--branch takes three numbers or more"),
        (["--branch", "0.1,0.1,2"], "branch are different numbers"),
        (["--set", "task.name=cifar10", "--set", "task.folder=nowhere"], "nowhere"),
    ],
)
def test_what_cannot_be_is_told_in_one_line(
    more: list[str], words: str, surface: tuple[Path, Path, str], tmp_path: Path
) -> None:
    made = CliRunner().invoke(app, command(surface[0], tmp_path / "out", *more))
    assert made.exit_code == 2
    assert words in made.stderr
    assert made.stderr.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_targets_are_chosen_on_folders(surface: tuple[Path, Path, str], tmp_path: Path) -> None:
    file, out, _ = surface
    other = tmp_path / "deeper"
    made = CliRunner().invoke(
        app, command(file, other, "--seeds", "1", "--set", "model.depth=2", "--set", "train.steps=1")
    )
    assert made.exit_code == 0, made.output
    found = CliRunner().invoke(app, ["targets", str(out), str(other)])
    assert found.exit_code == 0, found.output
    assert "chosen on all tasks" in found.output
    data = json.loads(CliRunner().invoke(app, ["targets", str(out), str(other), "--json"]).stdout)
    assert data["layers"] == {"out": 1, "deeper": 2}
    alone = CliRunner().invoke(app, ["targets", str(out)])
    assert (alone.exit_code, "two surfaces or more" in alone.stderr) == (2, True)
    none = CliRunner().invoke(app, ["targets", str(out), str(tmp_path)])
    assert (none.exit_code, none.stderr.count("\n")) == (2, 1)


@pytest.mark.long
def test_killed_ten_times_it_is_the_same_to_the_bit(surface: tuple[Path, Path, str], tmp_path: Path) -> None:
    file, whole, _ = surface
    out = tmp_path / "out"
    arguments = [sys.executable, "-m", "wellcond", *command(file, out)]
    for kill in range(10):
        process = subprocess.Popen(arguments, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        deadline, wanted = time.monotonic() + 120, 14 * (kill + 1)
        while sum(text.count("\n") for text in metrics(out).values()) < wanted:
            assert process.poll() is None, "it ended before it was killed"
            assert time.monotonic() < deadline
            time.sleep(0.005)
        os.kill(process.pid, signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL
    assert subprocess.run(arguments, capture_output=True, check=False).returncode == 0
    assert metrics(out) == metrics(whole)
    numbers = [json.loads((folder / "surface.json").read_text()) for folder in (out, whole)]
    assert numbers[0] == numbers[1]
