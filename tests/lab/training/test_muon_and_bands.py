"""Recipes that train by Muon and keep an arm within bands: resumed to the same bits, mistakes told in one line."""

from __future__ import annotations

import copy
import math
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.lab.test_comparison import comparing
from tests.laboratory import TINY, interrupt_and_resume, metrics, prepared, quiet, write
from tests.training import vit
from wellcond.errors import WellcondError
from wellcond.lab.analysis.outcome import read_outcomes
from wellcond.lab.comparison import run_all, run_one
from wellcond.lab.recipe.recipe import parse_recipe
from wellcond.lab.recipe.settings import Training
from wellcond.lab.training import train as training
from wellcond.lab.training.optimize import optimizer_for, steer_

RECIPE = f"""{TINY.partition("[arms")[0].replace("batch = 16", 'batch = 16{nl}optimizer = "head-muon"{nl}lr = 1e-2')}
[arms.default]

[arms.kept]
bands = {{ beta = [1e-6, 0.2], kappa = 3.0, updates = true, every = 3 }}

[arms.orthogonal]
init = "orthogonal"
condition = "shift"
strength = 0.5
""".replace("{nl}", "\n")


@pytest.fixture(scope="module")
def straight(tmp_path_factory: Any) -> Path:
    folder = tmp_path_factory.mktemp("straight")
    run_all(prepared(write(folder, RECIPE), folder / "out", seeds=(0,)), quiet)
    return folder / "out"


def test_an_arm_is_kept_within_its_bands(straight: Path) -> None:
    found = {outcome.arm: outcome for outcome in read_outcomes(straight)}
    assert all(outcome.status == "finished" for outcome in found.values()), [one.error for one in found.values()]
    assert any(one["part"] == "spectrum" and one["after"] == 3.0 for one in found["kept"].control_log)
    assert not any(outcome.control_log for name, outcome in found.items() if name != "kept")


def test_muon_and_control_go_on_from_a_checkpoint_to_the_same_bits(
    straight: Path, tmp_path: Path, monkeypatch: Any
) -> None:
    interrupt_and_resume(prepared(write(tmp_path, RECIPE), tmp_path / "out", seeds=(0,)), monkeypatch)
    assert metrics(tmp_path / "out") == metrics(straight)


@pytest.mark.long
def test_killed_with_muon_and_control_it_goes_on_to_the_same_bits(straight: Path, tmp_path: Path) -> None:
    path, out = write(tmp_path, RECIPE), tmp_path / "out"
    for lines in (5, 18, 30):
        process = comparing(path, out, "--seeds", "1")
        while sum(text.count("\n") for text in metrics(out).values()) < lines:
            time.sleep(0.02)
        process.kill()
        process.wait()
    assert comparing(path, out, "--seeds", "1").wait().returncode == 0
    assert metrics(out) == metrics(straight)


def test_untrained_models_are_tested_once_though_the_run_is_begun_again(tmp_path: Path, monkeypatch: Any) -> None:
    experiment = prepared(write(tmp_path), tmp_path / "out", seeds=(0,), train={"test_first": True})
    arm, _ = next(experiment.runs())
    original = training.steer_

    def interrupted(optimizer: Any, step: int, *others: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(training, "steer_", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run_one(experiment, arm, 0)
    monkeypatch.setattr(training, "steer_", original)
    run_one(experiment, arm, 0)
    (found,) = experiment.outcomes()
    assert [step for step, _ in found.test] == [0, 20, 40]


@pytest.mark.parametrize(
    ("bands", "words"),
    [("{ beta = [0.8, 0.1] }", "least and largest"), ("{ kapa = 3 }", "kapa"), ("{ every = 0 }", "every")],
)
def test_bands_that_are_wrong_are_told_before_anything_is_trained(bands: str, words: str, tmp_path: Path) -> None:
    text = RECIPE.replace("{ beta = [1e-6, 0.2], kappa = 3.0, updates = true, every = 3 }", bands)
    with pytest.raises(WellcondError, match=f"arm 'kept': bands: .*{words}"):
        prepared(write(tmp_path, text), tmp_path / "out")


def test_an_unknown_optimizer_is_told() -> None:
    with pytest.raises(WellcondError, match="optimizer"):
        parse_recipe(RECIPE.replace("head-muon", "headmuon"), "my.toml")


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_the_same_parameters_decay_under_every_optimizer(optimizer: str) -> None:
    """All matrices but those that a recipe names: embeddings and heads, which Muon leaves to AdamW, among them."""
    model = vit(torch.float32)
    settings = Training(optimizer=optimizer, undecayed=("qkv",))
    found = optimizer_for(model, 1e-3, settings)
    decay = {id(p): group["weight_decay"] for group in found.param_groups for p in group["params"]}
    for name, p in model.named_parameters():
        assert decay[id(p)] == (0.05 if p.ndim > 1 and "qkv" not in name else 0.0), name
    if optimizer == "muon":
        kinds = {id(p): group["algorithm"] for group in found.param_groups for p in group["params"]}
        assert kinds[id(model.blocks[0].attn.qkv.weight)] == "muon"


def test_a_cycle_of_momentum_reaches_muon() -> None:
    settings = Training(optimizer="muon", schedule="one-cycle", momentum_cycle=(0.85, 0.95))
    found = optimizer_for(vit(torch.float32), 1e-3, settings)
    steer_(found, 30, 1e-3, settings)
    first = {group["betas"][0] for group in found.param_groups if group["algorithm"] == "adamw"}
    assert {group["momentum"] for group in found.param_groups if group["algorithm"] == "muon"} == first


DIFFERENT = f"""{TINY.partition("[arms")[0].replace("batch = 16", "batch = 16{nl}clip = inf").replace("ema = 0.9", "")}
[arms.default]

[arms.clipped]
train = {{ clip = 1e-3 }}

[arms.sphere]
train = {{ optimizer = "muon", sphere = 1.0 }}

[arms.normed]
model = {{ qk_norm = true }}

[arms.penalised]
penalty = 10.0
""".replace("{nl}", "\n")


def test_arms_may_differ_in_their_optimizer_and_model(tmp_path: Path, monkeypatch: Any) -> None:
    """Each is trained as it says: weights on their sphere, norms in place, an update of gradients of a tiny norm."""
    last: dict[str, Any] = {}
    original = training.evaluate

    def kept(model: Any, *others: Any) -> Any:
        last[current[0]] = copy.deepcopy(model).eval()
        return original(model, *others)

    monkeypatch.setattr(training, "evaluate", kept)
    experiment = prepared(write(tmp_path, DIFFERENT), tmp_path / "out", seeds=(0,))
    current = [""]
    for arm, seed in experiment.runs():
        current[0] = arm.name
        assert run_one(experiment, arm, seed) == "finished"
    norms = torch.linalg.svdvals(last["sphere"].blocks[0].attn.qkv.weight.detach())[0]
    assert float(norms) == pytest.approx(math.sqrt(3), rel=1e-5)
    assert type(last["normed"].blocks[0].attn.q_norm).__name__ == "LayerNorm"
    assert type(last["default"].blocks[0].attn.q_norm).__name__ == "Identity"
    kappa = {
        name: float(torch.linalg.cond(last[name].blocks[0].attn.qkv.weight[:8].detach()))
        for name in ("default", "penalised")
    }
    assert kappa["penalised"] < kappa["default"] / 2, kappa
    assert not torch.equal(last["clipped"].head.weight, last["default"].head.weight)


@pytest.mark.parametrize(
    ("arm", "words"),
    [
        ("train = { steps = 3 }", "train.steps is the same for all arms"),
        ("train = { clip = -1 }", "clip"),
        ("train = { sphere = 1.0 }", "sphere is of the optimizers muon"),
        ("penalty = -1", "penalty"),
    ],
)
def test_settings_that_an_arm_cannot_have_are_told(arm: str, words: str) -> None:
    with pytest.raises(WellcondError, match=words):
        parse_recipe(f"{TINY.partition('[arms')[0]}[arms.default]\n[arms.other]\n{arm}", "my.toml")


@pytest.mark.parametrize("option", ["qk_nrom = true", "qk_norm = 3"])
def test_an_option_that_the_model_has_not_is_told_with_its_arm(option: str, tmp_path: Path) -> None:
    text = f"{TINY.partition('[arms')[0]}[arms.default]\n[arms.other]\nmodel = {{ {option} }}"
    with pytest.raises(WellcondError, match=r"arm 'other': .*qk_n"):
        prepared(write(tmp_path, text), tmp_path / "out")
