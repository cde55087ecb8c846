"""What may be said of finalists, against scipy."""

from __future__ import annotations

import math

import pytest
import torch
from scipy import stats

from wellcond.advice.probe import Rung
from wellcond.advice.verdict import difference, differences, winner


def rung(losses: dict[str, list[float]]) -> Rung:
    seeds = tuple(range(len(next(iter(losses.values())))))
    return Rung(9, seeds, {name: {s: {0: [4.0], 9: [values[s]]} for s in seeds} for name, values in losses.items()})


def test_differences_are_paired_t_tests_with_holm_correction():
    drawn = torch.Generator().manual_seed(0)
    own, near, far = (torch.randn(6, generator=drawn).double().add(shift).tolist() for shift in (3.0, 2.9, -1.0))
    found = {
        one.candidate: one
        for one in differences(rung({"yours": own, "near": near, "far": far}), "yours", ["near", "far", "yours"])
    }
    for name, values in (("near", near), ("far", far)):
        test = stats.ttest_rel(values, own)
        assert found[name].p == pytest.approx(test.pvalue, abs=1e-12)
        assert found[name].interval == pytest.approx(tuple(test.confidence_interval(0.95)), rel=1e-9)
    least = min(found["near"].p, found["far"].p)
    assert found["far"].p_holm == pytest.approx(min(1, 2 * least))
    assert winner(list(found.values()), None) == "far"


def test_a_difference_that_hangs_on_the_judging_batches_is_not_shown():
    """Two of three batches that disagree say little, on however many seeds they do so alike."""
    apart = [-2.0, 0.1, 0.1]  # on each batch, the same for every seed but for a little noise
    losses = {
        "yours": {s: {0: [4.0] * 3, 9: [3.0, 3.0, 3.0]} for s in range(6)},
        "other": {s: {0: [4.0] * 3, 9: [3.0 + by + s / 1000 for by in apart]} for s in range(6)},
    }
    one = difference(Rung(9, tuple(range(6)), losses), "other", "yours")
    assert stats.ttest_1samp(one.by_seed, 0).pvalue < 1e-6  # over seeds alone it seems certain
    assert one.p > 0.2
    seeds, batches = stats.sem(one.by_seed) ** 2, stats.sem(apart) ** 2
    freedom = int((seeds + batches) ** 2 / (seeds**2 / 5 + batches**2 / 2))
    half = stats.t.ppf(0.975, freedom) * math.sqrt(seeds + batches)
    assert one.interval == pytest.approx((one.mean - half, one.mean + half), rel=1e-9)


def test_nothing_wins_without_a_shown_difference():
    found = differences(rung({"yours": [1.0, 2.0, 3.0], "other": [1.1, 1.8, 2.9]}), "yours", ["other"])
    assert winner(found, None) is None


def test_what_is_apart_by_rounding_alone_is_no_difference():
    found = differences(rung({"yours": [1.0, 2.0, 3.0], "other": [1.0 - 1e-8, 2.0 - 1e-8, 3.0]}), "yours", ["other"])
    assert winner(found, None) is None
    assert found[0].by_seed == (0.0, 0.0, 0.0)


def test_a_control_wins_only_where_nothing_else_does():
    losses = {"yours": [3.0, 3.1, 3.2], "best": [2.0, 2.1, 2.25], "control": [1.0, 1.1, 1.21]}
    found = differences(rung(losses), "yours", ["best", "control"])
    assert winner(found, "control") == "best"
    assert winner([one for one in found if one.candidate == "control"], "control") == "control"


def test_what_diverges_is_worse_and_two_that_do_are_alike():
    inf = math.inf
    found = differences(
        rung({"yours": [inf, inf, inf], "finite": [1.0, 2.0, 3.0], "too": [inf, math.nan, inf]}),
        "yours",
        ["finite", "too"],
    )
    finite, too = found
    assert finite.mean == -inf
    assert finite.better
    assert too.by_seed == (0.0, 0.0, 0.0)
    assert not too.better
    pair = {"a": {0: {0: [4.0] * 2, 9: [inf] * 2}, 1: {0: [4.0] * 2, 9: [1.0, 1.1]}}}
    pair["b"] = {0: {0: [4.0] * 2, 9: [inf] * 2}, 1: {0: [4.0] * 2, 9: [2.0, 2.1]}}
    assert difference(Rung(9, (0, 1), pair), "a", "b").by_seed == pytest.approx((0.0, -1.0))
    some = difference(rung({"a": [1.0, inf], "b": [2.0, 2.0]}), "a", "b")
    assert math.isnan(some.mean)
    assert not some.better


def test_a_small_head_start_does_not_count_and_a_large_one_does():
    def against(first: float) -> float:
        losses = {
            "a": {s: {0: [first], 9: [1.0 + s / 10]} for s in range(3)},
            "b": {s: {0: [4.0], 9: [1.5]} for s in range(3)},
        }
        return difference(Rung(9, (0, 1, 2), losses), "a", "b").mean

    assert against(4.0) == pytest.approx(-0.4)
    assert against(3.9) == pytest.approx(-0.3)  # 2.5 % lower before training
    assert against(4.1) == pytest.approx(-0.4)
    assert against(2.0) == pytest.approx(-0.4)
