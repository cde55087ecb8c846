"""Task: a training and a test set with their loss and metric."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from wellcond.errors import WellcondError
from wellcond.lab.tasks.detection.average_precision import precisions
from wellcond.lab.tasks.metrics import IGNORED, METRICS, Counts, count, metric_of
from wellcond.lab.tasks.rules import Rules

KINDS = ("image", "sequence", "pair", "causal-text", "masked-text", "detection", "custom")


@dataclass(frozen=True)
class Batch:
    """Inputs and targets of some examples.

    Args:
        inputs: a tensor; where sequences are padded a dict of `input_ids`, `attention_mask` (1 on a token, 0 on
            padding) and perhaps `token_type_ids`, each `(B, T)`, or `(B, 2, T)` of a pair; for detection a tuple of
            images `(3, H, W)`; of a custom task whatever its data are.
        targets: a tensor; for detection a tuple of dicts as torchvision's Mask R-CNN takes them; None of a custom task
            whose inputs, a dict, have them.
        size: how many examples there are, where the targets do not say.

    >>> Batch(torch.zeros(2, 3), torch.zeros(2)).to("meta").inputs.device
    device(type='meta')
    """

    inputs: Any
    targets: Any
    size: int | None = None

    def to(self, device: torch.device | str, dtype: torch.dtype = torch.float32) -> Batch:
        """Return the batch on another device, its real numbers in another type."""
        return Batch(_moved(self.inputs, device, dtype), _moved(self.targets, device, dtype), self.size)

    def __len__(self) -> int:
        return len(self.targets) if self.size is None else self.size


class Examples(Protocol):
    """Examples by index. Equal indices give an equal batch, always: nothing is drawn at random here."""

    def __len__(self) -> int:
        """Return the number of examples."""
        ...

    def __getitem__(self, indices: Tensor) -> Batch:
        """Return the examples at these indices, a tensor of int64."""
        ...


@dataclass(frozen=True)
class Task:
    """A training and a test set, and how a model is judged on them.

    Args:
        name: in the registry.
        kind: image; sequence (tokens to a class); pair (two sequences to a class); causal-text; masked-text;
            detection; custom, of which only its `own` rules know more.
        shape: what a model must fit: channels, size and classes; tokens, vocabulary and classes; or tokens and
            vocabulary. `classes` is 1 for a real number; `size` is 0 where each image has its own.
        train: the examples to learn from.
        test: those to be judged by.
        metric: accuracy, perplexity, ap, matthews, f1 or pearson; with `own` rules any name.
        description: what, where from, how many.
        preparation: of a batch, with random numbers; see `prepare`.
        own: rules in place of those of the kind and the metric.

    >>> from wellcond.lab.tasks import task
    >>> digits = task("digits")
    >>> batch = digits.train[torch.arange(4)]
    >>> batch.inputs.shape, digits.shape["classes"]
    (torch.Size([4, 1, 8, 8]), 10)
    >>> digits.metric_of(digits.score(torch.eye(10)[batch.targets], batch))
    1.0
    """

    name: str
    kind: str
    shape: Mapping[str, int]
    train: Examples
    test: Examples
    metric: str
    description: str
    preparation: Callable[[Batch, torch.Generator], Batch] | None = None
    own: Rules | None = None

    def __post_init__(self) -> None:
        if self.kind not in KINDS or (self.own is None and self.metric not in METRICS):
            raise WellcondError(
                f"task {self.name!r} has kind {self.kind!r} and metric {self.metric!r}; the kinds are "
                f"{', '.join(KINDS)}, the metrics {', '.join(METRICS)}"
            )

    @property
    def higher_is_better(self) -> bool:
        """Return whether more is better: of every known metric but perplexity."""
        return self.own.higher_is_better if self.own is not None else self.metric != "perplexity"

    def prepare(self, batch: Batch, generator: torch.Generator) -> Batch:
        """Return the batch as the model is to see it: masked for masked-text, unchanged elsewhere."""
        return batch if self.preparation is None else self.preparation(batch, generator)

    def loss(self, output: Any, batch: Batch, *, smoothing: float = 0.0) -> Tensor:
        """Return the mean loss of a batch: cross entropy in nats, squared error, or Mask R-CNN's own sum.

        Args:
            output: a tensor, something with `.logits`, or for detection the dict of losses of a model in training.
            batch: its targets may be classes, or probabilities `(B, classes)` as mixup gives them.
            smoothing: of labels, for classes.
        """
        if self.own is not None:
            return self.own.loss(output, batch)
        if self.kind == "detection":
            if not isinstance(output, Mapping):
                raise WellcondError("a detector gives its losses only in training: model.train()(images, targets)")
            return torch.stack(list(output.values())).sum()
        logits = logits_of(output)
        if self.metric == "pearson":
            return torch.nn.functional.mse_loss(_wide(logits).flatten(), batch.targets)
        if self.kind not in ("causal-text", "masked-text"):
            return torch.nn.functional.cross_entropy(_wide(logits), batch.targets, label_smoothing=smoothing)
        flat: Tensor = batch.targets.flatten()
        summed = torch.nn.functional.cross_entropy(
            _wide(logits).flatten(0, -2), flat, ignore_index=IGNORED, reduction="sum", label_smoothing=smoothing
        )
        return summed / (flat != IGNORED).sum().clamp(min=1)  # a short batch may have no masked token at all

    def score(self, output: Any, batch: Batch) -> Counts:
        """Count what the metric needs of a batch; add over batches, then `metric_of`."""
        if self.own is not None:
            return self.own.score(output, batch)
        return count(self.metric, output if self.kind == "detection" else logits_of(output), batch.targets)

    def metric_of(self, counts: Counts) -> float:
        """Return the metric of everything counted."""
        return metric_of(self.metric, counts) if self.own is None else self.own.metric_of(counts)

    def extras(self, counts: Counts) -> dict[str, float]:
        """Return the figures beside the metric: ap50, ap75 and three of masks for detection, else none."""
        found = precisions(counts) if self.metric == "ap" and self.own is None else {}
        return {name: value for name, value in found.items() if name != self.metric}


def logits_of(output: Any) -> Tensor:
    """Return the logits of a model's output: the tensor itself, or its `.logits`.

    >>> logits_of(torch.zeros(2)).shape
    torch.Size([2])
    """
    logits = getattr(output, "logits", output)
    if not isinstance(logits, Tensor):
        raise WellcondError(f"a model gives a tensor or something with .logits, not a {type(output).__name__}")
    return logits


def _wide(logits: Tensor) -> Tensor:
    """Return logits in float32 at least: a loss in half precision is noise."""
    return logits if logits.dtype == torch.float64 else logits.float()


def _moved(value: Any, device: torch.device | str, dtype: torch.dtype) -> Any:
    if isinstance(value, Tensor):
        return value.to(device, dtype) if value.is_floating_point() else value.to(device)
    if isinstance(value, Mapping):
        return {name: _moved(item, device, dtype) for name, item in value.items()}
    return tuple(_moved(item, device, dtype) for item in value) if isinstance(value, (tuple, list)) else value
