"""Train one run, an arm with a seed, from its beginning or from its last checkpoint."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from torch import Tensor, nn

import wellcond as wc
from wellcond.conditioning.handle import Conditioning
from wellcond.errors import WellcondError
from wellcond.lab.engines.distributed import shard_
from wellcond.lab.models import OwnModel, output_of
from wellcond.lab.recipe.arms import Arm, Shown
from wellcond.lab.recipe.recipe import Recipe
from wellcond.lab.recipe.settings import Training
from wellcond.lab.shown_layers import first_inputs, shown_layers
from wellcond.lab.tasks.base import Task
from wellcond.lab.training.batches import Batches, Parts
from wellcond.lab.training.checkpoints import write_checkpoint
from wellcond.lab.training.data_order import generator, seed_global_
from wellcond.lab.training.evaluate import evaluate
from wellcond.lab.training.optimize import averaged_tensors, averaged_weights, optimizer_for, steer_, update_average_
from wellcond.lab.training.run_folder import RunFolder, loss_is_sound
from wellcond.lab.training.run_writer import RunWriter
from wellcond.lab.training.stage_weights import (
    fitting_weights,
    keep_weights,
    kept_weights,
    put_weights_,
    selected_weights,
    whole_state,
)
from wellcond.lab.training.training_state import TrainingState, resume_

Report = Callable[[int, float], None]  # steps done, loss
Penalty = Callable[[], Tensor]

CALIBRATED_ON = 16  # examples that a calibrated control is measured on


@dataclass
class Run:
    """One run: an arm with a seed, the peak of its learning rate, and what it needs."""

    recipe: Recipe
    arm: Arm
    seed: int
    lr: float
    task: Task
    folder: RunFolder
    own_model: OwnModel | None = None  # in place of the recipe's

    @property
    def shown(self) -> Shown:
        """What finds the attention layers of a model."""
        return shown_layers(self.recipe, self.task, self.own_model)

    @cached_property
    def settings(self) -> Training:
        """The recipe's training as the arm changes it."""
        return self.recipe.training(self.arm.settings)


def train(run: Run, report: Report = lambda step, loss: None) -> str:
    """Train from the beginning, or from the last checkpoint, to the end; return the status."""
    settings, task = run.settings, run.task
    AcceleratorState._reset_state()  # of the run before, which may have had another precision; processes stay
    accelerator = Accelerator(
        mixed_precision=settings.precision,
        cpu=not torch.cuda.is_available(),
        log_with=list(settings.trackers) or None,
        project_dir=run.folder.path,
    )
    record = RunWriter(run.folder, accelerator, settings.trackers)
    model, conditioning = _begin(run)
    model.to(accelerator.device)
    if record.main and "start" not in run.folder.description:
        run.folder.describe(start=_start(model, task))
    if settings.sharding == "fsdp2":
        shard_(model)
    optimizer = optimizer_for(model, run.lr, settings, run.shown)
    if conditioning is not None:
        conditioning.attach(optimizer)
    average = {name: tensor.clone() for name, tensor in averaged_tensors(model).items()} if settings.ema else {}
    wrapped: Any = torch.compile(model) if settings.compile else model
    if settings.sharding == "none":
        wrapped = accelerator.prepare(wrapped)
    control = run.arm.control_(wrapped, optimizer, run.shown)
    penalty = run.arm.penalty(wrapped, run.shown)
    state = TrainingState(model, optimizer, conditioning, average, accelerator.scaler, control)
    start = resume_(run.folder.path, state)
    if record.main:
        run.folder.go_back_to(start)
    # Accelerate's wrapper is for a scaled loss; elsewhere it only costs time.
    prepared: Any = optimizer if accelerator.scaler is None else accelerator.prepare(optimizer)
    batches = Batches(run.recipe, task, run.seed, accelerator.process_index, accelerator.num_processes).since(start)
    total, since, told = torch.zeros((), device=accelerator.device), 0, 0
    if settings.test_first and not start:
        record.measure("test", 0, **evaluate(wrapped, task, settings, accelerator))
    wrapped.train()
    clock = time.perf_counter()
    for step, parts in enumerate(batches, start):
        clock += _look(run, model, step, record)
        steer_(optimizer, step, run.lr, settings)
        drawn = generator(run.seed, "dropout", step, accelerator.process_index)
        seed_global_(accelerator.device, drawn.initial_seed())
        loss = _update(run, wrapped, prepared, accelerator, parts, penalty)
        total, since, done = total + accelerator.reduce(loss, "mean"), since + 1, step + 1
        if control is not None:
            record.control(control.log[told:])
            told = len(control.log)
        if settings.ema:
            update_average_(average, model, settings.ema)
        if done % settings.log_every == 0 or done == settings.steps:
            mean = float(total) / since
            if not loss_is_sound(mean):
                record.end("diverged", f"the loss is {mean:g} at step {done}")
                report(settings.steps, mean)  # none of its steps are left
                return "diverged"
            report(done, mean)
            record.measure("train", done, loss=mean)
            if record.main:
                run.folder.time("train", done, time.perf_counter() - clock)
            total, since = torch.zeros_like(total), 0
            clock = time.perf_counter()
        if done % settings.test_every == 0 and done < settings.steps:
            with averaged_weights(model, average):
                record.measure("test", done, **evaluate(wrapped, task, settings, accelerator))
            clock = time.perf_counter()
        if done % settings.checkpoint_every == 0 and done < settings.steps:
            tensors = state.tensors()  # every process calls
            if record.main:
                write_checkpoint(run.folder.path, done, tensors)
            clock = time.perf_counter()
    with averaged_weights(model, average):
        record.measure("test", settings.steps, **evaluate(wrapped, task, settings, accelerator))
        if settings.keep:
            last = whole_state(model)  # every process calls
            if record.main:
                keep_weights(run.folder.path, last)
    _look(run, model, settings.steps, record)
    record.end("finished", "")
    accelerator.wait_for_everyone()
    return "finished"


def _begin(run: Run) -> tuple[nn.Module, Conditioning | None]:
    """A model as the arm makes it, or as an earlier comparison left it."""
    model = run.arm.built(run.recipe, run.task, run.seed, run.own_model)
    weights = run.recipe.weights
    kept = kept_weights(weights, run.arm, run.seed) if weights else None
    if kept is None:
        run.arm.initialise_(model, run.seed, lambda model: first_inputs(model, run.task, CALIBRATED_ON), run.shown)
    model.to(getattr(torch, run.recipe.train.dtype))  # before W + C is rounded
    if kept is None or weights is None:
        return model, run.arm.condition_(model, run.shown)
    # What was kept is what the other model computed with, W + C, so it is put in place when the model is conditioned.
    found = selected_weights(model, kept) if weights.take == "select" else fitting_weights(model, kept, weights.under)
    conditioning = run.arm.condition_(model, run.shown)
    put_weights_(model, conditioning, found)
    return model, conditioning


def _update(
    run: Run, model: nn.Module, optimizer: Any, accelerator: Accelerator, parts: Parts, penalty: Penalty | None
) -> Tensor:
    """One update of the weights; the loss that is returned is the task's, without a penalty."""
    settings, task = run.settings, run.task
    summed = torch.zeros((), device=accelerator.device)
    for batch, share in parts:
        moved = batch.to(accelerator.device, getattr(torch, settings.dtype))
        with accelerator.autocast():
            loss = task.loss(output_of(model, task, moved), moved, smoothing=settings.smoothing) * share
        accelerator.backward(loss if penalty is None else loss + share * penalty())
        summed = summed + loss.detach()
    if settings.clip is not None:
        if accelerator.scaler is not None:
            accelerator.unscale_gradients(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), settings.clip)  # accelerate's own takes twice as long
    optimizer.step()
    optimizer.zero_grad()
    return summed


def _look(run: Run, model: nn.Module, step: int, record: RunWriter) -> float:
    """The monitor's record of this step, if one is due; return the seconds, which are not those of training.

    Always of the same heads, so that they can be followed.
    """
    settings, clock = run.recipe.monitor, time.perf_counter()
    if settings is None or (step % settings.every and step != run.recipe.train.steps):
        return 0.0
    inputs = first_inputs(model, run.task, settings.examples)
    monitor = wc.Monitor(model, inputs, every=1, heads=settings.heads, tiers=settings.tiers, alarms=False)
    record.monitor(step, monitor.step(step))
    return time.perf_counter() - clock


def _start(model: nn.Module, task: Task) -> dict[str, float]:
    """Return the fresh model's place on its diagram, if the theory covers it."""
    try:
        layers = wc.locate(model, first_inputs(model, task, 2)).layers
    except WellcondError:
        return {}
    found: dict[str, list[float | None]] = {
        "beta": [layer.beta_batch for layer in layers],
        "value_gain": [layer.value_gain[0] for layer in layers],
        "entropy": [layer.entropy_batch for layer in layers],
    }
    known = {name: [v for v in values if v is not None] for name, values in found.items()}
    return {name: sum(values) / len(values) for name, values in known.items() if values}
