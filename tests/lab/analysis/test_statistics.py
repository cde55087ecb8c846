"""A comparison's statistics against hand-computed examples, textbook data, exact enumeration and simulation."""

from __future__ import annotations

import json
import math
import random
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain, combinations, combinations_with_replacement
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from wellcond._core.json_safe import to_json
from wellcond._core.student import holm
from wellcond.errors import WellcondError
from wellcond.lab.analysis.outcome import Outcome
from wellcond.lab.analysis.paired_test import PairedTest, interval, paired_test
from wellcond.lab.analysis.paragraph import plain_words
from wellcond.lab.analysis.statistics import Comparison, compare_outcomes, first_step_as_good
from wellcond.lab.analysis.summary import comparison_table, table_text
from wellcond.lab.analysis.verdicts import attribution, confirmed, verdict

SE = 4  # standard errors a seeded Monte-Carlo frequency may be off
SLEEP = [1.2, 2.4, 1.3, 1.3, 0.0, 1.0, 1.8, 0.8, 4.6, 1.4]  # Student (Biometrika 6, 1908), extra hours of sleep


@pytest.fixture(autouse=True)
def _no_warnings() -> Iterator[None]:
    """Degenerate numbers are met before scipy and numpy warn of them."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


def run(arm: str, seed: int, result: float | None = 0.5, **changed: Any) -> Outcome:
    fields: dict[str, Any] = {
        "arm": arm,
        "control_of": None,
        "seed": seed,
        "status": "finished",
        "error": "",
        "metric": "accuracy",
        "higher_is_better": True,
        "steps": 100,
        "train": (),
        "test": () if result is None else ((100, result),),
        "monitor": (),
        "seconds": 10.0,
        "start": {},
    }
    return Outcome(**(fields | changed))


def runs(results: Mapping[str, Sequence[float | None]], **changed: Any) -> list[Outcome]:
    return [run(name, seed, value, **changed) for name, own in results.items() for seed, value in enumerate(own)]


def shown(comparison: Comparison) -> dict[str, Any]:
    """What every comparison must survive: JSON without NaN or infinity, words, a table of the width."""
    text = to_json(comparison.to_dict())
    for word in ("nan", "inf", "None"):
        assert f'"{word}"' not in text
    assert plain_words(comparison).endswith(".")
    for width in (60, 100):
        assert max(map(len, table_text(comparison, width).splitlines())) <= width
    data: dict[str, Any] = json.loads(text)
    return data


def against(values: Sequence[float], name: str = "default", p_holm: float | None = 0.01) -> PairedTest:
    """Differences that are given, seeds from 0."""
    found = paired_test("arm", dict(enumerate(values)), name, dict.fromkeys(range(len(values)), 0.0))
    return PairedTest(**(vars(found) | {"p_holm": p_holm}))


# ------------------------------------------------------------------------------------------------ paired differences


def test_students_sleep_data_have_their_published_t_test() -> None:
    found = compare_outcomes(runs({"default": [0.0] * 10, "drug": SLEEP}))["drug"].to_baseline
    assert found is not None
    assert found.mean == pytest.approx(1.58)
    assert found.p == found.p_holm == pytest.approx(0.00283289, rel=1e-6)  # R: t.test(extra ~ group, paired = TRUE)
    assert found.effect_size == pytest.approx(4.06212768 / math.sqrt(10), rel=1e-8)


def test_three_pairs_by_hand() -> None:
    record = compare_outcomes(runs({"default": [0.50, 0.60, 0.70], "a": [0.55, 0.61, 0.79]}))["a"]
    found = record.to_baseline
    assert found is not None
    assert list(found.differences.values()) == pytest.approx([0.05, 0.01, 0.09])
    assert (record.mean, record.sd) == pytest.approx((0.65, math.sqrt((0.1**2 + 0.04**2 + 0.14**2) / 2)))
    assert (found.mean, found.sd, found.effect_size) == pytest.approx((0.05, 0.04, 1.25))
    half = 4.302652730 * 0.04 / math.sqrt(3)  # t of two degrees of freedom, from a table
    assert found.interval == pytest.approx((0.05 - half, 0.05 + half))
    t = 0.05 / (0.04 / math.sqrt(3))
    assert found.p == pytest.approx(1 - t / math.sqrt(2 + t * t))  # closed form of two degrees of freedom


@pytest.mark.parametrize("count", [2, 5, 7, 8, 12])
def test_the_numbers_agree_with_a_one_sample_test(count: int) -> None:
    rng = np.random.default_rng(count)
    default, arm = rng.normal(0.7, 0.1, count), rng.normal(0.75, 0.1, count)
    found = compare_outcomes(runs({"default": default.tolist(), "a": arm.tolist()}))["a"].to_baseline
    assert found is not None
    test = stats.ttest_1samp(arm - default, 0)
    assert found.p == pytest.approx(test.pvalue)
    assert found.effect_size == pytest.approx(test.statistic / math.sqrt(count))
    if count < 8:
        assert found.interval is not None
        assert found.interval == pytest.approx(tuple(test.confidence_interval(0.95)))
        assert (test.pvalue < 0.05) == (not found.interval[0] <= 0 <= found.interval[1])


def test_eight_pairs_have_the_quantiles_of_the_exact_bootstrap_distribution() -> None:
    values = [0.3, -0.1, 0.5, 0.2, 0.9, 0.1, 0.25, 0.4]
    draws = list(combinations_with_replacement(range(8), 8))  # all 6435, with their multinomial weights
    counts = [[draw.count(i) for i in range(8)] for draw in draws]
    weights = np.array([math.factorial(8) / math.prod(map(math.factorial, c)) for c in counts]) / 8**8
    means = np.array(counts) @ np.array(values) / 8
    assert weights.sum() == pytest.approx(1)
    tail = 0.5 * math.erfc(math.sqrt(8 / 7) * 2.364624252 / math.sqrt(2))  # t of seven degrees of freedom
    low, high = interval(values)
    error = SE * math.sqrt(tail * (1 - tail) / 9999)
    for within in (means < low, means > high):
        assert weights[within].sum() <= tail + error
    for within in (means <= low + 1e-9, means >= high - 1e-9):
        assert weights[within].sum() >= tail - error


@pytest.mark.parametrize(("count", "simulations"), [(3, 2000), (5, 2000), (8, 800), (20, 300)])
def test_the_interval_holds_the_truth_as_often_as_it_says(count: int, simulations: int) -> None:
    rng = np.random.default_rng(count)
    ends = [interval(values) for values in rng.normal(0.3, 2.0, (simulations, count)).tolist()]
    covered = sum(low <= 0.3 <= high for low, high in ends) / simulations
    assert covered == pytest.approx(0.95, abs=SE * math.sqrt(0.95 * 0.05 / simulations))


def test_the_plain_percentile_bootstrap_would_not() -> None:
    """Why the level is expanded: the same judgement refuses scipy's default for eight values."""
    values = np.random.default_rng(8).normal(size=(1500, 8))
    found = stats.bootstrap((values,), np.mean, axis=1, method="percentile", n_resamples=499, rng=1)
    covered = np.mean((found.confidence_interval.low <= 0) & (found.confidence_interval.high >= 0))
    assert covered < 0.95 - SE * math.sqrt(0.95 * 0.05 / 1500)


def test_chance_alone_is_rarely_called_a_difference_among_five_arms() -> None:
    rng, comparisons = np.random.default_rng(0), 200
    wrong = 0
    for _ in range(comparisons):
        table = {name: rng.normal(size=4).tolist() for name in ("default", "a", "b", "c", "d", "e")}
        pairs = [record.to_baseline for record in compare_outcomes(runs(table)).arms if record.to_baseline]
        wrong += any(confirmed(pair) and verdict(pair, True).kind in ("better", "worse") for pair in pairs)
    assert wrong / comparisons <= 0.05 + SE * math.sqrt(0.05 * 0.95 / comparisons)


# ------------------------------------------------------------------------------------------------ Holm


def test_holm_by_hand() -> None:
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.5, 0.6]) == [1.0, 1.0]
    assert holm([0.02, None]) == [0.04, None]
    assert holm([]) == []


@given(st.lists(st.floats(0, 1), min_size=1, max_size=6))
def test_holm_is_the_closed_test_of_bonferroni(p_values: list[float]) -> None:
    indices = range(len(p_values))
    subsets = list(chain.from_iterable(combinations(indices, k) for k in range(1, len(p_values) + 1)))
    bonferroni = {s: min(1.0, len(s) * min(p_values[i] for i in s)) for s in subsets}
    assert holm(p_values) == pytest.approx([max(p for s, p in bonferroni.items() if i in s) for i in indices])


def test_all_schemes_but_the_baseline_are_one_family_and_all_controls_another() -> None:
    rng = np.random.default_rng(5)
    table = {name: rng.normal(size=5).tolist() for name in ("default", "a", "b", "c")}
    outcomes = [run(o.arm, o.seed, o.result, control_of="a" if o.arm == "b" else None) for o in runs(table)]
    comparison = compare_outcomes(outcomes)
    raw = [stats.ttest_rel(table[name], table["default"]).pvalue for name in "abc"]
    assert [r.to_baseline.p_holm for r in comparison.arms if r.to_baseline] == pytest.approx(holm(raw))
    (control,) = comparison["a"].to_controls
    assert (control.arm, control.against) == ("a", "b")
    assert control.p_holm == control.p == pytest.approx(stats.ttest_rel(table["a"], table["b"]).pvalue)


# ------------------------------------------------------------------------------------------------ training


def curve(arm: str, seed: int, values: Sequence[float], **changed: Any) -> Outcome:
    return run(arm, seed, None, test=tuple((10 * i, v) for i, v in enumerate(values, start=1)), **changed)


def test_steps_are_to_the_same_seeds_final_result() -> None:
    outcomes = [curve("default", seed, [0.1, 0.2, end]) for seed, end in enumerate([0.3, 0.5, 0.7])]
    outcomes += [curve("a", 0, [0.3, 0.6, 0.6]), curve("a", 1, [0.3, 0.6, 0.4]), curve("a", 2, [0.3, 0.6, 0.69])]
    comparison = compare_outcomes(outcomes)
    assert comparison["a"].steps_to_reach == {0: 10, 1: 20, 2: None}
    assert (comparison["a"].median_steps, comparison["a"].reached) == (20, 2)
    assert comparison["default"].steps_to_reach == {0: 30, 1: 30, 2: 30}


def test_a_median_step_that_is_never_is_none() -> None:
    outcomes = [curve("default", seed, [0.5]) for seed in range(4)]
    outcomes += [curve("a", seed, [0.5 if seed < 2 else 0.4]) for seed in range(4)]
    assert (compare_outcomes(outcomes)["a"].median_steps, compare_outcomes(outcomes)["a"].reached) == (None, 2)


def test_a_lower_perplexity_is_reached_from_above() -> None:
    falling = curve("a", 0, [math.inf, math.nan, 30.0, 20.0], higher_is_better=False)
    assert [first_step_as_good(falling, target) for target in (40.0, 30.0, 29.9, 1.0)] == [30, 30, 40, None]


def test_times_are_ratios_by_seed() -> None:
    outcomes = [run("default", seed, seconds=s) for seed, s in enumerate([10.0, 20.0, 40.0, 0.0])]
    outcomes += [run("a", seed, seconds=s) for seed, s in enumerate([11.0, 60.0, 48.0, 5.0])]
    assert compare_outcomes(outcomes)["a"].time_ratio == pytest.approx(1.2)  # of 1.1, 3, 1.2; the fourth has no ratio


def test_monitored_quantities_are_means_of_the_first_and_last_values() -> None:
    def monitored(seed: int, *records: dict[str, Any]) -> Outcome:
        return run("default", seed, monitor=tuple({"kind": "monitor"} | record for record in records))

    outcomes = [
        monitored(0, {"step": 90, "entropy": 1.0, "kappa_jacobian": "inf"}, {"step": 5, "entropy": 3.0}),
        monitored(1, {"step": 5, "kappa_jacobian": 8.0}, {"step": 5, "entropy": 4.0}, {"step": 90, "entropy": 2.0}),
        run("default", 2, status="diverged", monitor=({"step": 5, "entropy": 99.0},)),
    ]
    comparison = compare_outcomes(outcomes)
    assert comparison["default"].monitored == {"entropy": (3.5, 1.5), "kappa_jacobian": (None, None)}
    assert "3.5 → 1.5" in table_text(comparison)
    assert "— → —" in table_text(comparison)
    shown(comparison)


# ------------------------------------------------------------------------------------------------ degenerate cases


def test_one_and_two_seeds_have_numbers_but_no_rank() -> None:
    one = compare_outcomes(runs({"default": [0.5], "a": [0.9]}))
    found = one["a"].to_baseline
    assert found is not None
    assert (found.mean, found.sd, found.interval, found.p, found.effect_size) == (pytest.approx(0.4), *[None] * 4)
    assert "three seeds or more are needed to rank; there is 1" in plain_words(one)
    two = compare_outcomes(runs({"default": [0.5, 0.6], "a": [0.9, 0.95], "b": [0.1, 0.2]}))
    assert two["a"].to_baseline.p is not None  # type: ignore[union-attr]
    expected = "Against default, a and b are not ranked: three seeds or more are needed to rank; there are 2."
    assert plain_words(two) == expected
    shown(one)
    shown(two)


def test_equal_results_and_equal_differences_have_no_interval() -> None:
    results = [0.1, 0.2, 0.3, 0.7]
    comparison = compare_outcomes(runs({"default": results, "a": results, "b": [r + 0.1 for r in results]}))
    same, constant = comparison["a"].to_baseline, comparison["b"].to_baseline
    assert same is not None
    assert constant is not None
    assert (same.mean, same.sd, same.interval, same.p, same.p_holm, same.effect_size) == (0, 0, *[None] * 4)
    assert (constant.sd, constant.interval, constant.p) == (0, None, None)  # though 0.3 + 0.1 − 0.3 ≠ 0.1 exactly
    assert str(verdict(same, True)) == "no difference to default shown: equal results in all 4 seeds"
    assert verdict(constant, True).kind == "not ranked"
    assert "the difference is +0.1 in all 4 seeds" in plain_words(comparison)
    shown(comparison)


def test_only_seeds_finished_in_both_are_paired() -> None:
    outcomes = [run("default", seed, seed / 10) for seed in (3, 1, 2, 5)]
    outcomes += [run("a", seed, seed / 10 + 0.1 * seed**2) for seed in (1, 3, 5, 7)]
    outcomes += [run("a", 2, 0.9, status="diverged"), run("a", 9, 0.9, status="crashed"), run("a", 8, status="running")]
    record = compare_outcomes(outcomes)["a"]
    assert record.to_baseline is not None
    assert record.to_baseline.differences == pytest.approx({1: 0.1, 3: 0.9, 5: 2.5})
    assert record.runs == {"finished": 4, "diverged": 1, "crashed": 1, "running": 1}
    assert list(record.results) == [1, 3, 5, 7]
    lost = "Of the 7 runs of a, 1 diverged, 1 crashed and 1 did not run to the end"
    assert f"{lost}; its numbers are of the others only." in plain_words(compare_outcomes(outcomes))
    assert "1/7, 1 crashed" in table_text(compare_outcomes(outcomes))


@pytest.mark.parametrize("result", [math.nan, math.inf, -math.inf, None])
def test_a_result_that_is_no_number_is_none(result: float | None) -> None:
    comparison = compare_outcomes(runs({"default": [0.5, 0.6, 0.7, 0.8], "a": [0.6, 0.65, 0.9, result]}))
    assert comparison["a"].runs["without result"] == 1
    assert len(comparison["a"].results) == 3
    assert "Of the 4 runs of a, 1 ended without a finite result;" in plain_words(comparison)
    shown(comparison)


@pytest.mark.parametrize("lost", [["default"], ["a"], ["default", "a"]])
def test_everything_diverged(lost: list[str]) -> None:
    outcomes = [
        run(name, seed, 0.1 * seed, status="diverged" if name in lost else "finished")
        for name in ("default", "a")
        for seed in range(3)
    ]
    comparison = compare_outcomes(outcomes)
    found, data = comparison["a"].to_baseline, shown(comparison)
    assert found == PairedTest("a", "default", {})
    assert comparison["a"].time_ratio is comparison["a"].median_steps is None
    assert data["arms"][1]["to_baseline"]["mean"] is None
    words = plain_words(comparison)
    assert words.startswith("Against default, a is not ranked: three seeds or more are needed to rank; none finished")
    assert all(f"All 3 runs of {name} diverged." in words for name in lost)


def test_the_baseline_alone_and_single_lost_runs() -> None:
    comparison = compare_outcomes([run("default", 0, None, status="diverged")])
    expected = "Only default was run: there is nothing to compare it with. The only run of default diverged."
    assert plain_words(comparison) == expected
    shown(comparison)


def test_numbers_too_large_to_square() -> None:
    comparison = compare_outcomes(runs({"default": [1.0, 2.0, 4.0], "a": [1e200, 2e250, 1e307]}, metric="perplexity"))
    assert verdict(comparison["a"].to_baseline, True).kind == "not ranked"  # type: ignore[arg-type]
    shown(comparison)


def test_runs_that_are_no_comparison_are_refused() -> None:
    with pytest.raises(WellcondError, match="'default' has no run to compare with; name one of a"):
        compare_outcomes([run("a", 0)])
    with pytest.raises(WellcondError, match="no arms"):
        compare_outcomes([])
    with pytest.raises(WellcondError, match="two runs with seed 0"):
        compare_outcomes([run("default", 0), run("default", 0)])
    with pytest.raises(WellcondError, match="different things"):
        compare_outcomes([run("default", 0), run("a", 0, metric="perplexity")])
    with pytest.raises(WellcondError, match="no arm 'b'; there are default"):
        compare_outcomes([run("default", 0)])["b"]


# ------------------------------------------------------------------------------------------------ invariances

results = st.one_of(st.none(), st.sampled_from([0.0, 0.25, 0.5, 1.0]), st.floats(-1e6, 1e6), st.just(math.nan))
tables = st.integers(1, 10).flatmap(
    lambda seeds: st.fixed_dictionaries(
        {name: st.lists(results, min_size=seeds, max_size=seeds) for name in ("default", "a", "b")}
    )
)


@settings(max_examples=40)
@given(tables, st.randoms(use_true_random=False))
def test_the_order_of_runs_changes_only_the_order_of_arms(
    table: dict[str, list[float | None]], shuffler: random.Random
) -> None:
    outcomes = runs(table)
    mixed = shuffler.sample(outcomes, len(outcomes))
    first, second = compare_outcomes(outcomes), compare_outcomes(mixed)
    assert [record.arm for record in second.arms] == list(dict.fromkeys(o.arm for o in mixed))
    for name in table:
        assert first[name] == second[name]
    shown(first)


@settings(max_examples=40)
@given(tables)
def test_the_negated_metric_with_lower_is_better_has_the_same_verdicts(table: dict[str, list[float | None]]) -> None:
    negated = {name: [None if v is None else -v for v in own] for name, own in table.items()}
    up, down = compare_outcomes(runs(table)), compare_outcomes(runs(negated, higher_is_better=False))
    for name in ("a", "b"):
        plus, minus = up[name].to_baseline, down[name].to_baseline
        assert plus is not None
        assert minus is not None
        assert verdict(plus, True).kind == verdict(minus, False).kind
        assert minus.p == (None if plus.p is None else pytest.approx(plus.p))
        if plus.interval is not None and minus.interval is not None:
            scale = max(map(abs, plus.interval))
            assert minus.interval == pytest.approx((-plus.interval[1], -plus.interval[0]), abs=1e-9 * scale)
        assert up[name].steps_to_reach == down[name].steps_to_reach
    assert plain_words(up).replace("+", "-") == plain_words(down).replace("+", "-")


@settings(max_examples=40)
@given(tables)
def test_exchanging_scheme_and_baseline_negates_the_difference(table: dict[str, list[float | None]]) -> None:
    there, back = (
        compare_outcomes(runs(table))["a"].to_baseline,
        compare_outcomes(runs(table), baseline="a")["default"].to_baseline,
    )
    assert there is not None
    assert back is not None
    assert {seed: -d for seed, d in back.differences.items()} == there.differences
    assert (back.sd, back.p is None) == (there.sd, there.p is None)
    opposite = {"better": "worse", "worse": "better"}
    assert verdict(there, True).kind == opposite.get(verdict(back, True).kind, verdict(back, True).kind)


# ------------------------------------------------------------------------------------------------ words

UP, DOWN, NONE = [0.09, 0.1, 0.11], [-0.09, -0.1, -0.11], [-0.1, 0.0, 0.1]


def controlled(gain: Sequence[float], *, higher: bool = True, **more: Sequence[float]) -> Comparison:
    """An arm that is `gain` better than the baseline, and as much better than its controls as is given for each."""
    base, sign = [20.0, 21.0, 22.5], 1 if higher else -1
    found = runs({"default": base, "arm": [b + sign * g for b, g in zip(base, gain, strict=True)]})
    for kind, ahead in more.items():
        own = [b + sign * (g - m) for b, g, m in zip(base, gain, ahead, strict=False)]
        found += runs({f"arm, {kind}": own}, control_of="arm", control=kind)
    return compare_outcomes([replace(one, higher_is_better=higher) for one in found])


@pytest.mark.parametrize(
    ("gain", "more", "kind", "text"),
    [
        (UP, {"scale": NONE}, "explained by scale", "the gain is explained by scale, as far as can be seen: no diff"),
        (UP, {"scale": DOWN}, "explained by scale", "seen: its control arm, scale is better than it"),
        (UP, {"scale": NONE, "rotation": UP}, "explained by scale", "to its control arm, scale is shown with 3 seeds"),
        (UP, {"rotation": NONE, "scale": UP}, "explained by spectrum", "to its control arm, rotation is shown with 3"),
        (UP, {"scale": UP, "rotation": DOWN}, "explained by spectrum", "control arm, rotation is better than it"),
        (UP, {"scale": UP, "rotation": UP}, "beyond both", "it is better than arm, scale and arm, rotation as well"),
        (UP, {"scale": UP, "calibrated": NONE, "rotation": UP}, "explained by scale", "no difference to its control"),
        (UP, {"calibrated": UP, "rotation": UP}, "beyond both", "better than arm, calibrated and arm, rotation"),
        (UP, {"scale": UP, "rotation": UP, "sign": NONE}, "beyond both", "the gain goes beyond scale and spectrum: "),
        (NONE, {"scale": UP, "rotation": UP}, "not shown", "no gain over default is shown"),
        (DOWN, {"scale": NONE}, "not shown", "no gain over default is shown"),
        (UP, {"scale": UP}, "beyond scale, no control of its spectrum", "as well; there is no control of its spectrum"),
        (
            UP,
            {"scale": UP, "sign": UP},
            "beyond scale, no control of its spectrum",
            "the gain goes beyond scale: it is",
        ),
        (UP, {"rotation": UP}, "no control of its scale", "what the gain is due to is not known: there is no control"),
        (UP, {"sign": NONE}, "no control of its scale", "there is no control of its scale"),
        (UP, {"scale": UP[:2]}, "not ranked", "it is not ranked against its control arm, scale: three seeds or more"),
        (
            UP,
            {"scale": UP, "rotation": [0.1] * 3},
            "not ranked",
            "its control arm, rotation: the difference is +0.1 in",
        ),
    ],
)
def test_controls_tell_what_a_gain_is_due_to(
    gain: Sequence[float], more: dict[str, Sequence[float]], kind: str, text: str
) -> None:
    for higher in (True, False):
        comparison = controlled(gain, higher=higher, **more)
        said = attribution(comparison["arm"], comparison)
        assert said is not None
        assert said.kind == kind
        if higher:
            assert text in said.text
        assert kind in [row[names.index("gain")] for names, *rows in [table_of(comparison)] for row in rows]
        assert f"For arm, {said.text}." in plain_words(comparison)


def table_of(comparison: Comparison) -> list[list[str]]:
    whole = comparison_table(comparison)
    return [list(whole.header), *map(list, whole.rows)]


def test_each_control_has_its_line() -> None:
    comparison = controlled(UP, scale=NONE, rotation=UP, sign=DOWN)
    lines = " ".join(table_text(comparison, 200).split())
    assert "arm: no difference to arm, scale shown: " in lines
    assert "arm: better than arm, rotation: +0.1 [+0.0752, +0.125], 3 seeds" in lines
    assert "arm: worse than arm, sign: -0.1 [-0.125, -0.0752], 3 seeds" in lines
    assert attribution(comparison["default"], comparison) is None
    assert attribution(comparison["arm, scale"], comparison) is None
    assert [record.control for record in comparison.arms] == [None, None, "scale", "rotation", "sign"]


def test_without_controls_there_is_no_column_for_gains() -> None:
    assert "gain" not in table_of(controlled(UP))[0]


def unconfirmed(comparison: Comparison, *against: str) -> Comparison:
    """The same comparison, its arm's tests against some not confirmed by the corrected p-value."""

    def weaker(pair: PairedTest) -> PairedTest:
        return replace(pair, p_holm=0.06) if pair.against in against else pair

    arms = [
        replace(
            record,
            to_baseline=record.to_baseline and weaker(record.to_baseline),
            to_controls=tuple(map(weaker, record.to_controls)),
        )
        for record in comparison.arms
    ]
    return replace(comparison, arms=tuple(arms))


def test_what_the_correction_undoes_is_said_of_a_gain_too() -> None:
    both = controlled(UP, scale=UP, rotation=UP)
    for weak in ("default", "arm, scale", "arm, rotation"):
        comparison = unconfirmed(both, weak)
        said = attribution(comparison["arm"], comparison)
        assert said is not None
        assert (said.kind, said.limit) == ("beyond both", "by its interval alone")
        assert said.text.endswith("; the corrected t-test does not confirm it")
    comparison = unconfirmed(controlled(UP, scale=NONE), "default")
    said = attribution(comparison["arm"], comparison)
    assert said is not None
    assert said.limit == "by its interval alone"
    assert said.text.startswith("the gain, by its interval alone, is explained by scale")


def test_what_the_correction_undoes_is_said() -> None:
    assert str(verdict(against(UP), True)) == "better than default: +0.1 [+0.0752, +0.125], 3 seeds"
    assert str(verdict(against(UP), False)).startswith("worse than default: +0.1")
    assert str(verdict(against(UP, p_holm=0.06), True)).endswith("; the corrected t-test does not confirm it")
    assert verdict(against(UP, p_holm=0.06), True).limit == "by its interval alone"
    assert verdict(against(UP), True).limit == verdict(against(NONE, p_holm=0.06), True).limit == ""


def test_an_interval_that_ends_at_zero_holds_it() -> None:
    found = against([0.0] * 7 + [1.0])  # a third of the resamples have no 1 in them
    assert found.interval is not None
    assert found.interval[0] == 0
    assert verdict(found, True).kind == "no difference shown"


def test_the_paragraph_of_a_whole_comparison() -> None:
    base = [20.0, 21.0, 22.5, 19.0, 20.5]
    moved = {"good": [-2.0, -2.1, -1.9, -2.05, -1.95], "scaled": [-2.0, -2.0, -2.1, -1.9, -2.0]}
    moved |= {"also good": [-1.0, -1.1, -0.9, -1.0, -1.05], "bad": [3.0, 3.1, 2.9, 3.0, 3.3]}
    moved |= {"same": [0.5, -0.5, 0.3, -0.3, 0.1], "weak": [-0.1, -0.5, -0.9, -0.2, -0.6]}
    table = {"default": base} | {name: [b + d for b, d in zip(base, ds, strict=True)] for name, ds in moved.items()}
    outcomes = [
        run(o.arm, o.seed, o.result, control_of="good" if o.arm == "scaled" else None, **PERPLEXITY)
        for o in runs(table)
    ]
    outcomes += [run("bad", 5, None, status="diverged", **PERPLEXITY)]
    comparison = compare_outcomes(outcomes)
    assert comparison["weak"].to_baseline.p < 0.05 < comparison["weak"].to_baseline.p_holm  # type: ignore[union-attr, operator]
    assert plain_words(comparison) == (
        "In this setting, by perplexity, with 5 seeds and Holm's correction for 6 comparisons, "
        "good, scaled and also good are better than default; bad is worse than default; "
        "weak is better than default by the interval alone, not by the corrected t-test; "
        "no difference to default is shown for same, which is not to say that there is none. "
        "For good, the gain is explained by scale, as far as can be seen: "
        "no difference to its control scaled is shown with 5 seeds. "
        "Of the 6 runs of bad, 1 diverged; its numbers are of the others only."
    )
    shown(comparison)


PERPLEXITY = {"metric": "perplexity", "higher_is_better": False}


@pytest.mark.parametrize("width", [60, 80, 100, 160])
def test_the_table_fits_and_cuts_nothing(width: int) -> None:
    rng = np.random.default_rng(0)
    names = ["default", "conditioned", "a-arm-with-" + "very-" * 12 + "long-name"]
    first = {"beta": 0.0064, "branch": 0.014, "entropy": 4.2, "kappa_equilibrated": 2345.0, "kappa_jacobian": 123456.0}
    last = {"beta": 0.25, "branch": 0.22, "entropy": 1.5, "kappa_equilibrated": 3.0, "kappa_jacobian": 7.0}
    monitor = ({"step": 0, **first}, {"step": 9, **last})
    table = {name: rng.normal(0.8, 0.01, 5).tolist() for name in names}
    text = table_text(compare_outcomes(runs(table, monitor=monitor)), width)
    assert max(map(len, text.splitlines())) <= width
    changes = ["0.0064 → 0.25", "0.014 → 0.22", "4.2 → 1.5", "2.34e+03 → 3", "1.23e+05 → 7"]
    for piece in ("accuracy", "− default", "steps to default's final", "time ÷ default", *changes):
        assert piece in text
    assert sorted(changes, key=text.index) == changes  # what no change of coordinates moves, then κ(J)
    assert names[2] in "".join(text.split())


def test_a_quantity_that_nobody_monitored_has_no_column() -> None:
    old = ({"step": 0, "kappa_jacobian": 9.0, "entropy": 0.9}, {"step": 9, "kappa_jacobian": 8.0, "entropy": 0.8})
    new = tuple({**record, "kappa_equilibrated": 5.0} for record in old)
    arms = runs({"default": [0.5, 0.6]}, monitor=old)
    header = comparison_table(compare_outcomes(arms)).header
    assert [*header][-3:] == ["entropy", "κ(J)", "diverged"]
    mixed = comparison_table(compare_outcomes([*arms, *runs({"later": [0.5, 0.6]}, monitor=new)]))
    assert [*mixed.header][-4:] == ["entropy", "κ_eq(J)", "κ(J)", "diverged"]
    assert [row[-3] for row in mixed.rows] == ["—", "5 → 5"]
