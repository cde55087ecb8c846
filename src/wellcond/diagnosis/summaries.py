"""A record in a few numbers, by the names of the quantities: what run folders keep, trackers get and figures draw."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from wellcond._core.numbers import average
from wellcond.diagnosis.quantities import BY_KEY, BY_NAME, QUANTITIES
from wellcond.diagnosis.quantity import Quantity
from wellcond.diagnosis.readings import NOT_FINITE, UNMEASURED, LayerView, Reading, Record


@dataclass(frozen=True)
class Summary:
    """One quantity over the layers and heads of a record."""

    mean: float | None  # of the readings that count; None if there are none
    min: float | None = None
    max: float | None = None
    count: int = 1  # how many count
    left_out: Mapping[str, int] = field(default_factory=dict)  # how many do not, by reason


def summarize(layers: Sequence[Record]) -> dict[str, Summary]:
    """Summarize every quantity that is logged or drawn, over the records of layers.

    >>> found = summarize([{"heads": [{"entropy": 0.5}, {"entropy": 1.0}, {"entropy": float("nan")}]}])
    >>> found["entropy"]
    Summary(mean=0.75, min=0.5, max=1.0, count=2, left_out={'not finite': 1})
    """
    views = [LayerView(layer) for layer in layers]
    wanted = [one for one in QUANTITIES if one.logged or one.figure]
    found = {one.key: _summary(one, _readings(one, views)) for one in wanted}
    return {key: summary for key, summary in found.items() if summary.count or summary.left_out}


def _readings(quantity: Quantity, views: Iterable[LayerView]) -> list[Reading]:
    """Read all layers; where C is 0 in some of them, W is what they use, so both averages are of the same heads."""
    pairs = [(view, record) for view in views for record in view.records(quantity.source, quantity.role)]
    found = [quantity.read(record, view.layer) for view, record in pairs]
    if quantity.otherwise and any(found):
        read = BY_KEY[quantity.otherwise].read
        found = [one or read(record, view.layer) for one, (view, record) in zip(found, pairs, strict=True)]
    return [one for one in found if one is not None and one.status != UNMEASURED]


def _summary(quantity: Quantity, found: Iterable[Reading]) -> Summary:
    values: list[float] = []
    left_out: Counter[str] = Counter()
    for one in found:
        exact = quantity.kept is None or one.status in quantity.kept
        if one.value is not None and math.isfinite(one.value) and exact:
            values.append(one.value)
        else:
            left_out[one.status if one.value is None or not exact else NOT_FINITE] += 1
    ends = min(values, default=None), max(values, default=None)
    return Summary(average(values), *ends, len(values), dict(left_out))


def to_plain(found: Mapping[str, Summary]) -> dict[str, dict[str, Any]]:
    """Return summaries as a line of `metrics.jsonl` has them; what is left out is said where there is any."""
    return {
        key: {name: value for name, value in asdict(one).items() if name != "left_out" or value}
        for key, one in found.items()
    }


def from_plain(found: Mapping[str, Mapping[str, Any]]) -> dict[str, Summary]:
    """Read what `to_plain` wrote.

    >>> from_plain(to_plain({"entropy": Summary(0.5, 0.25, 0.75, 2)}))["entropy"].mean
    0.5
    """
    return {key: _read(key, one) for key, one in dict(found).items()}


def _read(key: str, one: Any) -> Summary:
    if not isinstance(one, Mapping) or not isinstance(one.get("left_out", {}), Mapping):
        raise TypeError(f"the summary of {key} is {one!r:.60}")
    mean, low, high = (None if one.get(name) is None else float(one[name]) for name in ("mean", "min", "max"))
    return Summary(mean, low, high, int(one["count"]), {str(why): int(n) for why, n in one.get("left_out", {}).items()})


def from_statistics(found: Mapping[str, Any]) -> dict[str, Summary]:
    """Read the numbers that a comparison wrote before schema 2, by the names of `Scalars`; it kept nothing else.

    >>> from_statistics({"entropy": 0.5, "entropy_min": 0.25})["entropy"]
    Summary(mean=0.5, min=0.25, max=None, count=1, left_out={})
    """
    kept: dict[str, Summary] = {}
    for name, value in found.items():
        if value is not None:
            one, number = BY_NAME.get(name), float(value)
            key, statistic = (one.key, one.names[name]) if one else (name, "mean")
            lost = {} if math.isfinite(number) else {"count": 0, "left_out": {NOT_FINITE: 1}}
            kept[key] = replace(kept.get(key, Summary(None)), **lost or {statistic: number})  # type: ignore[arg-type]
    return kept


class Scalars(dict[str, float]):
    """Statistics by name; prints as one line."""

    def __init__(self, head: str, values: Mapping[str, float]) -> None:
        super().__init__(values)
        self.head = head

    def __str__(self) -> str:
        named = (f"{name.removeprefix('wellcond/')} {value:.3g}" for name, value in self.items())
        return "  ".join([self.head, *named])


def statistics_of(found: Mapping[str, Summary]) -> dict[str, float]:
    """Return the statistics that a tracker gets, by their names; NaN where anything is not finite.

    >>> statistics_of(summarize([{"heads": [{"entropy": 0.5, "max_logit": 3.0}], "cosine": 0.25}]))
    {'entropy': 0.5, 'entropy_min': 0.5, 'cosine': 0.25, 'max_logit': 3.0}
    """
    values = {
        name: math.nan if NOT_FINITE in summary.left_out else getattr(summary, statistic)
        for key, summary in found.items()
        for name, statistic in (BY_KEY[key].names if key in BY_KEY else {key: "mean"}).items()
    }
    return {name: value for name, value in values.items() if value is not None}


def scalars(record: Record) -> Scalars:
    """Return the statistics of a monitor's record, for a tracker or a line on the screen."""
    values = {f"wellcond/{name}": value for name, value in statistics_of(from_plain(record["quantities"])).items()}
    return Scalars(f"step {record['step']} {record['tier']}", values)
