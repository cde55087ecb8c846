"""Curves of a comparison: of each scheme the mean and range over its finished seeds; other runs one by one."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from statistics import fmean
from typing import TYPE_CHECKING, Any

from wellcond.report.panels import NAMES

if TYPE_CHECKING:
    from wellcond.lab.outcome import Outcome

Points = list[tuple[int, float | None]]

FIRST = ("kappa_jacobian", "entropy")  # each has a panel; of singular values one is chosen, and one of the rest
LABELS = {
    "kappa_jacobian": "κ(J), condition number of attention’s Jacobian",
    "entropy": NAMES["entropy"],
    "entropy_min": "entropy of the sharpest head ÷ log of visible keys",
    "max_logit": "largest attention logit",
    "cosine": "cosine between tokens",
    "bound": "bound of the papers on κ(J)",
}
SYMBOLS = {"kappa": "κ", "sigma_min": "σ_min", "sigma_max": "σ_max"}
WEIGHTS = {"query": "W_Q", "key": "W_K", "value": "W_V", "output": "W_O"}
NO_QUANTITY = ("kind", "step", "seed", "schema", "tier", "seconds")
MOST = 400  # points of a training curve: no screen shows more
DECADES = 20.0  # ratio of the largest to the smallest from which an axis is logarithmic


def training_curve(outcomes: Sequence[Outcome], schemes: Sequence[str]) -> dict[str, Any]:
    """The training loss; long curves are averaged over neighbouring entries."""
    return _curve("training loss", outcomes, schemes, lambda run: _thin(_points(run.train)))


def test_curve(outcomes: Sequence[Outcome], schemes: Sequence[str], metric: str) -> dict[str, Any]:
    """The test metric, whole."""
    higher = bool(outcomes) and outcomes[0].higher_is_better
    log = False if higher else None  # an accuracy has limits, a perplexity has not
    return _curve(f"{metric} on test data", outcomes, schemes, lambda run: _points(run.test), log=log)


def monitor_curves(outcomes: Sequence[Outcome], schemes: Sequence[str]) -> list[dict[str, Any]]:
    """Every quantity that a monitor recorded, κ(J) and entropy first."""
    found = {
        name: None
        for run in outcomes
        for record in run.monitor
        for name, value in record.items()
        if name not in NO_QUANTITY and number(value) is not None
    }
    names = [name for name in FIRST if name in found] + [name for name in found if name not in FIRST]
    curves = []
    for name in names:
        log = True if name.startswith(("kappa", "bound")) else None
        curve = _curve(quantity_label(name), outcomes, schemes, _recorded(name), log=log)
        group = "first" if name in FIRST else "sigma" if name.startswith("sigma") else "rest"
        curves.append({**curve, "name": name, "group": group})
    return curves


def quantity_label(name: str) -> str:
    """What a monitored quantity is called.

    >>> quantity_label("sigma_min_query"), quantity_label("kappa_value"), quantity_label("my_own")
    ('σ_min(W_Q)', 'κ(W_V)', 'my own')
    """
    if name in LABELS:
        return LABELS[name]
    for prefix, symbol in SYMBOLS.items():
        role = name.removeprefix(prefix).removeprefix("_")
        if name.startswith(prefix) and (not role or role in WEIGHTS):
            return f"{symbol}({WEIGHTS[role]})" if role else f"{symbol} of the weights"
    return name.replace("_", " ")


def number(value: Any) -> float | None:
    """A finite number, None where there is none: JSON of this library writes infinities as strings.

    >>> number(3), number("inf"), number(True), number(None)
    (3.0, None, None, None)
    """
    known = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
    return float(value) if known else None


def _recorded(name: str) -> Callable[[Outcome], Points]:
    return lambda run: _points((record["step"], record[name]) for record in run.monitor if name in record)


def _points(pairs: Iterable[tuple[int, Any]]) -> Points:
    """In order; of a step that was recorded again after an interruption, the last record counts."""
    return sorted({step: number(value) for step, value in pairs}.items())


def _thin(points: Points) -> Points:
    """Means over as many neighbours as leave `MOST` points.

    >>> _thin([(step, float(step)) for step in range(800)])[:2]
    [(1, 0.5), (3, 2.5)]
    """
    stride = -(-len(points) // MOST) or 1
    groups = [points[start : start + stride] for start in range(0, len(points), stride)]
    return [(group[-1][0], _mean([value for _, value in group])) for group in groups]


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return fmean(known) if known and len(known) == len(values) else None


def _curve(
    label: str,
    outcomes: Sequence[Outcome],
    schemes: Sequence[str],
    read: Callable[[Outcome], Points],
    log: bool | None = None,
) -> dict[str, Any]:
    """Bands of the finished runs, lines of the others; `log` is decided by the numbers if it is None."""
    bands: list[dict[str, Any]] = []
    lines: list[dict[str, Any]] = []
    for index, scheme in enumerate(schemes):
        own = [(run, read(run)) for run in outcomes if run.scheme == scheme]
        finished = [points for run, points in own if run.status == "finished" and points]
        if finished:
            bands.append({"scheme": index, **_band(finished)})
        lines += [
            {
                "scheme": index,
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
    wide = positive and max(known) > DECADES * min(known)
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
