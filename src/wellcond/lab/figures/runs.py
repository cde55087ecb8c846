"""Runs as averages over layers and heads at each step, read from the folder of a monitor or of a comparison's run."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from wellcond._core.file_names import check_path
from wellcond._core.json_files import read_json, read_lines
from wellcond.diagnosis.journal import read_summaries
from wellcond.diagnosis.schema import SCHEMA
from wellcond.diagnosis.summaries import Summary
from wellcond.errors import WellcondError

Summaries = Mapping[str, Summary]  # by the quantities' keys; of a comparison also `loss` (of training) and `test`


@dataclass(frozen=True)
class RecordedRun:
    """One training run."""

    label: str  # what is compared
    seed: int | None  # which repetition
    records: tuple[tuple[int, Summaries], ...]  # step and averages of each line of `metrics.jsonl`, in its order
    control_of: str | None = None  # the label that this one is a control of, if it is one
    epoch: float | None = None  # steps of an epoch, where that is known


@dataclass(frozen=True)
class Series:
    """One quantity of one label through training."""

    label: str  # what is compared
    quantity: str  # key of what was averaged
    seeds: tuple[int | None, ...]  # of the runs
    steps: tuple[int, ...]  # those that all seeds have
    mean: tuple[float | None, ...]  # over seeds; None where a seed has nothing to average
    deviation: tuple[float | None, ...] | None  # sample standard deviation over seeds; None for a single seed
    averaged: tuple[int, ...]  # how many entries of all seeds are in the mean
    left_out: tuple[int, ...]  # how many are not
    reasons: Mapping[str, int]  # how many are not over all steps, by reason
    control_of: str | None = None  # the label that this one is a control of, if it is one
    epoch: float | None = None  # steps of an epoch, where that is known and the same for all seeds


def told_apart(found: Sequence[tuple[Path, RecordedRun]]) -> list[RecordedRun]:
    """Name runs of several folders, those of a label that occurs twice with one seed under their folders' names.

    A monitor's default label is the model's class, which the runs of a comparison by hand share.

    Args:
        found: folder and run; a folder that is given twice keeps its label, for `distinct` to refuse.

    >>> named = {"x/a": ("ViT", 0), "x/b": ("ViT", 0), "c": ("GPT", 1)}
    >>> runs = [(Path(folder), RecordedRun(label, seed, ())) for folder, (label, seed) in named.items()]
    >>> [run.label for run in told_apart(runs)]
    ['a', 'b', 'GPT']
    """
    folders: dict[tuple[str, int | None], set[Path]] = {}
    for folder, run in found:
        folders.setdefault((run.label, run.seed), set()).add(folder.resolve())
    clashing = {label for (label, _), own in folders.items() if len(own) > 1}
    names = _shortest_names({folder.resolve() for folder, run in found if run.label in clashing})
    return [replace(run, label=names.get(folder.resolve(), run.label)) for folder, run in found]


def _shortest_names(folders: Collection[Path]) -> dict[Path, str]:
    """Each folder by as many of its last parts as tell all of them apart."""
    for count in range(1, max((len(folder.parts) for folder in folders), default=0) + 1):
        names = {folder: "/".join(folder.parts[-count:]) for folder in folders}
        if len(set(names.values())) == len(folders):
            return names
    return {}


def distinct(found: Iterable[tuple[Path, RecordedRun]]) -> list[RecordedRun]:
    """Return all runs, each label and seed once: a run that is read twice is no second sample."""
    seen: dict[tuple[str, int | None], Path] = {}
    runs = []
    for folder, run in found:
        if (run.label, run.seed) in seen:
            raise WellcondError(
                f"'{seen[run.label, run.seed]}' and '{folder}' both have label {run.label!r} and seed {run.seed}: "
                "give each run its own label or seed in its run.json, or draw the folders one at a time"
            )
        seen[run.label, run.seed] = folder
        runs.append(run)
    return runs


def read_run(folder: Path) -> RecordedRun:
    r"""Read `run.json`, if there is one, and `metrics.jsonl`, whose last line may have been cut off by a crash.

    >>> import json, tempfile
    >>> line = {"schema": 2, "step": 5, "quantities": {"entropy": {"mean": 0.75, "count": 2}}}
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = (Path(folder) / "metrics.jsonl").write_text(json.dumps(line) + "\n" + '{"schema": 2, "st')
    ...     ((step, averages),) = read_run(Path(folder)).records
    >>> step, averages["entropy"].mean
    (5, 0.75)
    """
    metrics = folder / "metrics.jsonl"
    try:
        label, seed = _identity(folder)
        metrics.stat()
        lines = read_lines(metrics, "repair or remove the line")
        records = tuple(_record(data, f"'{metrics}', line {number}") for number, data in lines)
    except OSError as error:
        raise WellcondError(f"'{folder}' is not the folder of a run that can be read: {error}") from error
    if not records:
        raise WellcondError(f"'{metrics}' has no complete record yet")
    return RecordedRun(label, seed, records)


def _identity(folder: Path) -> tuple[str, int | None]:
    path = folder / "run.json"
    if not check_path(path).exists():
        return folder.resolve().name, None
    about = read_json(path, strict=True)
    _check_schema(about, f"'{path}'")
    label, seed = about.get("label", folder.resolve().name), about.get("seed")
    if not isinstance(label, str) or not (seed is None or type(seed) is int):
        raise WellcondError(f"'{path}': label must be text and seed a whole number; got {label!r} and {seed!r}")
    return label, seed


def _check_schema(data: Any, where: str) -> None:
    schema = data.get("schema") if isinstance(data, dict) else None
    if type(schema) is not int:
        raise WellcondError(f"{where} was not written by a monitor: it has no schema number")
    if schema > SCHEMA:
        raise WellcondError(f"{where} has schema {schema}, but this wellcond reads up to {SCHEMA}: upgrade wellcond")


def _record(data: Any, where: str) -> tuple[int, Summaries]:
    """Read one line of a monitor."""
    _check_schema(data, where)
    try:
        if type(data["step"]) is not int:
            raise TypeError(f"step {data['step']!r} is not a whole number")
        return data["step"], read_summaries(data)
    except (AttributeError, KeyError, OverflowError, TypeError, ValueError) as error:
        raise WellcondError(f"{where} is not a monitor's record ({type(error).__name__}: {error})") from error
