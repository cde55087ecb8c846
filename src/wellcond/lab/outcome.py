"""What a run left behind, read back from its folder: all that statistics and reports know of it."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from wellcond.errors import WellcondError


@dataclass(frozen=True)
class Outcome:
    """One run.

    Args:
        scheme: the entry's name in the recipe.
        control_of: the scheme whose scale this one has, if it is a control.
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
    """

    scheme: str
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

    @property
    def result(self) -> float | None:
        """The final test metric; None where the run did not finish."""
        last = self.test[-1][1] if self.status == "finished" and self.test else None
        return last if last is not None and math.isfinite(last) else None


def read_outcome(folder: Path) -> Outcome:
    """One run's folder: `run.json`, `metrics.jsonl` and `timings.jsonl`."""
    try:
        described = json.loads((folder / "run.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise WellcondError(
            f"'{folder}' holds no readable run.json ({error}): it is not a run of a comparison"
        ) from None
    try:
        return _outcome(folder, described)
    except (AttributeError, KeyError, OSError, TypeError, ValueError) as error:
        why = f"{type(error).__name__}: {error}"
        raise WellcondError(f"'{folder}' is damaged ({why}): delete it and run the comparison again") from None


def _outcome(folder: Path, described: dict[str, Any]) -> Outcome:
    metrics, timings = list(_lines(folder / "metrics.jsonl")), list(_lines(folder / "timings.jsonl"))
    return Outcome(
        scheme=described["scheme"],
        control_of=described.get("control_of"),
        seed=described["seed"],
        status=described["status"],
        error=described.get("error", ""),
        metric=described["metric"],
        higher_is_better=described["higher_is_better"],
        steps=described["steps"],
        # What is no number is a word in JSON.
        train=tuple((line["step"], float(line["loss"])) for line in metrics if line["kind"] == "train"),
        test=tuple((line["step"], float(line[described["metric"]])) for line in metrics if line["kind"] == "test"),
        monitor=tuple(line for line in metrics if line["kind"] == "monitor"),
        seconds=sum(line["seconds"] for line in timings if line["kind"] == "train"),
        start=described.get("start", {}),
        final=_final(metrics),
    )


def _final(metrics: list[dict[str, Any]]) -> dict[str, float]:
    tests = [line for line in metrics if line["kind"] == "test"]
    found = {name: float(value) for name, value in (tests[-1] if tests else {}).items() if name not in ("kind", "step")}
    return {name: value for name, value in found.items() if math.isfinite(value)}


def run_folders(folder: Path) -> list[Path]:
    """The runs that a comparison's folder holds, in the recipe's order, in which they are numbered; then by seed."""
    found = [path.parent for path in Path(folder).glob("runs/*/seed-*/run.json")]
    return sorted(found, key=lambda path: (path.parent.name, len(path.name), path.name))


def read_outcomes(folder: Path) -> list[Outcome]:
    """All runs of a comparison's folder, in the order of `run_folders`."""
    found = run_folders(folder)
    if not found:
        raise WellcondError(f"'{folder}' holds no runs: give the --out folder of a comparison")
    return [read_outcome(path) for path in found]


def _lines(path: Path) -> Iterable[dict[str, Any]]:
    """Whole lines of a file that grows; a last one without its end is not there yet."""
    if not path.exists():
        return
    for line in path.read_text(encoding="utf-8").splitlines(keepends=True):
        if line.endswith("\n"):
            yield json.loads(line)
