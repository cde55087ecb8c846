"""Rules: how a model is called and judged on a task of the user's own, in place of a kind and a known metric."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from torch import Tensor, nn

from wellcond.lab.tasks.metrics import Counts

if TYPE_CHECKING:
    from wellcond.lab.tasks.base import Batch


class Rules(Protocol):
    """What a task of the user's own knows beyond its examples."""

    @property
    def higher_is_better(self) -> bool:
        """Return whether more of the metric is better."""
        ...

    def inputs(self, model: nn.Module, batch: Batch) -> Any:
        """Return what a model is called with: a tensor, a tuple of positional or a dict of keyword arguments."""
        ...

    def output(self, model: nn.Module, batch: Batch) -> Any:
        """Return what a model gives for a batch."""
        ...

    def loss(self, output: Any, batch: Batch) -> Tensor:
        """Return the loss of an output, one number."""
        ...

    def score(self, output: Any, batch: Batch) -> Counts:
        """Count what the metric needs of a batch; counts add over batches."""
        ...

    def metric_of(self, counts: Counts) -> float:
        """Return the metric of everything counted."""
        ...
