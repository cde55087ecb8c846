"""A LightningModule's training step without a Trainer: the loss of a batch, and a way to call the module with one."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from torch import nn

from wellcond.integrations.loop_loss import LoopLoss
from wellcond.integrations.shared import missing_library

try:
    from lightning.pytorch import LightningModule
except ImportError as error:
    raise missing_library("lightning", "lightning", error) from error

LOGGING = ("log", "log_dict", "print")  # methods that need a Trainer


def training_step(model: Any, batch: Any) -> Any:
    """Return what a module's training step gives as the loss of a batch, after its own hooks for batches."""
    batch = model.on_after_batch_transfer(model.on_before_batch_transfer(batch, 0), 0)
    kinds = [p.kind for p in inspect.signature(model.training_step).parameters.values()]
    alone = len(kinds) == 1 and kinds[0] is not inspect.Parameter.VAR_POSITIONAL
    found = model.training_step(batch) if alone else model.training_step(batch, 0)
    return found.get("loss") if isinstance(found, Mapping) else found


@contextmanager
def called_by_training_step(module: LightningModule) -> Iterator[None]:
    """Let a module without a forward of its own be called with a batch, by its training step.

    For what runs a model: `wc.diagnose`, `wc.calibrate_`, and `apply_` of an advice that calibrates.

    >>> import torch
    >>> class Mean(LightningModule):
    ...     def training_step(self, batch, index):
    ...         return batch.mean()
    >>> module = Mean()
    >>> with called_by_training_step(module):
    ...     module(torch.ones(2))
    tensor(1.)
    """
    before = [(each, dict(vars(each))) for each in _modules(module)]
    loss = LoopLoss(training_step, f"{type(module).__name__}.training_step")
    silence_(module)
    loss.call_with_batches_(module)
    try:
        yield
    finally:
        for each, own in before:
            for name in ("forward", *LOGGING):
                vars(each).pop(name, None)
                vars(each).update({name: own[name]} if name in own else {})


def silence_(module: nn.Module) -> None:
    """Have what a module logs go nowhere: without a Trainer, Lightning warns at every call."""
    for each in _modules(module):
        vars(each).update(dict.fromkeys(LOGGING, _nothing))


def _modules(module: nn.Module) -> list[LightningModule]:
    return [each for each in module.modules() if isinstance(each, LightningModule)]


def _nothing(*args: Any, **kwargs: Any) -> None:
    """Take what would be logged."""
