"""Ask `wc.recommend` from a LightningModule: its training step and the optimizer that it configures."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

from torch import nn
from torch.optim import Optimizer

from wellcond._core.argument_types import Folder, NotNegative, Positive
from wellcond._core.checked import checked
from wellcond._core.safe_text import briefly
from wellcond._core.short_repr import short_repr
from wellcond.advice.checks import check_model
from wellcond.advice.own_batches import OwnBatches
from wellcond.advice.recommendation import Recommendation
from wellcond.advice.stages import advise
from wellcond.advice.trial import TrialSettings, copied, generators_kept
from wellcond.attention.ordinary import ordinary
from wellcond.attention.paths import unwrap
from wellcond.errors import ArgumentError, BatchError, OptimizerError
from wellcond.inputs.objective import moved
from wellcond.integrations.loop_loss import LoopLoss
from wellcond.integrations.shared import missing_library
from wellcond.integrations.training_step import silence_, training_step

try:
    from lightning.pytorch import LightningDataModule, LightningModule
except ImportError as error:
    raise missing_library("lightning", "lightning", error) from error


@checked
@ordinary()
def recommend_for_module(
    module: nn.Module,
    batches: Any = None,
    *,
    optimizer: Any = None,
    lr: Positive = 1e-3,
    seconds: NotNegative = 120.0,
    schemes: Sequence[str] | None = None,
    out: Folder | None = None,
) -> Recommendation:
    """Say which initialisation a LightningModule should begin with, by short trainings with its own training step.

    As `wc.recommend`, with what the module has: the loss of its `training_step`, and the optimizer of its
    `configure_optimizers`; a scheduler is not used, but for the largest learning rate that it has. No Trainer is
    there: what is logged goes nowhere, and a module that needs one is refused. The module is looked at by its own
    forward, where that takes the batch's input, else by its training step. It stays as it is, as do the generators.

    Args:
        module: as it would be fitted.
        batches: a loader, a list of batches, or a `LightningDataModule`; by default the module's `train_dataloader`.
        optimizer: instead of what the module configures, as in `wc.recommend`.
        lr: peak of the learning rate, where the optimizer is a name.
        seconds: that the probe may take; 0 for none.
        schemes: names of those to consider; by default all that apply.
        out: a folder that keeps every trial, so that a call that was stopped goes on there.

    >>> import torch
    >>> class Mixing(LightningModule):
    ...     def __init__(self):
    ...         super().__init__()
    ...         self.net = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, norm_first=True)
    ...     def training_step(self, batch, index):
    ...         return (self.net(batch) - batch.flip(1)).square().mean()
    ...     def configure_optimizers(self):
    ...         return torch.optim.SGD(self.parameters(), lr=0.1)
    >>> found = recommend_for_module(Mixing(), [torch.randn(4, 6, 8) for _ in range(8)], seconds=0)
    >>> found.best.name, found.settings["loss"], found.settings["optimizer"]
    ('yours', 'Mixing.training_step', 'configure_optimizers')
    """
    given = unwrap(module)
    if not isinstance(given, LightningModule):
        raise ArgumentError(f"recommend_for_module: module is a LightningModule; got {short_repr(module)}")
    name = type(given).__name__
    if not given.automatic_optimization:
        raise OptimizerError(
            f"{name} optimizes by hand (automatic_optimization is False), which a trial cannot repeat: ask "
            "wc.recommend about its network, with a loss"
        )
    check_model(given)
    with generators_kept(given):
        own = OwnBatches(_batches(given, batches))
        model, loss = copied(given), LoopLoss(training_step, f"{name}.training_step")
        silence_(model)
        has_forward = type(given).forward is not LightningModule.forward
        if not has_forward or not loss.taken_by(model, moved(own.judging[0], next(model.parameters()))):
            loss.call_with_batches_(model)
        if optimizer is None:
            optimizer = configure_optimizers
            lr = max((float(group.get("lr", 0)) for group in configure_optimizers(model).param_groups), default=lr)
        settings = TrialSettings(loss, optimizer, lr, own)
        return advise(model, settings, loss.name, seconds, schemes, out)


def configure_optimizers(model: Any) -> Optimizer:
    """Return the one optimizer that a module configures, at the largest learning rate of its scheduler."""
    name = type(model).__name__
    try:
        found = model.configure_optimizers()
    except Exception as error:
        raise OptimizerError(
            f"{name}.configure_optimizers raised {briefly(error, 200)}; there is no Trainer here: say optimizer=…"
        ) from error
    optimizers = _optimizers(found)
    if len(optimizers) != 1 or not isinstance(optimizers[0], Optimizer):
        raise OptimizerError(
            f"{name}.configure_optimizers gives {_words(found, optimizers)}, and a trial trains with one: say "
            "optimizer=…"
        )
    for group in optimizers[0].param_groups:
        if "lr" in group:
            group["lr"] = group.get("max_lr", group.get("initial_lr", group["lr"]))
    return optimizers[0]


def _optimizers(found: Any) -> list[Any]:
    """The optimizers in what a module configured: alone, in a list, beside schedulers, in dicts."""
    if isinstance(found, Mapping):
        return [found.get("optimizer")]
    if isinstance(found, (tuple, list)):
        with_schedulers = len(found) == 2 and isinstance(found[0], (tuple, list))
        return [each for one in (found[0] if with_schedulers else found) for each in _optimizers(one)]
    return [found]


def _words(found: Any, optimizers: Sequence[Any]) -> str:
    many = len(optimizers) > 1 and all(isinstance(one, Optimizer) for one in optimizers)
    return f"{len(optimizers)} optimizers" if many else short_repr(found)


def _batches(module: LightningModule, given: Any) -> Any:
    """A loader, where it comes from; a data module is set up in a shallow copy."""
    owner: Any = module if given is None else given
    if given is None or isinstance(given, LightningDataModule):
        try:
            if given is not None:
                owner = copy.copy(given)
                owner.prepare_data()
                owner.setup("fit")
            given = owner.train_dataloader()
        except Exception as error:
            raise BatchError(
                f"{type(owner).__name__} has no batches to train on ({briefly(error, 200)}): give a loader"
            ) from error
    several = given.values() if isinstance(given, Mapping) else given if isinstance(given, (tuple, list)) else ()
    if any(_is_loader(one) for one in several):
        raise BatchError("these are several loaders, and a trial takes batches of one: give one, or a list of batches")
    return given


def _is_loader(one: Any) -> bool:
    return hasattr(one, "__iter__") and hasattr(one, "dataset")
