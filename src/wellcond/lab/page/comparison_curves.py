"""Curves of a comparison: of each arm the mean and range over its finished seeds; other runs one by one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from statistics import fmean
from typing import TYPE_CHECKING, Any

from wellcond._core.numbers import finite_number
from wellcond.diagnosis.quantities import BY_NAME, HEADLINES

if TYPE_CHECKING:
    from wellcond.lab.analysis.outcome import Outcome

Points = list[tuple[int, float | None]]

NOT_QUANTITIES = ("kind", "step", "seed", "schema", "tier", "seconds")  # entries of a record
MAX_POINTS = 400  # of a training curve: no screen shows more
EXTREMES = {"min": ", lowest of all heads", "max": ", highest of all heads"}
LOG_FROM_RATIO = 20.0  # of the largest to the smallest number from which an axis is logarithmic


def training_curve(outcomes: Sequence[Outcome], arms: Sequence[str]) -> dict[str, Any]:
    """Return the training loss; long curves are averaged over neighbouring entries."""
    return _curve("training loss", outcomes, arms, lambda run: _thin(_points(run.train)))


def test_curve(outcomes: Sequence[Outcome], arms: Sequence[str], metric: str) -> dict[str, Any]:
    """Return the test metric, whole."""
    higher = bool(outcomes) and outcomes[0].higher_is_better
    log = False if higher else None  # an accuracy has limits, a perplexity has not
    return _curve(f"{metric} on test data", outcomes, arms, lambda run: _points(run.test), log=log)


def monitor_curves(outcomes: Sequence[Outcome], arms: Sequence[str]) -> list[dict[str, Any]]:
    """Return every quantity that a monitor recorded, those first that a comparison is about."""
    found = {
        name: None
        for run in outcomes
        for record in run.monitor
        for name, value in record.items()
        if name not in NOT_QUANTITIES and finite_number(value) is not None
    }
    first = [one.key for one in HEADLINES if one.key in found]
    curves = []
    for name in [*first, *(name for name in found if name not in first)]:
        known = BY_NAME.get(name)
        curve = _curve(statistic_title(name), outcomes, arms, _recorded(name), log=known.log if known else None)
        # Each headline has a panel; of singular values one is chosen, and one of the rest.
        group = "first" if name in first else "sigma" if name.startswith("sigma") else "rest"
        curves.append({**curve, "name": name, "group": group})
    return curves


def statistic_title(name: str) -> str:
    """Return the title of a statistic of a monitored quantity.

    >>> statistic_title("sigma_min_query"), statistic_title("kappa_value"), statistic_title("my_own")
    ('σ_min(W_Q)', 'κ(W_V)', 'my own')
    >>> statistic_title("entropy_min"), statistic_title("max_logit")
    ('entropy ÷ log of visible keys, lowest of all heads', 'largest attention logit')
    """
    if name not in BY_NAME:
        return name.replace("_", " ")
    one = BY_NAME[name]
    return one.title if name == one.key else one.title + EXTREMES[one.names[name]]


def _recorded(name: str) -> Callable[[Outcome], Points]:
    return lambda run: _points((record["step"], record[name]) for record in run.monitor if name in record)


def _points(pairs: Iterable[tuple[int, Any]]) -> Points:
    """In order; of a step that was recorded again after an interruption, the last record counts."""
    return sorted({step: finite_number(value) for step, value in pairs}.items())


def _thin(points: Points) -> Points:
    """Average over as many neighbours as leave `MAX_POINTS`.

    >>> _thin([(step, float(step)) for step in range(800)])[:2]
    [(1, 0.5), (3, 2.5)]
    """
    stride = -(-len(points) // MAX_POINTS) or 1
    groups = [points[start : start + stride] for start in range(0, len(points), stride)]
    return [(group[-1][0], _whole_mean([value for _, value in group])) for group in groups]


def _whole_mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return fmean(known) if known and len(known) == len(values) else None


def _curve(
    label: str,
    outcomes: Sequence[Outcome],
    arms: Sequence[str],
    read: Callable[[Outcome], Points],
    log: bool | None = None,
) -> dict[str, Any]:
    """Bands of the finished runs, lines of the others; `log` is decided by the numbers if it is None."""
    bands: list[dict[str, Any]] = []
    lines: list[dict[str, Any]] = []
    for index, arm in enumerate(arms):
        own = [(run, read(run)) for run in outcomes if run.arm == arm]
        finished = [points for run, points in own if run.status == "finished" and points]
        if finished:
            bands.append({"arm": index, **_band(finished)})
        lines += [
            {
                "arm": index,
                "seed": run.seed,
                "status": run.status,
                "x": [step for step, _ in points],
                "y": [value for _, value in points],
            }
            for run, points in own
            if run.status != "finished" and points
        ]
    values = [v for band in bands for v in band["low"] + band["high"]] + [v for line in lines for v in line["y"]]
    known = [value for value in values if value is not None]
    positive = bool(known) and min(known) > 0
    wide = positive and max(known) > LOG_FROM_RATIO * min(known)
    return {"label": label, "log": positive and (wide if log is None else log), "bands": bands, "lines": lines}


def _band(runs: Sequence[Points]) -> dict[str, Any]:
    """Mean, lowest and highest at the steps that all runs have; a gap where one has no number.

    >>> band = _band([[(0, 1.0), (10, 3.0)], [(0, 2.0), (10, None), (20, 1.0)]])
    >>> band["x"], band["mean"], band["low"], band["high"], band["seeds"]
    ([0, 10], [1.5, None], [1.0, None], [2.0, None], 2)
    """
    tables = [dict(points) for points in runs]
    steps = sorted(set.intersection(*map(set, tables)))
    columns = [[table[step] for table in tables] for step in steps]
    whole = [[value for value in column if value is not None] for column in columns]
    whole = [column if len(column) == len(runs) else [] for column in whole]
    return {
        "x": steps,
        "mean": [fmean(column) if column else None for column in whole],
        "low": [min(column, default=None) for column in whole],
        "high": [max(column, default=None) for column in whole],
        "seeds": len(runs),
    }
