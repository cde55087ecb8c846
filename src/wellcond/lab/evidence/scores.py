"""Rank correlations of predictors with final results, and the regret of following advice."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import fmean
from typing import Any

from scipy.stats import spearmanr

from wellcond._core.json_safe import plain
from wellcond._core.result_table import ResultTable, Tabular
from wellcond._core.student import mean_interval
from wellcond.lab.analysis.outcome import Outcome
from wellcond.lab.evidence.candidate_arms import OWN, arm_of

ROUNDING = 1e-12  # of numbers whose mean is zero but for it
FEWEST_ARMS = 4  # that a rank correlation is of
# Columns of a run's first look, and whether more of it is claimed to be better.
AT_START = {
    "lower κ(J)": ("kappa_jacobian", -1),
    "lower κ_eq(J)": ("kappa_equilibrated", -1),
    "lower κ(W_Q)": ("kappa_query", -1),
    "higher β": ("beta", 1),
    "higher g": ("branch", 1),
    "lower entropy": ("entropy", -1),
}
PREDICTED = {"lower predicted similarity": "similarity", "smaller predicted gradient ratio": "gradient"}
PROBE = "lower probe loss"


@dataclass(frozen=True)
class Score:
    """One number a seed, with its mean and 95 % interval.

    Args:
        name: of a predictor or of a policy.
        by_seed: in the order of seeds.
        mean: of them.
        interval: of the mean, by Student's t; None of fewer than two seeds.
    """

    name: str
    by_seed: tuple[float, ...]
    mean: float
    interval: tuple[float, float] | None


@dataclass(frozen=True)
class Evidence(Tabular):
    """What the stages of a recommendation foretold of one recipe's final results.

    Args:
        recipe: its name.
        metric: of the results.
        higher_is_better: whether more of it is better.
        results: mean final result by arm.
        advised: what was recommended, by seed.
        correlations: Spearman's, over the candidates of a seed, of each predictor with the final result; 1 is perfect.
        regrets: the best arm's mean result minus that of each policy, positive where the policy is worse.
        gain: result with what was recommended minus that with the model's own weights, positive where advice helps.
        steps: of each full training.
        seconds: that each recommendation's probe was given.
    """

    recipe: str
    metric: str
    higher_is_better: bool
    results: Mapping[str, float]
    advised: tuple[str, ...]
    correlations: tuple[Score, ...]
    regrets: tuple[Score, ...]
    gain: Score
    steps: int
    seconds: float

    def to_dict(self) -> dict[str, Any]:
        """Return plain numbers, strings, lists and dictionaries."""
        found: dict[str, Any] = plain(asdict(self))
        return found

    def records(self) -> list[dict[str, Any]]:
        """Return one row per predictor and policy."""
        kinds = [("correlation", self.correlations), ("regret", self.regrets), ("gain", (self.gain,))]
        return [{"recipe": self.recipe, "kind": kind, **asdict(one)} for kind, scores in kinds for one in scores]

    def _result_table(self) -> ResultTable:
        rows = [[one.name, _words(one)] for one in self.correlations]
        notes = [f"{one.name}: regret {_words(one)}" for one in self.regrets]
        notes.append(f"recommended − yours, positive where it helps: {_words(self.gain)}")
        notes.append(f"of {self.steps} steps, asked for {self.seconds:g} seconds a seed")
        notes.append("recommended: " + ", ".join(f"{name} ({n})" for name, n in Counter(self.advised).most_common()))
        return ResultTable(["predictor", f"rank correlation with {self.metric}"], rows, self.recipe, notes)


def evidence_of(
    recipe: str, outcomes: Sequence[Outcome], advice: Mapping[int, Mapping[str, Any]], steps: int
) -> Evidence:
    """Put final results and recommendations of the same seeds together.

    Args:
        recipe: its name.
        outcomes: of every arm and seed.
        advice: recommendations as dictionaries, by seed.
        steps: of each training.
    """
    better = 1 if outcomes[0].higher_is_better else -1
    seeds = sorted(advice)
    runs = {(one.arm, one.seed): one for one in outcomes}
    arms = list(dict.fromkeys(one.arm for one in outcomes))

    def good(arm: str, seed: int) -> float:
        """The result with more being better; what was lost is worse than anything."""
        result = runs[arm, seed].result
        return -math.inf if result is None else better * result

    candidates = [arm for arm in arms if not runs[arm, seeds[0]].control_of]
    means = {arm: fmean(good(arm, seed) for seed in seeds) for arm in arms}
    best = max(means[arm] for arm in candidates)
    advised = tuple(str(advice[seed]["best"]) for seed in seeds)
    policies = {"recommended": dict(zip(seeds, map(arm_of, advised), strict=True))}
    policies |= {f"always {arm}": dict.fromkeys(seeds, arm) for arm in (OWN, "conditioned") if arm in arms}
    chosen = policies["recommended"]
    return Evidence(
        recipe,
        outcomes[0].metric,
        outcomes[0].higher_is_better,
        {arm: better * mean for arm, mean in means.items()},
        advised,
        tuple(
            _score(name, [_rank(read, candidates, seed, good) for seed in seeds])
            for name, read in _predictors(runs, advice).items()
        ),
        tuple(_score(name, [best - good(arms[s], s) for s in seeds]) for name, arms in policies.items()),
        _score("gain", [good(chosen[seed], seed) - good(OWN, seed) for seed in seeds]),
        steps,
        float(advice[seeds[0]]["asked"]["seconds"]),
    )


@dataclass(frozen=True)
class SharedEvidence(Tabular):
    """Scores of the same predictors and policies on several recipes.

    Args:
        recipes: their names.
        correlations: of each predictor, the mean of each recipe in place of a seed's.
    """

    recipes: tuple[str, ...]
    correlations: tuple[Score, ...]

    def records(self) -> list[dict[str, Any]]:
        """Return one row per predictor."""
        return [{"predictor": one.name, "mean": one.mean, "interval": one.interval} for one in self.correlations]

    def _result_table(self) -> ResultTable:
        rows = [[one.name, _words(one), " ".join(f"{v:+.2f}" for v in one.by_seed)] for one in self.correlations]
        return ResultTable(
            ["predictor", "rank correlation, mean over recipes", "each"], rows, f"together: {', '.join(self.recipes)}"
        )


def together(found: Sequence[Evidence]) -> SharedEvidence:
    """Return the mean of each predictor's correlations over recipes, with an interval over recipes."""
    names = [one.name for one in found[0].correlations]
    means = {name: [one.mean for each in found for one in each.correlations if one.name == name] for name in names}
    return SharedEvidence(tuple(one.recipe for one in found), tuple(_score(name, means[name]) for name in names))


Read = Callable[[str, int], float | None]  # what a predictor says of an arm and a seed, more being better


def _predictors(runs: Mapping[tuple[str, int], Outcome], advice: Mapping[int, Mapping[str, Any]]) -> dict[str, Read]:
    def probe(arm: str, seed: int) -> float | None:
        rungs = advice[seed]["probe"]["rungs"]
        losses = rungs[0]["losses"].get(arm) if rungs else None
        return None if not losses else -fmean(next(iter(losses.values()))[str(rungs[0]["steps"])])

    def at_start(key: str, sign: int) -> Read:
        def read(arm: str, seed: int) -> float | None:
            looks = runs[arm, seed].monitor
            value = looks[0].get(key) if looks else None
            return None if value is None else sign * float(value)

        return read

    def predicted(key: str) -> Read:
        def read(arm: str, seed: int) -> float | None:
            found = [one["prediction"] for one in advice[seed]["ranking"] if one["name"] == arm and one["prediction"]]
            return -abs(float(found[0][key])) if found else None

        return read

    found: dict[str, Read] = {PROBE: probe}
    found |= {name: at_start(key, sign) for name, (key, sign) in AT_START.items()}
    return found | {name: predicted(key) for name, key in PREDICTED.items()}


def _rank(read: Read, arms: Sequence[str], seed: int, good: Callable[[str, int], float]) -> float:
    """Spearman's correlation over the arms that a predictor says something of; NaN where that means nothing."""
    pairs = [(value, good(arm, seed)) for arm in arms if (value := read(arm, seed)) is not None]
    if len(pairs) < FEWEST_ARMS or any(len(set(column)) == 1 for column in zip(*pairs, strict=True)):
        return math.nan
    return float(spearmanr(*zip(*pairs, strict=True)).statistic)


def _score(name: str, by_seed: Sequence[float]) -> Score:
    known = [value for value in by_seed if math.isfinite(value)]
    mean = fmean(known) if known else math.nan
    if abs(mean) <= ROUNDING * max(map(abs, known), default=0.0):
        mean = 0.0
    return Score(name, tuple(by_seed), mean, mean_interval(known) if len(known) > 1 else None)


def _words(one: Score) -> str:
    if one.interval is None:
        return "–" if math.isnan(one.mean) else f"{one.mean:+.2g}"
    return f"{one.mean:+.2g} [{one.interval[0]:+.2g}, {one.interval[1]:+.2g}]"
