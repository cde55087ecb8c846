"""Rank correlations and regrets from runs and recommendations that are written out here."""

from __future__ import annotations

import math

import pytest
from scipy import stats

from wellcond.lab.analysis.outcome import Outcome
from wellcond.lab.evidence.scores import evidence_of, together

# Final accuracy of each arm on two seeds, κ(J) at its start, and the probe's loss.
RESULTS = {"yours": (0.5, 0.5), "a": (0.6, 0.7), "b": (0.8, 0.6), "conditioned": (0.7, 0.9)}
KAPPA = {"yours": 100.0, "a": 30.0, "b": 20.0, "conditioned": 10.0}
LOSS = {"yours": 4.0, "a": 2.0, "b": 3.0, "conditioned": 1.0}


def outcome(arm: str, seed: int, result: float, better: bool = True) -> Outcome:
    look = {"step": 0, "kappa_jacobian": KAPPA[arm], "beta": 0.1}
    status = "finished" if math.isfinite(result) else "diverged"
    metric = "accuracy" if better else "perplexity"
    return Outcome(arm, None, seed, status, "", metric, better, 9, (), ((9, result),), (look,), 1.0, {})


def advice(best: str, seed: int) -> dict:
    """As `Recommendation.to_dict` has it, of what is read here."""
    rung = {"steps": 5, "losses": {arm: {str(seed): {"0": [9.0], "5": [loss]}} for arm, loss in LOSS.items()}}
    ranking = [{"name": arm, "prediction": None} for arm in LOSS]
    asked = {"seconds": 40, "schemes": ["a", "b", "conditioned"]}
    return {"best": best, "asked": asked, "probe": {"rungs": [rung], "last": None}, "ranking": ranking}


def gathered(better: bool = True):
    outcomes = [outcome(arm, seed, results[seed], better) for arm, results in RESULTS.items() for seed in (0, 1)]
    return evidence_of("example", outcomes, {0: advice("b", 0), 1: advice("yours", 1)}, 9)


def test_correlations_are_spearmans_over_arms_seed_by_seed():
    found = {one.name: one for one in gathered().correlations}
    for seed in (0, 1):
        results = [RESULTS[arm][seed] for arm in RESULTS]
        expected = stats.spearmanr([-KAPPA[arm] for arm in RESULTS], results).statistic
        assert found["lower κ(J)"].by_seed[seed] == pytest.approx(expected)
        expected = stats.spearmanr([-LOSS[arm] for arm in RESULTS], results).statistic
        assert found["lower probe loss"].by_seed[seed] == pytest.approx(expected)
    assert found["lower κ(J)"].interval == pytest.approx(
        stats.ttest_1samp(found["lower κ(J)"].by_seed, 0).confidence_interval()
    )


def test_what_says_nothing_has_no_correlation():
    found = {one.name: one for one in gathered().correlations}
    assert math.isnan(found["higher β"].mean)  # the same for all arms
    assert math.isnan(found["higher g"].mean)  # not measured
    assert "–" in str(gathered())


def test_regret_is_the_best_arms_mean_minus_what_a_policy_came_to():
    found = gathered()
    regrets = {one.name: one.by_seed for one in found.regrets}
    best = (0.7 + 0.9) / 2
    assert regrets["recommended"] == pytest.approx((best - 0.8, best - 0.5))
    assert regrets["always yours"] == pytest.approx((best - 0.5, best - 0.5))
    assert regrets["always conditioned"] == pytest.approx((best - 0.7, best - 0.9))
    assert found.gain.by_seed == pytest.approx((0.3, 0.0))


def test_where_less_is_better_signs_turn():
    found, other = gathered(better=False), gathered()
    assert found.gain.by_seed == pytest.approx([-gain for gain in other.gain.by_seed])
    assert found.results == pytest.approx(other.results)
    assert found.correlations[0].by_seed == pytest.approx([-c for c in other.correlations[0].by_seed])


def test_a_run_that_is_lost_is_worse_than_any():
    outcomes = [outcome(arm, 0, math.nan if arm == "b" else results[0]) for arm, results in RESULTS.items()]
    found = evidence_of("example", outcomes, {0: advice("b", 0)}, 9)
    assert found.gain.by_seed == (-math.inf,)
    results = [-math.inf if arm == "b" else RESULTS[arm][0] for arm in RESULTS]
    expected = stats.spearmanr([-LOSS[arm] for arm in RESULTS], stats.rankdata(results)).statistic
    assert found.correlations[0].by_seed[0] == pytest.approx(expected)


def test_advice_of_a_control_is_its_arm():
    named = "yours at the β and g of a"
    outcomes = [outcome(arm, 0, results[0]) for arm, results in RESULTS.items()]
    control = Outcome(
        "a, calibrated default", "a", 0, "finished", "", "accuracy", True, 9, (), ((9, 0.75),), (), 1.0, {}
    )
    found = evidence_of("example", [*outcomes, control], {0: advice(named, 0)}, 9)
    assert found.gain.by_seed == pytest.approx((0.25,))
    assert found.regrets[0].by_seed == pytest.approx((0.8 - 0.75,))  # the best is a candidate, not a control


def test_recipes_together_are_means_of_their_means():
    found = together([gathered(), gathered(better=False)])
    own = {one.name: one for one in found.correlations}["lower probe loss"]
    assert own.mean == pytest.approx(0)
    assert own.by_seed == pytest.approx((gathered().correlations[0].mean, -gathered().correlations[0].mean))


def test_a_policy_that_is_the_best_arm_has_no_regret_to_the_bit():
    results = {"yours": (0.5, 0.5, 0.5), "conditioned": (0.741, 0.741, 0.755)}
    outcomes = [
        Outcome(arm, None, seed, "finished", "", "accuracy", True, 9, (), ((9, value),), (), 1.0, {})
        for arm, values in results.items()
        for seed, value in enumerate(values)
    ]
    found = evidence_of("example", outcomes, {seed: advice("yours", seed) for seed in range(3)}, 9)
    assert next(one for one in found.regrets if one.name == "always conditioned").mean == 0.0
