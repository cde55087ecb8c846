"""A comparison's folder as runs to draw: what the laboratory recorded of each."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from wellcond._core.file_names import check_path
from wellcond._core.json_files import read_object
from wellcond.diagnosis.journal import read_summaries
from wellcond.diagnosis.summaries import Summary
from wellcond.errors import WellcondError
from wellcond.lab.figures.runs import RecordedRun, Summaries
from wellcond.lab.schema import in_current_schema

if TYPE_CHECKING:
    from wellcond.lab.analysis.outcome import Outcome
    from wellcond.lab.analysis.statistics import Comparison

MARK = "comparison.json"


@dataclass(frozen=True)
class Compared:
    """A comparison, as far as its figures show it."""

    name: str  # of its folder
    runs: tuple[RecordedRun, ...]  # those that finished; with the others, later means would be of fewer seeds
    unfinished: tuple[tuple[str, int, str], ...]  # (arm, seed, status) of the others
    arms: tuple[str, ...]  # all of them, in the recipe's order
    metric: str  # of the test
    higher_is_better: bool
    last: int  # steps of training
    epoch: float | None  # steps of an epoch; None in folders that do not say
    statistics: Comparison | None  # of all runs; None where the baseline has no result to compare with


def is_comparison(folder: Path) -> bool:
    """Return whether a folder is a comparison's, of many runs, rather than of one."""
    return check_path(folder / MARK).exists()


def read_comparison(folder: Path) -> Compared:
    """Read all runs of a comparison, also of one that is still running.

    Args:
        folder: with `comparison.json` and `runs/`.
    """
    try:
        from wellcond.lab.analysis.outcome import read_outcome, run_folders
        from wellcond.lab.analysis.statistics import compare_outcomes
    except ImportError as error:
        raise WellcondError(f"a comparison's figures need scipy ({error}): pip install 'wellcond[lab]'") from error
    baseline, epoch = _about(folder)
    paths = run_folders(folder)
    if not paths:
        raise WellcondError(f"'{folder}' has no run yet: give the --out folder of a comparison that has begun")
    outcomes = [read_outcome(path) for path in paths]
    judged = compare_outcomes(outcomes, baseline) if any(run.arm == baseline for run in outcomes) else None
    return Compared(
        name=folder.resolve().name,
        runs=tuple(
            _run(outcome, path, epoch)
            for outcome, path in zip(outcomes, paths, strict=True)
            if outcome.status == "finished"
        ),
        unfinished=tuple((run.arm, run.seed, run.status) for run in outcomes if run.status != "finished"),
        arms=tuple(dict.fromkeys(run.arm for run in outcomes)),
        metric=outcomes[0].metric,
        higher_is_better=outcomes[0].higher_is_better,
        last=max(run.steps for run in outcomes),
        epoch=epoch,
        statistics=judged if judged is not None and judged[baseline].results else None,
    )


def _about(folder: Path) -> tuple[str, float | None]:
    """Return the baseline's name, and the steps of an epoch."""
    about = read_about(folder)
    baseline, epoch = about.get("baseline", "default"), about.get("epoch")
    if type(baseline) is not str or not (epoch is None or (type(epoch) in (int, float) and 0 < epoch < math.inf)):
        raise WellcondError(
            f"'{folder / MARK}': baseline is a name and epoch a number of steps; got {baseline!r:.60} and {epoch!r:.60}"
        )
    return baseline, epoch


def read_about(folder: Path) -> dict[str, Any]:
    """Read what `comparison.json` says of a comparison as a whole, each part of the kind that it should be."""
    about = in_current_schema(read_object(folder / MARK, "give the --out folder of a comparison"), folder / MARK)
    kinds: dict[str, tuple[type, ...]] = {"title": (str,), "model": (str,), "command": (str, list), "baseline": (str,)}
    kinds |= {"task": (dict,), "versions": (dict,), "machine": (dict,), "diagram": (dict, type(None))}
    kinds |= {"parameters": (int, type(None)), "started": (str,)}
    for name, allowed in kinds.items():
        if name in about and type(about[name]) not in allowed:
            words = " or ".join("null" if kind is type(None) else kind.__name__ for kind in allowed)
            raise WellcondError(f"'{folder / MARK}': {name} is a {words}, got {about[name]!r:.60}")
    return about


def _run(outcome: Outcome, folder: Path, epoch: float | None) -> RecordedRun:
    from wellcond.lab.training.run_folder import run_lines

    lines = run_lines(folder / "metrics.jsonl")
    records: list[tuple[int, Summaries]] = [
        (line["step"], read_summaries(line)) for line in lines if line["kind"] == "monitor"
    ]
    records += [(step, _number("loss", loss)) for step, loss in outcome.train]
    records += [(step, _number("test", value)) for step, value in outcome.test]
    return RecordedRun(outcome.arm, outcome.seed, tuple(records), outcome.control_of, epoch)


def _number(name: str, value: float) -> Summaries:
    """Return one recorded number as a summary.

    >>> _number("loss", 2.0)["loss"].mean, _number("loss", math.inf)["loss"].left_out
    (2.0, {'not finite': 1})
    """
    return {name: Summary(value) if math.isfinite(value) else Summary(None, count=0, left_out={"not finite": 1})}
