"""Runs as averages over layers and heads at each step, and how a monitor's folder becomes one."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from wellcond.diagnose.records import ROLES, SCHEMA
from wellcond.errors import WellcondError
from wellcond.file_names import check_path
from wellcond.jacobian.result import DEFICIENT, LOWER_BOUND, OK, UNRESOLVED
from wellcond.json_files import parse_json, read_json

STORED, USED = "W", "W + C"


class Quantity(NamedTuple):
    """`sigma_min`, `sigma_max` or `condition` of a role of W or W + C; or `jacobian` (blocks side by side),
    `jacobian_at_least`, `jacobian_vertical`, `bound` or `entropy`; of a comparison also `loss` (of training) and `test`
    (its metric).
    """

    name: str
    role: str = ""
    weight: str = ""


class Average(NamedTuple):
    """Plain mean of what is known and finite at one step; how many that are, and how many are left out, by reason."""

    mean: float | None
    averaged: int
    left_out: Mapping[str, int]


@dataclass(frozen=True)
class Run:
    """One training run.

    Args:
        label: what is compared.
        seed: which repetition.
        records: step and averages of each line of `metrics.jsonl`, in its order.
        control_of: the label whose scale this one has, if it is a control.
        epoch: steps of an epoch, where that is known.
    """

    label: str
    seed: int | None
    records: tuple[tuple[int, Mapping[Quantity, Average]], ...]
    control_of: str | None = None
    epoch: float | None = None


@dataclass(frozen=True)
class Series:
    """One quantity of one label through training.

    Args:
        label: what is compared.
        quantity: what was averaged.
        seeds: of the runs.
        steps: those that all seeds have.
        mean: over seeds; None where a seed has nothing to average.
        deviation: sample standard deviation over seeds; None for a single seed.
        averaged: how many entries of all seeds are in the mean; a comparison records one a seed, itself a mean.
        left_out: how many are not.
        reasons: how many are not over all steps, by reason.
        control_of: the label whose scale this one has, if it is a control.
        epoch: steps of an epoch, where that is known and the same for all seeds.
    """

    label: str
    quantity: Quantity
    seeds: tuple[int | None, ...]
    steps: tuple[int, ...]
    mean: tuple[float | None, ...]
    deviation: tuple[float | None, ...] | None
    averaged: tuple[int, ...]
    left_out: tuple[int, ...]
    reasons: Mapping[str, int]
    control_of: str | None = None
    epoch: float | None = None


def told_apart(found: Sequence[tuple[Path, Run]]) -> list[Run]:
    """Runs of several folders, those of a label that occurs twice with one seed under their folders' names.

    A monitor's default label is the model's class, which the runs of a comparison by hand share.

    Args:
        found: folder and run; a folder that is given twice keeps its label, for `distinct` to refuse.

    >>> runs = [(Path("x/a"), Run("ViT", 0, ())), (Path("x/b"), Run("ViT", 0, ())), (Path("c"), Run("GPT", 1, ()))]
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


def distinct(found: Iterable[tuple[Path, Run]]) -> list[Run]:
    """The runs of several folders; each label and seed once, since a run that is read twice is no second sample."""
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


def read_run(folder: Path) -> Run:
    r"""Read `run.json`, if there is one, and `metrics.jsonl`, whose last line may have been cut off by a crash.

    >>> import json, tempfile
    >>> line = {"schema": 1, "step": 5, "tier": "attention", "layers": [{"heads": [{"entropy": 0.5}, {"entropy": 1}]}]}
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = (Path(folder) / "metrics.jsonl").write_text(json.dumps(line) + "\n" + '{"schema": 1, "st')
    ...     ((step, averages),) = read_run(Path(folder)).records
    >>> step, averages[Quantity("entropy")].mean
    (5, 0.75)
    """
    metrics = folder / "metrics.jsonl"
    try:
        label, seed = _identity(folder)
        records = tuple(_record(data, f"'{metrics}', line {number}") for number, data in _lines(metrics))
    except OSError as error:
        raise WellcondError(f"'{folder}' is not the folder of a run that can be read: {error}") from error
    if not records:
        raise WellcondError(f"'{metrics}' has no complete record yet")
    return Run(label, seed, records)


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


def _lines(path: Path) -> Iterator[tuple[int, Any]]:
    """Number and contents of each line; what is not JSON is refused as soon as another line follows it."""
    broken = None
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            if not line.strip():
                continue
            if broken is not None:
                raise broken
            try:
                data = parse_json(line, f"'{path}', line {number}", "repair or remove the line", strict=True)
            except WellcondError as error:
                broken = error
            else:
                yield number, data


def _check_schema(data: Any, where: str) -> None:
    schema = data.get("schema") if isinstance(data, dict) else None
    if type(schema) is not int:
        raise WellcondError(f"{where} was not written by a monitor: it has no schema number")
    if schema > SCHEMA:
        raise WellcondError(f"{where} has schema {schema}, but this wellcond reads up to {SCHEMA}: upgrade wellcond")


def _record(data: Any, where: str) -> tuple[int, Mapping[Quantity, Average]]:
    """Averaged at once: what a long run records of each head would not fit in memory."""
    _check_schema(data, where)
    kept: dict[Quantity, list[float]] = {}
    left_out: dict[Quantity, Counter[str]] = {}
    try:
        step = data["step"]
        if type(step) is not int:
            raise TypeError(f"step {step!r} is not a whole number")
        for quantity, value, reason in _entries(data["layers"]):
            number = math.nan if value is None else float(value)  # infinities are strings, which float reads
            values, reasons = kept.setdefault(quantity, []), left_out.setdefault(quantity, Counter())
            if reason is None and math.isfinite(number):
                values.append(number)
            else:
                reasons[reason or "not finite"] += 1
    except (AttributeError, KeyError, OverflowError, TypeError, ValueError) as error:
        raise WellcondError(f"{where} is not a monitor's record ({type(error).__name__}: {error})") from error
    return step, {quantity: Average(mean(kept[quantity]), len(kept[quantity]), left_out[quantity]) for quantity in kept}


def mean(values: Sequence[float]) -> float | None:
    """Divided before it is summed: the bound of nearly one-hot attention comes close to the largest float."""
    return math.fsum(value / len(values) for value in values) if values else None


Entry = tuple[Quantity, Any, str | None]  # a number as it was read, and why it is left out (None if it is not)


def _entries(layers: Sequence[Mapping[str, Any]]) -> Iterator[Entry]:
    weights = [weight for layer in layers for weight in layer.get("weights") or ()]
    heads = [weight for weight in weights if weight["head"] is not None and weight["role"] in ROLES]
    conditioned = {weight["role"] for weight in heads if weight.get("stored") is not None}
    for weight in heads:
        role, raw, stored = weight["role"], weight["raw"], weight.get("stored")
        yield from _spectrum(role, STORED, raw if stored is None else stored)
        if role in conditioned:  # C is 0 in the other layers: both averages are of the same heads
            yield from _spectrum(role, USED, raw)
    for layer in layers:
        for head in layer.get("heads") or ():
            if head["entropy"] is not None:  # no softmax over tokens: nothing to leave out
                yield Quantity("entropy"), head["entropy"], None
        for jacobian in layer.get("jacobian") or ():
            yield from _jacobian(jacobian["condition"], jacobian.get("bound"))


def _spectrum(role: str, weight: str, spectrum: Mapping[str, Any]) -> Iterator[Entry]:
    condition = spectrum["condition"]
    yield Quantity("sigma_min", role, weight), spectrum["sigma_min"], None
    yield Quantity("sigma_max", role, weight), spectrum["sigma_max"], None
    yield Quantity("condition", role, weight), condition, DEFICIENT if condition is None else None


def _jacobian(condition: Mapping[str, Any], bound: Mapping[str, Any] | None) -> Iterator[Entry]:
    value, status = condition["value"], condition["status"]
    yield Quantity("jacobian"), value, None if status == OK else status
    # each of these values is exact or a lower bound, so that their mean is a lower bound of the mean
    yield Quantity("jacobian_at_least"), value, None if status in (OK, LOWER_BOUND, UNRESOLVED) else status
    if bound is None:
        return
    yield Quantity("bound"), bound["value"], UNRESOLVED if bound["value"] is None else None
    vertical = bound.get("vertical")
    if vertical is not None:
        yield Quantity("jacobian_vertical"), vertical["value"], None if vertical["status"] == OK else vertical["status"]
