"""`wc.recommend` on real models: broken ones are named and mended, and nothing of the user's is touched."""

from __future__ import annotations

import copy
import json
import random
from statistics import fmean, stdev

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

import wellcond as wc
from tests.advice.models import CountedTime, broken, data, equal_states, fresh
from tests.lab.own_models import odd, of_odd
from wellcond._core.student import mean_interval
from wellcond.advice import probe as probing
from wellcond.advice.candidates import Candidate
from wellcond.advice.own_batches import OwnBatches
from wellcond.advice.trial import TrialSettings, run_trial
from wellcond.errors import WellcondError
from wellcond.inputs.objective import Objective

SCHEMES = ["conditioned", "fan_in"]


@pytest.fixture
def counted(monkeypatch):
    monkeypatch.setattr(probing.time, "perf_counter", CountedTime())


@pytest.mark.parametrize("kind", ["vit", "gpt2", "llama"])
def test_a_broken_model_is_named_and_mended(kind, counted):
    """In the first line; and what is advised learns no less than fresh models do, whose draws are apart, too."""
    model = broken(kind, "qoe")
    batches, loss = data(kind)
    found = wc.recommend(model, batches, loss=loss, lr=3e-3, seconds=1.5, schemes=SCHEMES)
    assert str(found).splitlines()[0] == "Out of line: queries and keys, output projections, the embedding."
    assert found.best.outcome == "advised"
    mended = copy.deepcopy(model)
    found.best.apply_(mended)
    settings = TrialSettings(Objective(loss), "adamw", 3e-3, OwnBatches(batches))

    def followed(one: nn.Module, seeds: tuple[int, ...] = (900, 901, 902)) -> list[dict[int, list[float]]]:
        return [run_trial(one, Candidate(), settings, seed, 40, (0, 40)) for seed in seeds]

    def drop(losses: list[dict[int, list[float]]]) -> float:
        return fmean(fmean(each[0]) - fmean(each[40]) for each in losses)

    ours, theirs = followed(mended), followed(model)
    usual = [drop(followed(fresh(kind, seed), (900 + seed,))) for seed in range(3)]
    assert drop(ours) >= fmean(usual) - 2 * stdev(usual)
    apart = mean_interval([fmean(a[40]) - fmean(b[40]) for a, b in zip(ours, theirs, strict=True)])
    assert apart[0] < 0  # it is not shown to be worse: a Llama, whose norms forgive, can learn as it is


def test_nothing_of_the_users_changes(counted):
    model = fresh("vit")
    model.blocks[1].eval()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    images, labels = (torch.stack([batch[i] for batch in data("vit")[0]]).flatten(0, 1) for i in (0, 1))
    own = torch.Generator().manual_seed(9)
    loader = DataLoader(TensorDataset(images, labels), 8, shuffle=True, generator=own)
    functional.cross_entropy(model(images[:4]), labels[:4]).backward()
    optimizer.step()
    before, state, grads = copy.deepcopy(model), copy.deepcopy(optimizer.state_dict()), [*map_grads(model)]
    modes, drawn = [m.training for m in model.modules()], own.get_state()
    generators = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state()
    found = wc.recommend(
        model, loader, loss=functional.cross_entropy, optimizer=optimizer, seconds=0.5, schemes=SCHEMES
    )
    assert found.probe.rungs
    assert equal_states(model, before)
    assert [m.training for m in model.modules()] == modes
    assert all(map(torch.equal, map_grads(model), grads))
    now = optimizer.state_dict()
    assert now["param_groups"] == state["param_groups"]
    assert all(torch.equal(now["state"][i][k], v) for i, each in state["state"].items() for k, v in each.items())
    assert torch.equal(own.get_state(), drawn)
    assert (random.getstate(), np.random.get_state()[1].tolist()) == generators[:2]
    assert torch.equal(torch.get_rng_state(), generators[2])
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())
    found.best.apply_(model)
    assert equal_states(model, before) == found.best.candidate.is_own


def map_grads(model: nn.Module):
    return (p.grad.clone() for p in model.parameters())


def test_equal_calls_give_equal_advice(counted, monkeypatch):
    def asked():
        monkeypatch.setattr(probing.time, "perf_counter", CountedTime())
        batches, loss = data("vit")
        return wc.recommend(fresh("vit"), batches, loss=loss, lr=3e-3, seconds=0.6, schemes=SCHEMES).to_dict()

    first, second = asked(), asked()
    assert first == second


def test_where_nothing_can_differ_nothing_is_advised(counted):
    """A learning rate of next to nothing: every candidate ends where it begins, apart by its draw alone."""
    batches, loss = data("vit")
    found = wc.recommend(fresh("vit"), batches, loss=loss, lr=1e-12, seconds=1.0, schemes=["normal"])
    assert found.best is found.own
    assert found.summary.startswith("Keep your weights")


def test_every_candidate_has_its_fate(counted):
    batches, loss = data("gpt2")
    found = wc.recommend(fresh("gpt2"), batches, loss=loss, seconds=0.4)
    outcomes = {one.name: one.outcome for one in found.ranking}
    assert outcomes["impulse"] == "not applicable"
    assert outcomes["xavier"] == "ruled out"
    assert "not tried" in outcomes.values()
    assert all(one.reason for one in found.ranking)
    assert {row["candidate"] for row in found.records()} == set(outcomes)
    assert found["fan_in"].candidate.citation
    with pytest.raises(WellcondError, match="no candidate 'fan'"):
        found["fan"]


def test_a_module_of_odd_names_is_drawn_for_as_any_other(counted):
    """No adapter knows its class: what it does on a batch tells its roles, for predictions, trials and the code."""
    x, y = of_odd()
    batches = list(zip(x.split(4), y.split(4), strict=True))
    torch.manual_seed(0)
    model = odd()
    found = wc.recommend(model, batches, loss=functional.mse_loss, lr=3e-3, seconds=0.5, schemes=SCHEMES)
    assert {one.outcome for one in found.ranking} <= {"advised", "keep", "finalist", "probed", "not tried"}
    tried = {name for rung in found.probe.rungs for name in rung.losses}
    assert {"yours", "conditioned", "fan_in"} <= tried
    applied, coded = copy.deepcopy(model), copy.deepcopy(model)
    found["conditioned"].apply_(applied)
    exec(found["conditioned"].code, {"wc": wc, "model": coded, "batch": batches[0][0]})
    assert equal_states(applied, coded)
    assert not equal_states(applied, model)


def test_predictions_alone_take_no_training():
    batches, loss = data("vit")
    found = wc.recommend(fresh("vit"), batches, loss=loss, seconds=0)
    assert found.best is found.own
    assert not found.probe.rungs
    assert found["fan_in"].prediction.verdict == "trainable"
    assert "0.35" in str(found)


def test_json_says_all_that_is_printed(counted, tmp_path):
    batches, loss = data("vit")
    found = wc.recommend(broken("vit", "q"), batches, loss=loss, lr=3e-3, seconds=0.6, schemes=SCHEMES)
    written = json.loads(found.to_json(tmp_path / "found.json"))
    assert json.loads((tmp_path / "found.json").read_text()) == written
    assert written["summary"] in str(found).replace("\n", " ")
    assert written["findings"][0]["what"] == "queries and keys"
    assert written["code"] == found.best.code
    assert [one["name"] for one in written["ranking"]] == [one.name for one in found.ranking]


def test_the_lines_of_code_do_what_apply_does(counted):
    """Of every candidate, on the broken model: embedding, scheme and calibration."""
    batches, loss = data("vit")
    model = broken("vit", "qe")
    found = wc.recommend(model, batches, loss=loss, seconds=0, schemes=["conditioned", "mimetic"])
    batch = batches[0][0]
    for one in found.ranking:
        applied, coded = copy.deepcopy(model), copy.deepcopy(model)
        one.apply_(applied)
        exec(one.code, {"wc": wc, "torch": torch, "model": coded, "batch": batch})
        assert all(
            torch.allclose(a, b, rtol=2e-3)
            for a, b in zip(applied.state_dict().values(), coded.state_dict().values(), strict=True)
        ), one.name
