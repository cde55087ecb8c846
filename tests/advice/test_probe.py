"""The schedule of a probe: it keeps its time, finds the best, concludes from fresh seeds, and goes on after a kill."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import wellcond as wc
from tests.advice.models import data, fresh
from wellcond.advice import probe as probing
from wellcond.advice.candidates import Candidate
from wellcond.advice.own_batches import OwnBatches
from wellcond.advice.probe import Probe
from wellcond.advice.trial import TrialSettings
from wellcond.advice.trial_records import TrialRecords, fingerprint
from wellcond.errors import StorageError, WeightError
from wellcond.inputs.objective import Objective

NAMES = ("conditioned", "fan_in", "mimetic", "centring", "orthogonal", "spectral", "xavier", "kaiming")
GOOD = {"orthogonal": 0.3, "mimetic": 0.2, "conditioned": 0.1}  # how much lower losses end


class Clock:
    """Time that passes only in trials: `setup` seconds each and `step` a step."""

    def __init__(self, setup: float, step: float, sign: float = 1.0, fails: str = "") -> None:
        self.now, self.setup, self.step, self.sign, self.fails = 0.0, setup, step, sign, fails
        self.trials: list[tuple[str, int, int]] = []

    def trial(self, model, candidate, settings, seed, steps, marks, tick):
        self.now += self.setup
        if candidate.scheme == self.fails and self.fails:
            raise WeightError("it cannot")
        for _ in range(steps):
            tick()
            self.now += self.step
        self.trials.append((candidate.name, seed, steps))
        drawn = torch.Generator().manual_seed(1000 * seed + sum(map(ord, candidate.name)))
        noise = 0.01 * float(torch.randn((), generator=drawn))
        end = 2 - self.sign * GOOD.get(candidate.scheme or "", 0.0) + noise
        return {mark: [3 + (end - 3) * mark / max(steps, 1)] for mark in marks}


def run(monkeypatch, clock: Clock, seconds: float, control=lambda one: None, records=None):
    monkeypatch.setattr(probing, "run_trial", clock.trial)
    monkeypatch.setattr(probing.time, "perf_counter", lambda: clock.now)
    candidates = [Candidate(), *map(Candidate, NAMES)]
    settings = TrialSettings(Objective(), "adamw", 1e-3, OwnBatches([(torch.zeros(1), torch.zeros(1))]))
    return Probe(nn.Linear(1, 1), candidates, settings, seconds, records or TrialRecords(None, ""), control).run()


@pytest.mark.parametrize("setup", [0.0, 0.05, 1.0])
@pytest.mark.parametrize("step", [0.001, 0.02, 0.4])
@pytest.mark.parametrize("seconds", [20.0, 60.0, 600.0])
def test_it_keeps_its_time_and_uses_it(monkeypatch, setup, step, seconds):
    clock = Clock(setup, step)
    found = run(monkeypatch, clock, seconds)
    assert clock.now <= 1.1 * seconds
    if found.last is None:
        assert "too few" in found.note
        assert seconds < 6 * 10 * (setup + 20 * step)  # of four finalists on three seeds there was no room for half
    else:
        assert len(found.last.seeds) >= 3
        assert found.last.steps >= 20
        assert clock.now >= 0.9 * seconds or found.last.steps == probing.MOST_STEPS
    if seconds > 500 * (setup + 20 * step):
        assert found.last.ranked()[0] == "orthogonal"
        assert {"yours", "orthogonal", "mimetic"} == set(found.last.losses)


def test_seeds_of_the_last_rung_have_chosen_nothing(monkeypatch):
    clock = Clock(0.01, 0.005)
    found = run(monkeypatch, clock, 60.0)
    before = {seed for rung in found.rungs for seed in rung.seeds}
    assert before.isdisjoint(found.last.seeds)
    counted = Counter((name, seed) for name, seed, steps in clock.trials if steps == found.last.steps)
    assert all(counted[name, seed] == 1 for name in found.last.losses for seed in found.last.seeds)


def test_the_control_of_the_best_is_a_finalist(monkeypatch):
    asked = []

    def control(one):
        asked.append(one.name)
        return Candidate(calibrated=True, named=f"yours at the β of {one.name}")

    found = run(monkeypatch, Clock(0.01, 0.005), 60.0, control)
    assert asked == ["orthogonal"]
    assert found.control.name in found.last.losses


def test_a_candidate_that_fails_is_told_and_the_others_go_on(monkeypatch):
    found = run(monkeypatch, Clock(0.01, 0.005, fails="orthogonal"), 60.0)
    assert found.rungs[0].failed == {"orthogonal": "WeightError: it cannot"} or "it cannot" in str(
        found.rungs[0].failed
    )
    assert found.last.ranked()[0] == "mimetic"


def test_time_that_is_too_short_is_said_with_what_would_do(monkeypatch):
    found = run(monkeypatch, Clock(1.0, 0.5), 20.0)
    assert found.last is None
    enough = float(found.note.partition("seconds=")[2].split()[0])
    assert run(monkeypatch, Clock(1.0, 0.5), enough).last is not None


class Slowing(Clock):
    """Steps that become so many times as long once their duration was measured."""

    def __init__(self, step: float, times: float) -> None:
        super().__init__(0.0, step)
        self.quick, self.slow = step, step * times

    def trial(self, *args):
        self.step = self.quick if len(self.trials) < 3 else self.slow
        return super().trial(*args)


@pytest.mark.parametrize("times", [1.5, 2.0, 3.0, 5.0])
@pytest.mark.parametrize("seconds", [10.0, 20.0, 60.0])
def test_where_the_machine_becomes_slower_finalists_are_compared_or_nothing_is_said(monkeypatch, times, seconds):
    found = run(monkeypatch, clock := Slowing(0.05, times), seconds)
    assert clock.now <= 1.1 * seconds
    if found.last is None:
        assert "too few" in found.note
    else:
        assert len(found.last.losses) >= 2  # the model's own weights beside something
        assert len(found.last.seeds) >= 3


def test_a_step_that_never_ends_is_left_at_five_per_cent_beyond(monkeypatch):
    """Steps that become ten times as long once their duration was measured."""
    clock = Slowing(0.01, 10)
    found = run(monkeypatch, clock, 30.0)
    assert clock.now <= 1.1 * 30
    assert found.seconds <= 1.1 * 30


PROGRAM = """
import sys, torch, wellcond as wc
sys.path.insert(0, sys.argv[2])
from tests.advice.models import data, fresh
batches, loss = data("vit")
r = wc.recommend(fresh("vit"), batches, loss=loss, lr=3e-3, seconds=12, out=sys.argv[1],
                 schemes=["conditioned", "fan_in", "orthogonal"])
r.to_json(sys.argv[1] + "/../found.json")
"""


@pytest.mark.long
def test_a_probe_that_is_killed_goes_on_with_the_trials_that_are_done(tmp_path):
    """`kill -9` in the middle; what was recorded is neither lost nor made again, and the rest follows the same plan."""
    folder, root = tmp_path / "probe", Path(__file__).parents[2]
    command = [sys.executable, "-c", PROGRAM, str(folder), str(root)]
    process = subprocess.Popen(command)
    lines = folder / "metrics.jsonl"
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and (not lines.exists() or len(lines.read_text().splitlines()) < 12):
        time.sleep(0.05)
    process.kill()
    process.wait()
    kept = lines.read_text().splitlines()
    assert len(kept) >= 12
    lines.write_text("\n".join([*kept[:10], kept[10][: len(kept[10]) // 2]]))  # and a line that the kill has broken
    subprocess.run(command, check=True)
    records = lines.read_text().splitlines()
    assert records[:10] == kept[:10]
    keys = [json.loads(line)["key"] for line in records]
    assert len(keys) == len(set(keys))
    found = json.loads((tmp_path / "found.json").read_text())
    assert sum(json.loads(line).get("seconds", 0) for line in records) <= 1.2 * 12
    assert found["probe"]["last"]["seeds"]
    again = {tuple(json.loads(line)["key"]): line for line in records[10:]}
    same = [
        key
        for line in kept[10:]
        if (key := tuple(json.loads(line)["key"])) in again and "trial" in json.loads(line)["key"]
    ]
    for line in kept[10:]:
        key = tuple(json.loads(line)["key"])
        if key in same:
            assert json.loads(line)["losses"] == json.loads(again[key])["losses"]


@pytest.mark.parametrize("seconds", [10.0, 20.0, 60.0])
def test_a_probe_that_is_done_says_the_same_when_it_is_asked_again(monkeypatch, tmp_path, seconds):
    with TrialRecords(tmp_path / "probe", "") as records:
        first = run(monkeypatch, Clock(0.01, 0.05), seconds, records=records)
    with TrialRecords(tmp_path / "probe", "") as records:
        again = run(monkeypatch, clock := Clock(0.01, 0.05), seconds, records=records)
    assert not clock.trials
    assert (again.rungs, again.last, again.note) == (first.rungs, first.last, first.note)
    assert first.rungs


def test_time_outside_of_trials_does_not_make_another_seed_when_it_is_asked_again(monkeypatch, tmp_path):
    def slow(one):
        clock.now += 4.0

    clock = Clock(0.01, 0.05)
    with TrialRecords(tmp_path / "probe", "") as records:
        first = run(monkeypatch, clock, 60.0, control=slow, records=records)
    with TrialRecords(tmp_path / "probe", "") as records:
        again = run(monkeypatch, clock := Clock(0.01, 0.05), 60.0, records=records)
    assert (again.last, clock.trials) == (first.last, [])


class Diverging(Clock):
    """Trials of which only some candidates' end with a number."""

    def __init__(self, *finite: str) -> None:
        super().__init__(0.01, 0.005)
        self.finite = finite

    def trial(self, model, candidate, *args):
        found = super().trial(model, candidate, *args)
        return found if candidate.name in self.finite else {mark: [float("inf")] for mark in found}


def test_where_all_diverge_the_time_is_not_blamed(monkeypatch):
    found = run(monkeypatch, Diverging(), 60.0)
    assert (found.last, found.diverged) == (None, True)
    assert "learning rate" in found.note
    alone = run(monkeypatch, Diverging("yours"), 60.0)
    assert (set(alone.last.losses), alone.diverged, alone.note) == ({"yours"}, False, "")


def test_a_learning_rate_at_which_all_diverge_is_named():
    batches, loss = data("vit")
    found = wc.recommend(fresh("vit"), batches, loss=loss, optimizer="sgd", lr=1e30, seconds=4, schemes=["fan_in"])
    assert str(found).startswith("Nothing is advised: every candidate diverged, your own weights too.")
    assert "lower the learning rate" in str(found)
    assert found.to_html()


def test_a_probe_that_was_stopped_ends_as_one_that_was_not(monkeypatch, tmp_path):
    whole = run(monkeypatch, Clock(0.01, 0.005), 60.0)
    clock = Clock(0.01, 0.005)
    trial = clock.trial

    def stopping(*args):
        if len(clock.trials) == 20:
            raise KeyboardInterrupt
        return trial(*args)

    clock.trial = stopping
    with pytest.raises(KeyboardInterrupt), TrialRecords(tmp_path / "probe", "a") as records:
        run(monkeypatch, clock, 60.0, records=records)
    resumed = Clock(0.01, 0.005)
    with TrialRecords(tmp_path / "probe", "a") as records:
        found = run(monkeypatch, resumed, 60.0, records=records)
    assert not set(resumed.trials) & set(clock.trials[3:])  # but for the timing of a step
    assert found.rungs == whole.rungs
    assert found.last.steps == whole.last.steps
    assert found.last.losses["orthogonal"][200] == whole.last.losses["orthogonal"][200]


class Scaled(nn.Module):
    """A model with a number that its repr does not show."""

    def __init__(self, size: float = 1.0) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.size, self.layer = size, nn.Linear(2, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.size * self.layer(x)


def dropping(share: float) -> nn.Module:
    return nn.Sequential(Scaled(), nn.Dropout(share))


X = torch.ones(2, 2)
ASKED = {
    "model": lambda: Scaled(),
    "batches": lambda: [(X, 3)],
    "loss": lambda: Objective(lambda output, target: 5 * nn.functional.mse_loss(output, target)),
    "optimizer": lambda: lambda parameters: torch.optim.SGD(parameters, lr=1e-3),
}
OTHERS = {
    "a number of the model": {"model": lambda: Scaled(2.0)},
    "another forward": {"model": lambda: dropping(0.1)},
    "a target that is no tensor": {"batches": lambda: [(X, 4)]},
    "an array": {"batches": lambda: [(X, np.ones(2))]},
    "the body of a loss": {"loss": lambda: Objective(lambda output, target: nn.functional.l1_loss(output, target))},
    "a loss with numbers": {"loss": lambda: Objective(Weighted(1.0))},
    "weights of classes": {"loss": lambda: Objective(nn.CrossEntropyLoss(weight=torch.ones(2)))},
    "the body of a function": {"optimizer": lambda: lambda parameters: torch.optim.Adam(parameters, lr=1e-2)},
    "settings of an optimizer": {"optimizer": lambda: torch.optim.SGD(Scaled().parameters(), lr=1e-2, momentum=0.9)},
}


@dataclass
class Weighted:
    """A loss that is an object."""

    by: float

    def __call__(self, output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return self.by * nn.functional.mse_loss(output, target)


def print_of(asked: dict[str, Callable[[], Any]]) -> str:
    model, batches, *settings = (make() for make in asked.values())
    return fingerprint(model, batches, *settings)


def test_what_is_asked_again_has_the_fingerprint_that_it_had():
    for changes in ({}, *OTHERS.values()):
        assert print_of(ASKED | changes) == print_of(ASKED | changes)


def test_another_question_has_another_fingerprint():
    """So that a folder does not answer with the trials of another loss, model, optimizer or batch."""
    others = {name: print_of(ASKED | changes) for name, changes in OTHERS.items()}
    others |= {"other dropout": print_of(ASKED | {"model": lambda: dropping(0.9)})}
    others |= {"other numbers of a loss": print_of(ASKED | {"loss": lambda: Objective(Weighted(2.0))})}
    others |= {"other arrays": print_of(ASKED | {"batches": lambda: [(X, np.zeros(2))]})}
    other = {"loss": lambda: Objective(nn.CrossEntropyLoss(weight=torch.zeros(2)))}
    others |= {"other weights of classes": print_of(ASKED | other)}
    assert len({print_of(ASKED), *others.values()}) == len(others) + 1


def test_a_folder_of_another_probe_is_refused(tmp_path):
    TrialRecords(tmp_path / "one", "a").__exit__(None, None, None)
    with pytest.raises(StorageError, match="another model"):
        TrialRecords(tmp_path / "one", "b")
    (tmp_path / "two").mkdir()
    (tmp_path / "two" / "thesis.tex").write_text("")
    with pytest.raises(StorageError, match="not empty"):
        TrialRecords(tmp_path / "two", "a")
