"""Rules of the user's own: any loss and metric as functions, and a text whose next byte is to be predicted."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor, nn

from wellcond.attention.capture import batch_words
from wellcond.attention.paths import unwrap
from wellcond.errors import BatchError, WellcondError
from wellcond.inputs.objective import Objective, function_name, judged, output_words, written_at
from wellcond.lab.tasks.base import Batch, Task, logits_of
from wellcond.lab.tasks.metrics import Counts, count, metric_of

NOT_NAMES = ("kind", "step", "schema")  # entries of a line of measurements


@dataclass(frozen=True)
class OwnRules:
    """Judge a model by functions of `(output, target)`, or of `(output, batch)` where batches are dicts.

    A metric that is a function is a mean over its batch, and its mean over the test set counts every example alike.

    Args:
        objective: how a batch becomes a loss.
        metric: a function that returns a number, the name of a known metric, or None for the loss.
        higher_is_better: whether more of the metric is better.

    >>> import torch
    >>> rules = OwnRules(Objective(nn.functional.mse_loss), nn.functional.l1_loss, higher_is_better=False)
    >>> batch = Batch(torch.zeros(2, 1), torch.tensor([[1.0], [3.0]]), 2)
    >>> rules.metric_of(rules.score(torch.zeros(2, 1), batch))
    2.0
    """

    objective: Objective
    metric: Callable[[Any, Any], Any] | str | None
    higher_is_better: bool

    def inputs(self, model: nn.Module, batch: Batch) -> Any:
        """Return what a model is called with; of a dict what its forward takes."""
        return self.objective.inputs(model, _given(batch))

    def output(self, model: nn.Module, batch: Batch) -> Any:
        """Return what a model gives for a batch."""
        return self.objective.run(model, _given(batch))

    def loss(self, output: Any, batch: Batch) -> Tensor:
        """Return the loss of an output."""
        return self.objective.of_output(output, _given(batch))

    def score(self, output: Any, batch: Batch) -> Counts:
        """Count a known metric, or add up one of the user's by examples."""
        if isinstance(self.metric, str):
            return count(self.metric, *_comparable(self.metric, output, batch.targets))
        value = float(self.loss(output, batch)) if self.metric is None else self._value(self.metric, output, batch)
        return Counts({"sum": value * len(batch), "count": len(batch)})

    def metric_of(self, counts: Counts) -> float:
        """Return the metric of everything counted; NaN of nothing."""
        if isinstance(self.metric, str):
            return metric_of(self.metric, counts)
        return counts.sums["sum"] / counts.sums["count"] if counts.sums else math.nan

    def _value(self, metric: Callable[[Any, Any], Any], output: Any, batch: Batch) -> float:
        found = judged(metric, output, batch.inputs if batch.targets is None else batch.targets)
        if isinstance(found, Tensor) and found.numel() == 1 and not found.is_complex():
            return float(found)
        if isinstance(found, (int, float, np.number, np.ndarray)) and np.ndim(found) == 0 and np.isrealobj(found):
            return float(found)
        words = f"{function_name(metric)}(output, target) returns one number, a mean over the batch"
        raise BatchError(f"{words}; got {output_words(found)}{written_at(metric)}")


@dataclass(frozen=True)
class TextRules:
    """Judge a model that continues a text by its perplexity.

    A forward of `(idx, targets)`, as nanoGPT's, is given both: without targets it has the last position's logits only.

    Args:
        task: of the text's blocks.
    """

    task: Task
    higher_is_better: bool = False

    def inputs(self, model: nn.Module, batch: Batch) -> Any:
        """Return token ids, and the next ones where a model asks for them."""
        names = list(inspect.signature(unwrap(model).forward).parameters)
        given = batch.inputs.contiguous()  # a slice of a block, which nanoGPT's .view refuses
        return (given, batch.targets.contiguous()) if names[1:2] == ["targets"] else given

    def output(self, model: nn.Module, batch: Batch) -> Any:
        """Return logits of every token: the output, its `.logits`, or the first part of a tuple."""
        found = Objective().run(model, (self.inputs(model, batch), None))
        return found[0] if isinstance(found, (tuple, list)) and found else found

    def loss(self, output: Any, batch: Batch) -> Tensor:
        """Return the cross entropy of the next tokens, in nats."""
        _shown("perplexity", output, batch.targets)
        return self.task.loss(output, batch)

    def score(self, output: Any, batch: Batch) -> Counts:
        """Count nats and tokens."""
        _shown("perplexity", output, batch.targets)
        return self.task.score(output, batch)

    def metric_of(self, counts: Counts) -> float:
        """Return the perplexity."""
        return self.task.metric_of(counts)


def metric_name(metric: Callable[[Any, Any], Any] | str | None) -> str:
    """Return the name of a metric in tables: of a function its own, of None that of the loss.

    >>> metric_name(nn.functional.l1_loss), metric_name(None), metric_name(lambda output, target: 0)
    ('l1_loss', 'loss', 'metric')
    """
    name = "loss" if metric is None else metric if isinstance(metric, str) else function_name(metric)
    return name if name.isidentifier() and name not in NOT_NAMES else "metric"


def _given(batch: Batch) -> Any:
    """The batch as the user's functions know it: a dict, or a pair."""
    return batch.inputs if batch.targets is None else (batch.inputs, batch.targets)


def _comparable(metric: str, output: Any, targets: Any) -> tuple[Tensor, Tensor]:
    """Output and target of a known metric, whose shapes must be those that it compares."""
    if not isinstance(targets, Tensor):
        raise BatchError(
            f"{metric} is of pairs (input, target), and the batch is {batch_words(targets)}: give metric as a function "
            "of (output, batch)"
        )
    logits = _shown(metric, output, targets)
    return logits, targets


def _shown(metric: str, output: Any, targets: Tensor) -> Tensor:
    """The logits of an output, if they are of the shape that goes with the targets."""
    try:
        logits = logits_of(output)
    except WellcondError:
        raise BatchError(
            f"{metric} is of logits, a tensor or something with .logits; the model gives {output_words(output)}"
        ) from None
    if metric == "pearson":
        right, wanted = logits.numel() == targets.numel(), "of a number for each target"
    else:
        classes = 2 if metric in ("matthews", "f1") else None
        right = logits.ndim > 1 and logits.shape[:-1] == targets.shape and not targets.is_floating_point()
        right = right and classes in (None, logits.shape[-1])
        right = right and (metric == "perplexity" or bool((targets >= 0).all()))  # −100 would count as wrong
        wanted = f"of logits ({', '.join(map(str, [*targets.shape, classes or 'classes']))}) for targets from 0 on"
    if not right:
        raise BatchError(
            f"{metric} is {wanted}; the model gives {output_words(logits)}, the target is {batch_words(targets)}"
        )
    return logits
