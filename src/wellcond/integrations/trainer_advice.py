"""Ask `wc.recommend` from a Trainer of transformers: its model, batches, loss and optimizer."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

from torch import nn
from torch.optim import Optimizer
from torch.utils._pytree import tree_map

from wellcond._core.argument_types import Folder, NotNegative
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
from wellcond.errors import ArgumentError, BatchError, WellcondError
from wellcond.inputs.objective import moved
from wellcond.integrations.loop_loss import LoopLoss


@checked
@ordinary()
def recommend_for_trainer(
    trainer: Any,
    *,
    seconds: NotNegative = 120.0,
    schemes: Sequence[str] | None = None,
    out: Folder | None = None,
) -> Recommendation:
    """Say which initialisation a Trainer's model should begin with, by short trainings as the Trainer would train.

    As `wc.recommend`, with what the Trainer has: its model; the batches of its `get_train_dataloader`; its
    `compute_loss`, with label smoothing or a subclass's own, of one batch in the precision of the weights; its
    optimizer, or the one that its `create_optimizer` makes, at its learning rate. The schedule, clipping, accumulation
    and callbacks are not used. Trainer, model, optimizer and generators stay as they are. Ask before `train()`.

    Args:
        trainer: a `transformers.Trainer` of one process.
        seconds: that the probe may take; 0 for none.
        schemes: names of those to consider; by default all that apply.
        out: a folder that keeps every trial, so that a call that was stopped goes on there.

    >>> import tempfile, torch
    >>> from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments
    >>> config = GPT2Config(n_layer=1, n_embd=8, n_head=2, vocab_size=9, n_positions=4, bos_token_id=0, eos_token_id=0)
    >>> data = [{"input_ids": torch.arange(4), "labels": torch.arange(4)}] * 16
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     arguments = TrainingArguments(folder, report_to="none", use_cpu=True, weight_decay=0.1)
    ...     trainer = Trainer(GPT2LMHeadModel(config), arguments, train_dataset=data)
    ...     found = recommend_for_trainer(trainer, seconds=0)
    >>> found.best.name, found.settings["optimizer"], found.settings["lr"]
    ('yours', 'create_optimizer', 5e-05)
    """
    from transformers import Trainer

    if not isinstance(trainer, Trainer):
        raise ArgumentError(f"recommend_for_trainer: trainer is a transformers.Trainer; got {short_repr(trainer)}")
    name = type(trainer).__name__
    if not isinstance(trainer.model, nn.Module):
        raise ArgumentError(f"the {name} has no model yet: give it one, or a model_init, when it is made")
    if trainer.args.world_size > 1:
        raise WellcondError(
            f"the {name} is one of {trainer.args.world_size} processes, whose advice may differ: ask in one process, "
            "and initialise so in all of them"
        )
    model = unwrap(trainer.model)
    check_model(model)
    with generators_kept(model):
        apart = _apart(trainer)
        loss = LoopLoss(_loss_of(apart), f"{name}.compute_loss")
        own = OwnBatches(_batches(apart))
        trial = copied(model)
        if not loss.taken_by(trial, moved(own.judging[0], next(trial.parameters()))):
            loss.call_with_batches_(model := trial)
        settings = TrialSettings(loss, _optimizer_of(trainer, apart), float(trainer.args.learning_rate), own)
        return advise(model, settings, loss.name, seconds, schemes, out)


def _apart(trainer: Any) -> Any:
    """A Trainer to ask: its state, lists and dicts are copies; it calls nobody back and has Accelerate keep nothing."""
    found = copy.copy(trainer)
    for name, value in vars(trainer).items():
        if isinstance(value, (dict, list, tuple)):
            setattr(found, name, tree_map(lambda x: x, value))
    found.state, found.control = copy.deepcopy(trainer.state), copy.deepcopy(trainer.control)
    found.callback_handler = copy.copy(trainer.callback_handler)
    found.callback_handler.callbacks = []
    found.accelerator = copy.copy(trainer.accelerator)
    found.accelerator.prepare = lambda *given, **rest: given[0] if len(given) == 1 else given
    return found


def _batches(apart: Any) -> Any:
    try:
        return apart.get_train_dataloader()
    except Exception as error:
        raise BatchError(f"{type(apart).__name__}.get_train_dataloader raised {briefly(error, 300)}") from error


def _loss_of(apart: Any) -> Callable[[nn.Module, Any], Any]:
    def compute_loss(model: nn.Module, batch: Any) -> Any:
        apart.model = apart.model_wrapped = model
        return apart.compute_loss(model, dict(batch))  # of which it takes the labels out

    return compute_loss


def _optimizer_of(trainer: Any, apart: Any) -> Optimizer | Callable[[nn.Module], Any]:
    """The Trainer's optimizer if it has one, else a function that makes it for a copy of the model."""
    own: Optimizer | None = getattr(trainer.optimizer, "optimizer", trainer.optimizer)  # without Accelerate's wrapper
    if own is not None:
        return own

    def create_optimizer(model: nn.Module) -> Any:
        apart.model, apart.model_wrapped, apart.optimizer = model, model, None
        try:
            return apart.create_optimizer()
        finally:
            apart.optimizer = None

    return create_optimizer
