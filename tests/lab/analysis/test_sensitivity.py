"""Learning-rate sensitivity by hand, through the command line, and warnings against the loss."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats
from typer.testing import CliRunner

from tests.lab.outcomes import outcome
from tests.laboratory import TINY
from wellcond.cli.main import app
from wellcond.control.keep_sharpness import BELOW
from wellcond.lab.analysis.early_warning import turning_step
from wellcond.lab.analysis.sensitivity import Sensitivity, area, sensitivity_of
from wellcond.lab.recipe.rate_grid import grid_recipe
from wellcond.lab.recipe.recipe import Recipe, parse_recipe

RATES = (0.01, 0.02, 0.08)
ARMS = """
[arms.default]
[arms.watched]
bands = { act = false, updates = true, beta = [1e-9, 0.8] }
"""


def recipe(arms: str = ARMS) -> Recipe:
    return parse_recipe(TINY.partition("[arms")[0] + arms, "my.toml")


def found(values: dict[str, list[list[float | None]]]) -> Sensitivity:
    """Sensitivity of results by arm, seed and rate."""
    runs = [
        outcome(f"{arm} at {lr:g}", seed, value)
        for arm, seeds in values.items()
        for seed, row in enumerate(seeds)
        for lr, value in zip(RATES, row, strict=True)
    ]
    return sensitivity_of(recipe(), RATES, runs)


def test_the_area_is_an_integral_over_the_logarithm_of_the_rate() -> None:
    rng = np.random.default_rng(0)
    rates, losses = np.sort(rng.uniform(1e-4, 1, 9)), rng.normal(size=9)
    x, y = np.log10(rates), losses - losses.min()
    expected = sum((y[i] + y[i + 1]) / 2 * (x[i + 1] - x[i]) for i in range(8)) / (x[-1] - x[0])
    assert area(dict(zip(rates.tolist(), losses.tolist(), strict=True))) == pytest.approx(expected, rel=1e-12)
    assert area({1.0: 3.0, 10.0: 3.0}) == 0.0


def test_a_lost_run_counts_as_untrained_and_one_below_it_too() -> None:
    result = found({"default": [[0.9, 0.8, None], [0.9, 0.8, 0.05]], "watched": [[0.5] * 3] * 2})
    share = math.log(2) / math.log(8)  # of the first two rates
    by_hand = share * (0 + 0.1) / 2 + (1 - share) * (0.1 + 0.8) / 2
    assert result["default"].areas == pytest.approx({0: by_hand, 1: by_hand})
    assert result["default"].rates[0.08].lost == (0,)
    assert result["default"].rates[0.08].mean is None
    assert result["default"].best == 0.01
    assert result["watched"].areas == {0: 0.0, 1: 0.0}
    assert "(1)" in str(result)


def test_intervals_and_differences_are_over_seeds() -> None:
    flat = [[0.9, 0.9 - 0.01 * seed, 0.8] for seed in range(4)]
    steep = [[0.9, 0.8, 0.3 + 0.05 * seed] for seed in range(4)]
    result = found({"default": steep, "watched": flat})
    areas = list(result["default"].areas.values())
    low, high = stats.t.interval(0.95, 3, np.mean(areas), stats.sem(areas))
    assert result["default"].interval == pytest.approx((low, high))
    test = result["watched"].to_baseline
    assert test is not None
    assert test.mean == pytest.approx(np.mean(list(result["watched"].areas.values())) - np.mean(areas))
    assert "watched: area better than default" in str(result)


def test_a_perplexity_is_taken_by_its_logarithm() -> None:
    better = {"higher_is_better": False, "metric": "perplexity"}
    runs = [
        outcome(f"{arm} at {lr:g}", 0, math.exp(loss), **better, test=((0, math.exp(3.0)), (9, math.exp(loss))))
        for arm in ("default", "watched")
        for lr, loss in zip(RATES, (2.0, 1.0, 5.0), strict=True)
    ]
    result = sensitivity_of(recipe(), RATES, runs)
    assert result["default"].areas[0] == pytest.approx(area(dict(zip(RATES, (2.0, 1.0, 3.0), strict=True))))
    assert result["default"].best == 0.02


def test_a_crashed_run_leaves_its_seed_out() -> None:
    runs = [
        outcome(f"{arm} at {lr:g}", seed, 0.5) for arm in ("default", "watched") for seed in range(2) for lr in RATES
    ]
    runs[4] = replace(runs[4], status="crashed", test=())
    assert (runs[4].arm, runs[4].seed) == ("default at 0.02", 1)
    assert list(sensitivity_of(recipe(), RATES, runs)["default"].areas) == [0]


def falling(turn: int, count: int = 40) -> tuple[tuple[int, float], ...]:
    """A noisy loss that falls until an entry and rises then, if it is there."""
    rng = np.random.default_rng(turn)
    values = [3 * math.exp(-k / 10) if k < turn else 3 * math.exp(-turn / 10) + 0.1 * (k - turn) for k in range(count)]
    return tuple((10 * k, float(v + 0.02 * rng.normal())) for k, v in enumerate(values))


@pytest.mark.parametrize("turn", [10, 20, 30])
def test_the_turn_of_a_loss_is_found(turn: int) -> None:
    step = turning_step(falling(turn))
    assert step is not None
    assert abs(step - 10 * turn) <= 40  # within the entries that are averaged


@pytest.mark.parametrize("seed", range(20))
def test_a_loss_that_falls_has_no_turn(seed: int) -> None:
    rng = np.random.default_rng(seed)
    assert turning_step([(k, 3 * math.exp(-k / 10) + 0.05 * rng.normal()) for k in range(60)]) is None


def test_warnings_are_held_against_the_turn() -> None:
    def record(part: str, step: int, reason: str = "a dry run") -> dict[str, Any]:
        return {"part": part, "step": step, "reason": reason}

    logs = [
        (record("sharpness", 50, BELOW), record("sharpness", 90)),
        (record("updates", 380),),
        (),
    ]
    runs = [outcome(f"default at {lr:g}", 0, 0.5) for lr in RATES]
    runs += [
        outcome(f"watched at {lr:g}", 0, 0.5, train=falling(turn), control_log=log)
        for lr, turn, log in zip(RATES, (20, 20, 40), logs, strict=True)
    ]
    early = sensitivity_of(recipe(), RATES, runs).early_warnings
    assert [run.warned for run in early.runs] == [
        {"sharpness": 90, "updates": None},
        {"sharpness": None, "updates": 380},
        {"sharpness": None, "updates": None},
    ]
    assert [run.turned is None for run in early.runs] == [False, False, True]
    rows = str(early).splitlines()
    assert "1 of 1 @ 90" in rows[1]
    assert rows[1].split()[-1] == "1"  # 0 of 1 by updates
    assert {row["arm"] for row in early.records()} == {"watched"}


def test_a_grid_has_every_arm_and_control_at_every_rate() -> None:
    grid = grid_recipe(parse_recipe(TINY, "my.toml"), RATES, (0,), test_first=True)
    assert list(grid.arms)[:4] == ["default at 0.01", "default at 0.02", "default at 0.08", "conditioned at 0.01"]
    assert grid.arms["conditioned at 0.01"].control == ("scale",)
    assert grid.train.test_first
    assert grid.monitor is None


def test_the_command_trains_the_grid_and_writes_what_came_of_it(tmp_path: Path) -> None:
    file = tmp_path / "tiny.toml"
    file.write_text(TINY.partition("[arms")[0].replace("batch = 16", "batch = 16\nclip = inf") + ARMS)
    command = ["sensitivity", str(file), "--lr", "0.002,1e30", "--seeds", "1", "--out", str(tmp_path / "out")]
    first = CliRunner().invoke(app, command)
    assert first.exit_code == 0, first.output
    assert "loss turned" in first.output
    data = json.loads((tmp_path / "out" / "sensitivity.json").read_text())
    by_rate = data["arms"][0]["rates"]
    assert by_rate["1e+30"]["lost"] == [0]
    assert data["arms"][0]["best"] == 0.002
    untrained, trained = data["untrained"], by_rate["0.002"]["mean"]
    assert data["arms"][0]["mean"] == pytest.approx(max(trained - untrained, 0) / 2)
    assert (tmp_path / "out" / "sensitivity.png").read_bytes().startswith(b"\x89PNG")
    again = CliRunner().invoke(app, [*command, "--json"])
    assert json.loads(again.stdout) == data


@pytest.mark.parametrize("lr", ["0.1", "a,b", "0.1,-1"])
def test_a_grid_that_is_none_is_told(lr: str, tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["sensitivity", "digits", "--lr", lr, "--out", str(tmp_path / "out")])
    assert result.exit_code == 2
    assert "two learning rates" in result.output
