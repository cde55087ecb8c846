"""Arms against a baseline, seed by seed: equal seeds saw equal data, so only their differences are compared."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from wellcond._core.json_safe import plain
from wellcond._core.numbers import finite_number
from wellcond._core.result_table import ResultTable, Tabular
from wellcond.errors import WellcondError
from wellcond.lab.analysis.outcome import Outcome
from wellcond.lab.analysis.paired_test import PairedTest, mean_of, paired_test, sd_of, with_holm
from wellcond.lab.schema import SCHEMA


@dataclass(frozen=True)
class ArmRecord:
    """Statistics of one arm: its results, and its differences to the baseline and to its controls.

    Args:
        arm: its name.
        control_of: the arm that it is a control of, if it is one.
        control: which one: `"scale"`, `"rotation"` or `"sign"`.
        runs: how many there are by status; a finished one whose result is NaN or infinite is `"without result"`.
        results: final metric by seed.
        mean: of the results.
        sd: of the results.
        to_baseline: paired differences; None for the baseline itself.
        to_controls: paired differences to each of its controls.
        steps_to_reach: by paired seed, the first test step as good as that seed's baseline ended; None if never.
        median_steps: of them, never being later than any step; None if that is the median.
        reached: how many seeds did.
        time_ratio: training time ÷ the baseline's, median over paired seeds.
        monitored: (first, last) of each monitored quantity, means over the seeds with a result.
    """

    arm: str
    control_of: str | None
    control: str | None
    runs: Mapping[str, int]
    results: Mapping[int, float]
    mean: float | None
    sd: float | None
    to_baseline: PairedTest | None
    to_controls: tuple[PairedTest, ...]
    steps_to_reach: Mapping[int, int | None]
    median_steps: float | None
    reached: int
    time_ratio: float | None
    monitored: Mapping[str, tuple[float | None, float | None]]


@dataclass(frozen=True)
class Comparison(Tabular):
    """Statistics of all arms, in the order of their first runs; `verdicts` and `summary` put it into words."""

    baseline: str
    metric: str
    higher_is_better: bool
    arms: tuple[ArmRecord, ...]

    def __getitem__(self, arm: str) -> ArmRecord:
        for record in self.arms:
            if record.arm == arm:
                return record
        raise WellcondError(f"no arm '{arm}'; there are {', '.join(record.arm for record in self.arms)}")

    def to_dict(self) -> dict[str, Any]:
        """Return plain numbers, strings, lists and dictionaries."""
        data: dict[str, Any] = plain({"schema": SCHEMA} | asdict(self))
        return data

    def records(self) -> list[dict[str, Any]]:
        """Return one row per arm: its results, and its paired difference to the baseline with interval and p values.

        >>> def run(arm, seed, result):
        ...     return Outcome(arm, None, seed, "finished", "", "accuracy", True, 9, (), ((9, result),), (), 1.0, {})
        >>> runs = [run(name, seed, 0.5 + seed / 10) for name in ("default", "mimetic") for seed in range(2)]
        >>> [(row["arm"], round(row["mean"], 3), row["difference"]) for row in compare_outcomes(runs).records()]
        [('default', 0.55, None), ('mimetic', 0.55, 0.0)]
        """
        return [_flat(record) for record in self.arms]

    def _result_table(self) -> ResultTable:
        from wellcond.lab.analysis.summary import comparison_table

        return comparison_table(self)


def _flat(record: ArmRecord) -> dict[str, Any]:
    found = record.to_baseline
    low, high = found.interval if found is not None and found.interval is not None else (None, None)
    row: dict[str, Any] = {"arm": record.arm, "control_of": record.control_of, "control": record.control}
    row |= {f"runs_{status.replace(' ', '_')}": count for status, count in record.runs.items()}
    row |= {"mean": record.mean, "sd": record.sd, "seeds": len(record.results)}
    row |= {"difference": None if found is None else found.mean, "low": low, "high": high}
    row |= {name: None if found is None else getattr(found, name) for name in ("p", "p_holm", "effect_size")}
    row |= {name: getattr(record, name) for name in ("median_steps", "reached", "time_ratio")}
    for quantity, (first, last) in record.monitored.items():
        row |= {f"{quantity}_first": first, f"{quantity}_last": last}
    return row


def compare_outcomes(outcomes: Sequence[Outcome], baseline: str = "default") -> Comparison:
    """Compare every arm, paired with the baseline and with its own controls.

    >>> def run(arm, seed, result):
    ...     return Outcome(arm, None, seed, "finished", "", "accuracy", True, 9, (), ((9, result),), (), 1.0, {})
    >>> runs = [run("default", s, r) for s, r in enumerate([0.5, 0.6, 0.7])]
    >>> runs += [run("conditioned", s, r) for s, r in enumerate([0.6, 0.8, 1.0])]
    >>> found = compare_outcomes(runs)["conditioned"].to_baseline
    >>> f"{found.mean:.2f} in [{found.interval[0]:.2f}, {found.interval[1]:.2f}], p {found.p:.3f}"
    '0.20 in [-0.05, 0.45], p 0.074'
    """
    runs = _by_arm(outcomes, baseline)
    results = {name: _results(own) for name, own in runs.items()}
    control_of = {name: next(iter(own.values())).control_of for name, own in runs.items()}
    controls = [(of, name) for name, of in control_of.items() if of in runs]
    to_baseline = {name: paired_test(name, own, baseline, results[baseline]) for name, own in results.items()}
    del to_baseline[baseline]
    to_baseline = dict(zip(to_baseline, with_holm(list(to_baseline.values())), strict=True))
    to_controls = with_holm(
        [paired_test(of, results[of], name, results[name]) for of, name in controls if of is not None]
    )
    records = []
    for name, own in runs.items():
        shared = sorted(results[name].keys() & results[baseline].keys())
        steps = {seed: first_step_as_good(own[seed], results[baseline][seed]) for seed in shared}
        times = [(own[seed].seconds, runs[baseline][seed].seconds) for seed in shared]
        ratios = [ours / theirs for ours, theirs in times if theirs > 0]
        values = list(results[name].values())
        records.append(
            ArmRecord(
                arm=name,
                control_of=control_of[name],
                control=None if control_of[name] is None else next(iter(own.values())).control,
                runs=_statuses(own, results[name]),
                results=results[name],
                mean=mean_of(values),
                sd=sd_of(values),
                to_baseline=to_baseline.get(name),
                to_controls=tuple(found for found in to_controls if found.arm == name),
                steps_to_reach=steps,
                median_steps=finite_number(
                    np.median([math.inf if s is None else s for s in steps.values()] or [math.inf])
                ),
                reached=sum(step is not None for step in steps.values()),
                time_ratio=finite_number(np.median(ratios)) if ratios else None,
                monitored=_monitored([own[seed] for seed in results[name]]),
            )
        )
    return Comparison(baseline, outcomes[0].metric, outcomes[0].higher_is_better, tuple(records))


def first_step_as_good(run: Outcome, target: float) -> int | None:
    """Return the first test step at which a run's metric is as good as a target; None if it never is."""
    for step, value in run.test:
        value = float(value)
        if math.isfinite(value) and (value >= target if run.higher_is_better else value <= target):
            return step
    return None


def _by_arm(outcomes: Sequence[Outcome], baseline: str) -> dict[str, dict[int, Outcome]]:
    """Runs by arm and seed; anything that cannot be one comparison is an error."""
    runs: dict[str, dict[int, Outcome]] = {}
    for outcome in outcomes:
        if outcome.seed in runs.setdefault(outcome.arm, {}):
            raise WellcondError(f"'{outcome.arm}' has two runs with seed {outcome.seed}: leave one of them out")
        runs[outcome.arm][outcome.seed] = outcome
    if baseline not in runs:
        raise WellcondError(f"'{baseline}' has no run to compare with; name one of {', '.join(runs) or 'no arms'}")
    metrics = sorted({outcome.metric for outcome in outcomes})
    if len(metrics) > 1 or len({outcome.higher_is_better for outcome in outcomes}) > 1:
        raise WellcondError(f"the runs measure different things ({', '.join(metrics)}): compare runs of one task")
    return runs


def _results(runs: Mapping[int, Outcome]) -> dict[int, float]:
    found = {seed: finite_number(run.result) for seed, run in sorted(runs.items())}
    return {seed: result for seed, result in found.items() if result is not None}


def _statuses(runs: Mapping[int, Outcome], results: Mapping[int, float]) -> dict[str, int]:
    statuses = ["without result" if r.status == "finished" and s not in results else r.status for s, r in runs.items()]
    counted = Counter({"finished": 0, "diverged": 0, "crashed": 0})
    counted.update(statuses)
    return dict(counted)


def _monitored(runs: Sequence[Outcome]) -> dict[str, tuple[float | None, float | None]]:
    """Means over runs of each quantity's first and last value; None where one of them is not finite."""
    ends: dict[str, list[tuple[float, float]]] = {}
    for run in runs:
        series: dict[str, list[float]] = {}
        for record in sorted(run.monitor, key=lambda record: record["step"]):
            for name, value in record.items():
                if name != "step" and (isinstance(value, (int, float)) or value in ("inf", "-inf", "nan")):
                    series.setdefault(name, []).append(float(value))
        for name, values in series.items():
            ends.setdefault(name, []).append((values[0], values[-1]))
    return {
        name: (mean_of([first for first, _ in pairs]), mean_of([last for _, last in pairs]))
        for name, pairs in ends.items()
    }
