"""Evidence of a recipe, gathered for real: trained, asked, kept, and not made again."""

from __future__ import annotations

import json

import pytest

from tests.advice.models import CountedTime
from wellcond.advice import probe as probing
from wellcond.errors import StorageError, WellcondError
from wellcond.lab.api import Engine
from wellcond.lab.evidence.api import gather_evidence
from wellcond.lab.evidence.candidate_arms import arm_of, evidence_recipe
from wellcond.lab.recipe.recipe import load_recipe
from wellcond.lab.training import train as training

SMALL = {"model": {"width": 16, "depth": 1, "heads": 2}, "train": {"steps": 12, "test_every": 12}}


def test_a_recipes_candidates_are_trained_and_advice_is_asked_once(tmp_path, monkeypatch):
    monkeypatch.setattr(probing.time, "perf_counter", CountedTime())

    def gathered():
        recipe = load_recipe("digits", **SMALL)
        return gather_evidence(
            recipe, "digits", tmp_path, Engine(), seconds=0.4, schemes=["conditioned", "fan_in"], seeds=(0, 1)
        )

    found = gathered()
    assert set(found.results) >= {"yours", "yours + calibrated", "conditioned", "conditioned + calibrated", "fan_in"}
    assert len(found.advised) == 2
    assert all(arm_of(name) in found.results for name in found.advised)
    assert {one.name for one in found.regrets} == {"recommended", "always yours", "always conditioned"}
    assert json.loads((tmp_path / "evidence.json").read_text())["advised"] == list(found.advised)
    probe = found.correlations[0]
    assert probe.name == "lower probe loss"
    assert all(-1 <= value <= 1 for value in probe.by_seed)

    def again(*_):
        raise AssertionError("trained again")

    monkeypatch.setattr(training, "train", again)
    monkeypatch.setattr("wellcond.recommend", again)
    assert gathered() == found


def test_advice_of_other_settings_is_refused(tmp_path):
    folder = tmp_path / "advice" / "seed-0"
    folder.mkdir(parents=True)
    (folder / "recommendation.json").write_text('{"asked": {"seconds": 1, "schemes": []}}')
    with pytest.raises(StorageError, match="holds advice of"):
        gather_evidence(load_recipe("digits", **SMALL), "digits", tmp_path, Engine(), seconds=2.0, seeds=(0,))


def test_schemes_that_do_not_apply_are_left_out_and_detection_is_refused():
    assert "admin" not in evidence_recipe(load_recipe("digits"), ["admin", "fan_in"]).arms
    with pytest.raises(WellcondError, match="no loss that a short training could judge by"):
        evidence_recipe(load_recipe("shapes"))


def test_the_control_of_what_was_advised_is_an_arm():
    recipe = evidence_recipe(load_recipe("digits"), ["fan_in"], advised=["yours at the β and g of fan_in"])
    assert recipe.arms["fan_in"].control == ("calibrated",)
