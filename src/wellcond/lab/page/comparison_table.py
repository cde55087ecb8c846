"""The table of a comparison: one row an arm, every cell a text."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from wellcond._core.numbers import three_digits
from wellcond.diagnosis.quantities import HEADLINES
from wellcond.lab.page.comparison_figures import page_order

NO_NUMBER = three_digits(None)


def headlines(comparison: Mapping[str, Any]) -> dict[str, tuple[str, str]]:
    """Return label and title of the quantities that have a column, by their keys; one that nobody monitored has none.

    >>> headlines({"arms": [{"monitored": {"entropy": (1.0, 0.5)}}, {"monitored": {}}]})
    {'entropy': ('entropy', 'entropy ÷ log of visible keys')}
    """
    monitored = {key for record in comparison["arms"] for key in record["monitored"]}
    return {one.key: (one.label, one.title) for one in HEADLINES if one.key in monitored}


def table_rows(comparison: Mapping[str, Any], verdicts: Mapping[str, tuple[str, str, str]]) -> list[dict[str, Any]]:
    """Return the rows in the page's order.

    `verdicts` are of each arm against the baseline: in a word or three, in a sentence, and what it does not say.
    """
    records, shown = {record["arm"]: record for record in comparison["arms"]}, headlines(comparison)
    results = [value for record in records.values() for value in record["results"].values()]
    places = _decimals([record["sd"] for record in records.values() if record["sd"]])
    return [
        {
            "name": name,
            "control_of": records[name]["control_of"],
            "control": records[name]["control"],
            "baseline": name == comparison["baseline"],
            "dots": _dots(records[name]["results"], results),
            "result": _spread(records[name]["mean"], records[name]["sd"], places),
            "difference": difference_cell(records[name]["to_baseline"]),
            "verdict": verdicts.get(name, ("", "", "")),
            "steps": _steps(records[name]),
            "time": NO_NUMBER if records[name]["time_ratio"] is None else f"{records[name]['time_ratio']:.2f} ×",
            "courses": [_course(records[name]["monitored"].get(key)) for key in shown],
            "unfinished": _unfinished(records[name]["runs"]),
        }
        for name in page_order(comparison)
    ]


def _dots(own: Mapping[str, float], everyone: Sequence[float]) -> list[tuple[float, str]]:
    """Return where each seed's result lies between the worst and the best of all, in percent, and what it is.

    >>> _dots({"0": 0.5, "1": 0.75}, [0.5, 0.75, 1.0])
    [(0.0, 'seed 0: 0.5'), (50.0, 'seed 1: 0.75')]
    """
    low, size = min(everyone, default=0.0), max(everyone, default=0.0) - min(everyone, default=0.0)
    return [
        (round(100 * (value - low) / size, 2) if size else 50.0, f"seed {seed}: {value:.4g}")
        for seed, value in own.items()
    ]


def _spread(mean: float | None, sd: float | None, places: int | None) -> str:
    """Write mean and deviation.

    >>> _spread(0.81249, 0.0123, 3), _spread(12.0, None, 3), _spread(1.5e9, 2e7, None), _spread(None, None, 3)
    ('0.812 ± 0.012', '12.000', '1.5e+09 ± 2e+07', '–')
    """
    if mean is None:
        return NO_NUMBER
    if places is None:
        return f"{mean:.4g}" if sd is None else f"{mean:.4g} ± {sd:.2g}"
    return f"{mean:.{places}f}" if sd is None else f"{mean:.{places}f} ± {sd:.{places}f}"


def _decimals(deviations: Sequence[float]) -> int | None:
    """Choose places behind the point that all rows share, so that they can be compared; None for very unlike numbers.

    >>> _decimals([0.0123, 0.02]), _decimals([0.0001, 0.2]), _decimals([])
    (3, 3, None)
    """
    if not deviations or not 1e-6 < max(deviations) < 1e4:
        return None
    two_digits = [1 - math.floor(math.log10(sd)) for sd in (min(deviations), max(deviations))]
    return max(0, min(two_digits[0], two_digits[1] + 1))


def difference_cell(paired: Mapping[str, Any] | None) -> tuple[str, str]:
    """Write mean and interval."""
    if paired is None or paired["mean"] is None:
        return (NO_NUMBER, "")
    if paired["interval"] is None:
        return (f"{paired['mean']:+.3g}", "no interval")
    low, high = paired["interval"]
    return (f"{paired['mean']:+.3g}", f"[{low:+.3g}, {high:+.3g}]")


def _steps(record: Mapping[str, Any]) -> tuple[str, str]:
    """Write the median, and how many seeds got there."""
    if not record["steps_to_reach"]:
        return (NO_NUMBER, "")
    median, seeds = record["median_steps"], len(record["steps_to_reach"])
    reached = f"{record['reached']} of {seeds} seed{'' if seeds == 1 else 's'}"
    return ("not reached" if median is None else f"{median:g}", reached)


def _course(ends: Sequence[float | None] | None) -> str:
    """Write from where to where.

    >>> _course((12345.6, 210.0)), _course((1.0, None)), _course(None)
    ('1.23e4 → 210', '1 → –', '–')
    """
    return NO_NUMBER if ends is None else " → ".join(map(_three, ends))


def _three(value: float | None) -> str:
    return three_digits(value).replace("e+0", "e").replace("e+", "e").replace("e-0", "e-")


def _unfinished(runs: Mapping[str, int]) -> str:
    """Tell what became of runs that have no result.

    >>> _unfinished({"finished": 2, "diverged": 1, "crashed": 0}), _unfinished({"finished": 3})
    ('1 diverged', '')
    """
    words = {"running": "interrupted"}
    lost = {words.get(status, status): count for status, count in runs.items() if status != "finished" and count}
    return ", ".join(f"{count} {status}" for status, count in lost.items())
