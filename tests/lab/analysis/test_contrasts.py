"""Contrasts that were written down before the runs: what decides them, and that a page and a terminal show it."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from scipy import stats
from typer.testing import CliRunner

from tests.lab.outcomes import outcome
from tests.laboratory import TINY
from wellcond.cli.main import app
from wellcond.errors import WellcondError
from wellcond.lab.analysis.contrasts import NOT_DECIDED, REFUTED, SUPPORTED, Contrasts, contrasts_of, judge
from wellcond.lab.analysis.outcome import Outcome
from wellcond.lab.analysis.paired_test import PairedTest
from wellcond.lab.recipe.contrasts import Contrast
from wellcond.lab.recipe.recipe import parse_recipe, recipe_toml

WRITTEN = """
[[contrasts]]
question = "spectrum"
hypothesis = "Conditioned trains better than a Gaussian of its scale."
arm = "conditioned"
against = "conditioned, scale only"
claim = "better"
margin = 0.9

[[contrasts]]
question = "shift"
hypothesis = "A shift of 1 changes nothing."
arm = "shift 1"
against = "default"
claim = "alike"
margin = 0.9
"""


def contrast(arm: str, against: str, claim: Any = "better", margin: float = 0.1) -> Contrast:
    return Contrast(question=arm, hypothesis="…", arm=arm, against=against, claim=claim, margin=margin)


@pytest.mark.parametrize(
    ("claim", "interval", "p", "expected"),
    [
        ("better", (0.15, 0.25), 0.01, SUPPORTED),
        ("better", (0.05, 0.35), 0.01, SUPPORTED),  # how much is open, that it is so is not
        ("better", (0.15, 0.25), 0.06, NOT_DECIDED),
        ("better", (0.01, 0.09), 0.01, REFUTED),  # shown, and too little to matter
        ("better", (-0.3, -0.1), 0.01, REFUTED),
        ("better", (-0.3, 0.4), 0.5, NOT_DECIDED),
        ("better", (-0.3, 0.1), 0.5, NOT_DECIDED),  # the margin itself is not below it
        ("alike", (-0.09, 0.09), 0.9, SUPPORTED),
        ("alike", (0.01, 0.09), 0.001, SUPPORTED),
        ("alike", (0.0, 0.1), 0.06, NOT_DECIDED),
        ("alike", (-0.4, -0.2), 0.001, REFUTED),
        ("alike", (0.05, 0.25), 0.001, REFUTED),
        ("alike", (0.05, 0.13), 0.001, NOT_DECIDED),  # its mean is within the margin
        ("alike", (-0.4, -0.2), 0.2, NOT_DECIDED),
    ],
)
def test_what_decides(claim: str, interval: tuple[float, float], p: float, expected: str) -> None:
    test = PairedTest("a", "b", {0: 0.0, 1: 0.0}, sum(interval) / 2, 0.1, interval, p, p)
    assert judge(contrast("a", "b", claim), test) == expected


def test_without_a_pair_or_without_spread_nothing_is_decided() -> None:
    assert judge(contrast("a", "b"), PairedTest("a", "b", {})) == NOT_DECIDED
    assert judge(contrast("a", "b"), PairedTest("a", "b", {0: 0.3}, 0.3)) == NOT_DECIDED
    found = contrasts_of([contrast("a", "b")], [outcome("a", 0, None), outcome("b", 0, 0.5)])
    assert found.judged[0].lost == 1
    assert "no seed has a result in both arms" in found.judged[0].sentence


def runs(results: dict[str, list[float | None]], **changes: Any) -> list[Outcome]:
    return [outcome(arm, seed, value, **changes) for arm, own in results.items() for seed, value in enumerate(own)]


def test_differences_are_paired_and_corrected_over_all_contrasts() -> None:
    results: dict[str, list[float | None]] = {
        "a": [0.51, 0.62, 0.71, 0.84], "b": [0.50, 0.60, 0.70, 0.80], "c": [0.52, 0.59, 0.71, 0.79],
    }  # fmt: skip
    found = contrasts_of([contrast("a", "b"), contrast("c", "b", "alike")], runs(results))
    first, second = found.judged
    p = stats.ttest_rel([0.51, 0.62, 0.71, 0.84], [0.5, 0.6, 0.7, 0.8]).pvalue
    q = stats.ttest_rel([0.52, 0.59, 0.71, 0.79], [0.5, 0.6, 0.7, 0.8]).pvalue
    assert p < q
    assert first.test.p_holm == pytest.approx(2 * p)
    assert second.test.p_holm == pytest.approx(q)
    assert first.test.mean == pytest.approx(0.02)
    assert second.outcome == SUPPORTED


def test_where_a_run_was_lost_nothing_is_decided() -> None:
    results: dict[str, list[float | None]] = {"a": [0.6, 0.71, None, 0.9], "b": [0.50, 0.60, 0.70, 0.80]}
    found = contrasts_of([contrast("a", "b", margin=0.01)], runs(results))
    one = found.judged[0]
    assert (one.outcome, one.lost, list(one.test.differences)) == (NOT_DECIDED, 1, [0, 1, 3])
    assert one.sentence.endswith("1 run lost, so nothing is decided.")
    assert "lost" in str(found)


@pytest.mark.parametrize(("claim", "expected"), [("better", REFUTED), ("alike", SUPPORTED)])
def test_differences_that_are_all_equal_are_their_own_interval(claim: str, expected: str) -> None:
    results: dict[str, list[float | None]] = {"a": [0.55, 0.65, 0.75], "b": [0.5, 0.6, 0.7]}
    assert contrasts_of([contrast("a", "b", claim, 0.06)], runs(results)).judged[0].outcome == expected


def test_contrasts_are_not_written_after_the_runs(tmp_path: Path) -> None:
    file, out = tmp_path / "my.toml", tmp_path / "out"
    file.write_text((TINY + WRITTEN).replace("steps = 40", "steps = 1"))
    assert CliRunner().invoke(app, ["compare", str(file), "--out", str(out), "--seeds", "1"]).exit_code == 0
    file.write_text(file.read_text().replace("margin = 0.9", "margin = 0.1"))
    again = CliRunner().invoke(app, ["compare", str(file), "--out", str(out), "--seeds", "1"])
    assert again.exit_code == 2
    assert "another --out" in again.stderr


def test_less_of_a_perplexity_is_better_by_its_logarithm() -> None:
    worse: dict[str, list[float | None]] = {"a": [20.0, 22.0, 25.0], "b": [10.0, 11.0, 12.0]}
    better = contrasts_of([contrast("b", "a")], runs(worse, metric="perplexity", higher_is_better=False))
    assert better.metric == "log perplexity"
    assert better.judged[0].test.mean == pytest.approx((2 * math.log(2) + math.log(25 / 12)) / 3)
    assert better.judged[0].outcome == SUPPORTED


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (('arm = "shift 1"', 'arm = "shift 2"'), "contrasts: 'shift 2' is none of the arms default, conditioned"),
        (('claim = "alike"', 'claim = "same"'), "contrasts.1.claim: Input should be 'better' or 'alike', got 'same'"),
        (('arm = "shift 1"', 'arm = "default"'), "a contrast is of two arms, got 'default' twice"),
        (('claim = "alike"\nmargin = 0.9', 'claim = "alike"\nmargin = 0'), "alike within a margin: say it"),
        (("margin = 0.9", "margin = -1"), "contrasts.0.margin: Input should be greater than or equal to 0, got -1"),
        (('question = "shift"', 'question = "shift"\nseed = 1'), "contrasts.1.seed: no such key"),
    ],
)
def test_a_contrast_that_is_none_is_refused(change: tuple[str, str], words: str) -> None:
    with pytest.raises(WellcondError, match=r"my\.toml") as error:
        parse_recipe((TINY + WRITTEN).replace(*change, 1), "my.toml")
    assert words in str(error.value)


def test_a_recipe_keeps_its_contrasts() -> None:
    recipe = parse_recipe(TINY + WRITTEN, "my.toml")
    assert parse_recipe(recipe_toml(recipe), "again.toml") == recipe


def test_the_command_and_its_page_show_what_was_written_beside_what_came_of_it(tmp_path: Path) -> None:
    file, out = tmp_path / "my.toml", tmp_path / "out"
    file.write_text((TINY + WRITTEN).replace("steps = 40", "steps = 5"))
    command = ["compare", str(file), "--out", str(out)]
    shown = CliRunner().invoke(app, command)
    assert shown.exit_code == 0, shown.output
    assert "Written down before the runs" in shown.output
    assert "Conditioned trains better than a Gaussian of its scale." in shown.output
    data = json.loads(CliRunner().invoke(app, [*command, "--json"]).stdout)
    assert [one["contrast"]["question"] for one in data["contrasts"]] == ["spectrum", "shift"]
    page = (out / "report.html").read_text()
    assert page.count("A shift of 1 changes nothing.") == 2  # in the table, and in the recipe
    for one in data["contrasts"]:
        assert one["outcome"] in (SUPPORTED, REFUTED, NOT_DECIDED)
        assert f'title="{one["sentence"]}"'.replace("'", "&#39;") in page
    plain = (out / "recipe.toml").read_text().partition("[[contrasts]]")[0]
    (out / "recipe.toml").write_text(plain)
    assert CliRunner().invoke(app, ["report", str(out)]).exit_code == 0
    assert "Written down before" not in (out / "report.html").read_text()


def test_contrasts_print_as_a_table() -> None:
    results: dict[str, list[float | None]] = {"a": [0.51, 0.62, 0.73], "b": [0.5, 0.6, 0.7]}
    found: Contrasts = contrasts_of([contrast("a", "b")], runs(results))
    assert [row["outcome"] for row in found.records()] == [found.judged[0].outcome]
    assert str(found).splitlines()[2].split()[:2] == ["a", REFUTED]  # [-0.0048, 0.0448] is below 0.1
