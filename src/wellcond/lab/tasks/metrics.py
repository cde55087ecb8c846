"""Metrics as sums that add over batches, so that an epoch's figure does not depend on how it was cut into batches."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from wellcond.lab.tasks.detection.average_precision import Record, precisions, runs

Sums = Mapping[str, float]
IGNORED = -100  # the target of a token that is not predicted; torch's own convention


@dataclass(frozen=True)
class Counts:
    """Sums and predictions that a metric is computed from.

    Args:
        sums: numbers that add.
        collected: predictions beside their targets, image by image, for a metric that no sum gives (detection).

    >>> Counts({"right": 3, "count": 4}) + Counts({"right": 1, "count": 4})
    Counts(sums={'right': 4, 'count': 8}, collected=())
    """

    sums: Sums = field(default_factory=dict)
    collected: tuple[tuple[Record, Record], ...] = ()

    def __add__(self, other: Counts) -> Counts:
        names = {**self.sums, **other.sums}
        added = {name: self.sums.get(name, 0) + other.sums.get(name, 0) for name in names}
        return Counts(added, self.collected + other.collected)


def count(metric: str, output: Any, targets: Any) -> Counts:
    """Return the sums of one batch.

    Args:
        metric: accuracy, perplexity, matthews, f1, pearson or ap.
        output: logits `(…, classes)`; `(B,)` or `(B, 1)` for pearson; a list of detections for ap.
        targets: classes, real numbers, or a tuple of boxes and masks.

    >>> count("accuracy", torch.eye(3), torch.tensor([0, 1, 1])).sums
    {'right': 2, 'count': 3}
    """
    if metric == "ap":
        return Counts(collected=tuple(zip(map(_kept, output), map(_kept, targets), strict=True)))
    with torch.no_grad():
        return Counts(_METRICS[metric][0](output.detach(), targets))


def metric_of(metric: str, counts: Counts) -> float:
    """Return the metric of everything counted.

    A Matthews correlation or F1 of one class only is 0, as in scikit-learn; the correlation of a constant, and anything
    of nothing, is NaN.

    >>> metric_of("accuracy", Counts({"right": 4, "count": 8}))
    0.5
    """
    if metric == "ap":
        return precisions(counts, ["bbox"])["ap"]
    return _METRICS[metric][1](counts.sums) if counts.sums else math.nan


def _kept(record: Mapping[str, Tensor]) -> Record:
    """Return a record on the CPU; masks as runs, for those of 5000 photographs would not fit into the memory."""
    kept: dict[str, Any] = {name: tensor.detach().cpu() for name, tensor in record.items()}
    return kept | ({"masks": runs(kept["masks"])} if "masks" in kept else {})


def _right(logits: Tensor, targets: Tensor) -> dict[str, float]:
    return {"right": int((logits.argmax(-1) == targets).sum()), "count": targets.numel()}


def _nats(logits: Tensor, targets: Tensor) -> dict[str, float]:
    flat = targets.flatten()
    losses = torch.nn.functional.cross_entropy(
        logits.flatten(0, -2).float(), flat, ignore_index=IGNORED, reduction="none"
    )
    # On the CPU: some devices have no float64.
    return {"nats": float(losses.cpu().double().sum()), "tokens": int((flat != IGNORED).sum())}


def _confusion(logits: Tensor, targets: Tensor) -> dict[str, float]:
    said, true = logits.argmax(-1) == 1, targets == 1
    cells = {"tp": said & true, "fp": said & ~true, "fn": ~said & true, "tn": ~said & ~true}
    return {name: int(cell.sum()) for name, cell in cells.items()}


def _moments(output: Tensor, targets: Tensor) -> dict[str, float]:
    x, y = output.cpu().double().flatten(), targets.cpu().double().flatten()
    products = {"x": x, "y": y, "xx": x * x, "yy": y * y, "xy": x * y}
    return {"count": len(x), **{name: float(product.sum()) for name, product in products.items()}}


def _perplexity(sums: Sums) -> float:
    """`exp(nats / tokens)`; infinite where that exceeds a double."""
    if not sums["tokens"]:
        return math.nan
    mean = sums["nats"] / sums["tokens"]
    return math.exp(mean) if mean < 700 else (math.nan if math.isnan(mean) else math.inf)


def _accuracy(sums: Sums) -> float:
    return sums["right"] / sums["count"] if sums["count"] else math.nan


def _matthews(sums: Sums) -> float:
    tp, fp, fn, tn = (sums[name] for name in ("tp", "fp", "fn", "tn"))
    scale = math.sqrt((tp + fp) * (tp + fn) * (tn + fp) * (tn + fn))
    return (tp * tn - fp * fn) / scale if scale else 0.0


def _f1(sums: Sums) -> float:
    whole = 2 * sums["tp"] + sums["fp"] + sums["fn"]
    return 2 * sums["tp"] / whole if whole else 0.0


def _pearson(sums: Sums) -> float:
    n = sums["count"]
    across = n * sums["xy"] - sums["x"] * sums["y"]
    spreads = [n * sums[name * 2] - sums[name] ** 2 for name in ("x", "y")]
    # A constant leaves rounding errors here, whose correlation would be noise.
    if any(spread <= 1e-12 * n * sums[name * 2] for spread, name in zip(spreads, ("x", "y"), strict=True)):
        return math.nan
    return across / math.sqrt(spreads[0] * spreads[1])


# How a metric is counted in a batch, and what it is of the sums.
_METRICS: dict[str, tuple[Callable[[Tensor, Tensor], dict[str, float]], Callable[[Sums], float]]] = {
    "accuracy": (_right, _accuracy),
    "perplexity": (_nats, _perplexity),
    "matthews": (_confusion, _matthews),
    "f1": (_confusion, _f1),
    "pearson": (_moments, _pearson),
}
METRICS = (*_METRICS, "ap")
