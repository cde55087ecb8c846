"""A comparison's folder as runs to draw: what the laboratory recorded of each, means over layers and heads already."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from wellcond.diagnose.records import ROLES
from wellcond.errors import WellcondError
from wellcond.file_names import check_path
from wellcond.json_files import read_object
from wellcond.report.runs import STORED, USED, Average, Quantity, Run

if TYPE_CHECKING:
    from wellcond.lab.outcome import Outcome
    from wellcond.lab.statistics import Comparison

MARK = "comparison.json"
SPECTRA = {"kappa": "condition", "sigma_min": "sigma_min", "sigma_max": "sigma_max"}
PLAIN = {"kappa_jacobian": Quantity("jacobian"), "bound": Quantity("bound"), "entropy": Quantity("entropy")}


@dataclass(frozen=True)
class Compared:
    """A comparison.

    Args:
        name: of its folder.
        runs: those that finished; with the others, the mean would be one of fewer seeds at each later step.
        unfinished: (scheme, seed, status) of the others.
        schemes: all of them, in the recipe's order.
        metric: of the test.
        higher_is_better: whether more of it is better.
        last: steps of training.
        epoch: steps of an epoch; None in folders that do not say.
        statistics: of all runs; None where the baseline has no result to compare with.
    """

    name: str
    runs: tuple[Run, ...]
    unfinished: tuple[tuple[str, int, str], ...]
    schemes: tuple[str, ...]
    metric: str
    higher_is_better: bool
    last: int
    epoch: float | None
    statistics: Comparison | None


def is_comparison(folder: Path) -> bool:
    """Whether a folder is a comparison's; else it may be a monitor's."""
    return check_path(folder / MARK).exists()


def read_comparison(folder: Path) -> Compared:
    """Read all runs of a comparison, also of one that is still running.

    The weights are those that the layers use, W or W + C. The recorded means leave out, without a count, heads whose κ
    has no value, and take lower bounds of κ(J) as they are.

    Args:
        folder: with `comparison.json` and `runs/`.
    """
    try:
        from wellcond.lab.outcome import read_outcome, run_folders
        from wellcond.lab.statistics import compare
    except ImportError as error:
        raise WellcondError(f"a comparison's figures need scipy ({error}): pip install 'wellcond[lab]'") from error
    baseline, epoch = _about(folder)
    paths = run_folders(folder)
    if not paths:
        raise WellcondError(f"'{folder}' has no run yet: give the --out folder of a comparison that has begun")
    outcomes = [read_outcome(path) for path in paths]
    names = _monitored(outcomes)
    judged = compare(outcomes, baseline) if any(run.scheme == baseline for run in outcomes) else None
    return Compared(
        name=folder.resolve().name,
        runs=tuple(
            _run(outcome, path, names, epoch)
            for outcome, path in zip(outcomes, paths, strict=True)
            if outcome.status == "finished"
        ),
        unfinished=tuple((run.scheme, run.seed, run.status) for run in outcomes if run.status != "finished"),
        schemes=tuple(dict.fromkeys(run.scheme for run in outcomes)),
        metric=outcomes[0].metric,
        higher_is_better=outcomes[0].higher_is_better,
        last=max(run.steps for run in outcomes),
        epoch=epoch,
        statistics=judged if judged is not None and judged[baseline].results else None,
    )


def _about(folder: Path) -> tuple[str, float | None]:
    """The baseline's name, and the steps of an epoch."""
    about = read_about(folder)
    baseline, epoch = about.get("baseline", "default"), about.get("epoch")
    if type(baseline) is not str or not (epoch is None or (type(epoch) in (int, float) and 0 < epoch < math.inf)):
        raise WellcondError(
            f"'{folder / MARK}': baseline is a name and epoch a number of steps; got {baseline!r:.60} and {epoch!r:.60}"
        )
    return baseline, epoch


def read_about(folder: Path) -> dict[str, Any]:
    """What `comparison.json` says of a comparison as a whole, each part of the kind that it should be."""
    about = read_object(folder / MARK, "give the --out folder of a comparison")
    kinds: dict[str, tuple[type, ...]] = {"title": (str,), "model": (str,), "command": (str, list), "baseline": (str,)}
    kinds |= {"task": (dict,), "versions": (dict,), "machine": (dict,), "diagram": (dict, type(None))}
    kinds |= {"parameters": (int, type(None)), "started": (str,)}
    for name, allowed in kinds.items():
        if name in about and type(about[name]) not in allowed:
            words = " or ".join("null" if kind is type(None) else kind.__name__ for kind in allowed)
            raise WellcondError(f"'{folder / MARK}': {name} is a {words}, got {about[name]!r:.60}")
    return about


def _monitored(outcomes: Iterable[Outcome]) -> list[str]:
    """Names of what was recorded; with σ also κ, which no record has where all weights lack rank."""
    found = {name for run in outcomes for record in run.monitor for name in record}
    found |= {name.replace("sigma_min", "kappa") for name in found if name.startswith("sigma_min_")}
    return [name for name in (*PLAIN, *(f"{kind}_{role}" for kind in SPECTRA for role in ROLES)) if name in found]


def _run(outcome: Outcome, folder: Path, names: Sequence[str], epoch: float | None) -> Run:
    weight = _weight(folder)
    records: list[tuple[int, Mapping[Quantity, Average]]] = [
        (record["step"], {_quantity(name, weight): _average(record.get(name)) for name in names})
        for record in outcome.monitor
    ]
    records += [(step, {Quantity("loss"): _average(loss)}) for step, loss in outcome.train]
    records += [(step, {Quantity("test"): _average(value)}) for step, value in outcome.test]
    return Run(outcome.scheme, outcome.seed, tuple(records), outcome.control_of, epoch)


def _weight(folder: Path) -> str:
    """Which weight a run's monitor saw: W + C where the scheme conditions weights."""
    from wellcond.spectral.condition import METHODS
    from wellcond.spectral.corrections import WeightConditioning

    arm = read_object(folder / "run.json").get("arm") or {}
    method = METHODS.get(str(arm.get("condition", "")))
    return USED if method is not None and issubclass(method, WeightConditioning) else STORED


def _quantity(name: str, weight: str) -> Quantity:
    """What the laboratory calls by a name.

    >>> _quantity("kappa_query", "W + C"), _quantity("kappa_jacobian", "W + C").name
    (Quantity(name='condition', role='query', weight='W + C'), 'jacobian')
    """
    if name in PLAIN:
        return PLAIN[name]
    kind, _, role = name.rpartition("_")
    return Quantity(SPECTRA[kind], role, weight)


def _average(value: Any) -> Average:
    """One recorded number; infinities are words in JSON, and a record has no entry where no head has a value.

    >>> _average(2), _average("inf").left_out, _average(None).left_out
    (Average(mean=2.0, averaged=1, left_out={}), {'not finite': 1}, {'without a value': 1})
    """
    if value is None:
        return Average(None, 0, {"without a value": 1})
    number = float(value)
    return Average(number, 1, {}) if math.isfinite(number) else Average(None, 0, {"not finite": 1})
