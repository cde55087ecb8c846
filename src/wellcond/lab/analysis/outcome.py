"""Outcomes of runs, read back from their folders: all that statistics and reports know of them."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from wellcond._core.json_files import read_object
from wellcond.diagnosis.journal import read_summaries
from wellcond.diagnosis.summaries import statistics_of
from wellcond.errors import WellcondError
from wellcond.lab.schema import in_current_schema
from wellcond.lab.training.run_folder import STATUSES, run_lines


@dataclass(frozen=True)
class Outcome:
    """Outcome of one run: its status, and what it measured.

    Args:
        arm: the entry's name in the recipe.
        control_of: the arm that this one is a control of, if it is one.
        seed: of weights, data order and augmentation.
        status: `"finished"`, `"diverged"`, `"crashed"`, or `"running"` where it was interrupted.
        error: what happened, in words, if it did not finish.
        metric: name of the test metric.
        higher_is_better: whether more of it is better.
        steps: of training, in all.
        train: (step, mean training loss since the last entry).
        test: (step, test metric), the last one being the result.
        monitor: records of the monitor's fixed steps: `step`, `kappa_jacobian`, `entropy`, `sigma_min`, ... by name.
        seconds: of training, evaluation left out.
        start: `beta`, `value_gain`, `entropy` of the fresh model, means over layers, where it could be located.
        final: all that the last test measured, by name.
        control: which control it is, if it is one.
        control_log: what `wc.control_` found in a run that has bands, each a `ControlRecord` as a dictionary.
    """

    arm: str
    control_of: str | None
    seed: int
    status: str
    error: str
    metric: str
    higher_is_better: bool
    steps: int
    train: tuple[tuple[int, float], ...]
    test: tuple[tuple[int, float], ...]
    monitor: tuple[dict[str, Any], ...]
    seconds: float
    start: dict[str, float]
    final: dict[str, float] = field(default_factory=dict)
    control: str = "scale"  # the only one that there was before runs said it
    control_log: tuple[dict[str, Any], ...] = ()

    @property
    def result(self) -> float | None:
        """Return the final test metric, None where the run did not finish."""
        last = self.test[-1][1] if self.status == "finished" and self.test else None
        return last if last is not None and math.isfinite(last) else None


def read_outcome(folder: Path) -> Outcome:
    """Read one run's folder: `run.json`, `metrics.jsonl` and `timings.jsonl`."""
    advice = f"delete '{folder}' and run the comparison again"
    path = folder / "run.json"
    described = in_current_schema(read_object(path, advice), path)
    metrics, timings = (run_lines(folder / name) for name in ("metrics.jsonl", "timings.jsonl"))
    try:
        _check(described)
        return _outcome(described, metrics, timings)
    except (KeyError, OverflowError, TypeError, ValueError) as error:
        why = f"there is no {error}" if isinstance(error, KeyError) else str(error)
        raise WellcondError(f"'{folder}' is damaged ({why}): {advice}") from None


def _check(described: dict[str, Any]) -> None:
    """Raise unless what is said of a run is of the right kind."""
    kinds: dict[str, tuple[type, ...]] = {"arm": (str,), "seed": (int,), "status": (str,), "metric": (str,)}
    kinds |= {"higher_is_better": (bool,), "steps": (int,)}
    optional: dict[str, tuple[type, ...]] = {"control_of": (str, type(None)), "error": (str,), "start": (dict,)}
    optional |= {"settings": (dict, type(None)), "lr": (int, float), "control": (str, type(None))}
    for name, allowed in (kinds | {name: kind for name, kind in optional.items() if name in described}).items():
        if type(described[name]) not in allowed:
            words = " or ".join("null" if kind is type(None) else kind.__name__ for kind in allowed)
            raise TypeError(f"{name} is {described[name]!r:.60}, not {words}")
    if described["status"] not in STATUSES:
        raise ValueError(f"status is {described['status']!r:.60}, not one of {', '.join(STATUSES)}")
    if described["steps"] < 0:
        raise ValueError(f"steps is {described['steps']}, less than 0")


def _outcome(described: dict[str, Any], metrics: list[dict[str, Any]], timings: list[dict[str, Any]]) -> Outcome:
    tests = [line for line in metrics if line["kind"] == "test"]
    return Outcome(
        arm=described["arm"],
        control_of=described.get("control_of"),
        seed=described["seed"],
        status=described["status"],
        error=described.get("error", ""),
        metric=described["metric"],
        higher_is_better=described["higher_is_better"],
        steps=described["steps"],
        # What is no number is a word in JSON.
        train=tuple((line["step"], float(line["loss"])) for line in metrics if line["kind"] == "train"),
        test=tuple((line["step"], float(line[described["metric"]])) for line in tests),
        monitor=tuple(
            {"step": line["step"], **statistics_of(read_summaries(line))}
            for line in metrics
            if line["kind"] == "monitor"
        ),
        seconds=sum(float(line["seconds"]) for line in timings if line["kind"] == "train"),
        start={name: float(value) for name, value in described.get("start", {}).items()},
        final=_final(tests),
        control=described.get("control") or "scale",
        control_log=tuple(line for line in metrics if line["kind"] == "control"),
    )


def _final(tests: list[dict[str, Any]]) -> dict[str, float]:
    found = {name: float(value) for name, value in (tests[-1] if tests else {}).items() if name not in ("kind", "step")}
    return {name: value for name, value in found.items() if math.isfinite(value)}


def final_loss(run: Outcome, in_logarithm: bool) -> float:
    """Return what a run ends with, less being better, and no worse than what it began with, before its first step.

    Args:
        run: whose first test was before its first step.
        in_logarithm: whether it is the metric's logarithm, as of a perplexity.
    """

    def loss(metric: float) -> float:
        return math.log(metric) if in_logarithm else -metric if run.higher_is_better else metric

    untrained = loss(run.test[0][1])
    return untrained if run.result is None else min(untrained, loss(run.result))


def run_folders(folder: Path) -> list[Path]:
    """Return the folders of a comparison's runs, in the recipe's order, in which they are numbered; then by seed."""
    found = [path.parent for path in Path(folder).glob("runs/*/seed-*/run.json")]
    return sorted(found, key=lambda path: (path.parent.name, len(path.name), path.name))


def read_outcomes(folder: Path) -> list[Outcome]:
    """Read all runs of a comparison's folder, in the order of `run_folders`."""
    found = run_folders(folder)
    if not found:
        raise WellcondError(f"'{folder}' holds no runs: give the --out folder of a comparison")
    return [read_outcome(path) for path in found]
