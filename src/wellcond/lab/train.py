"""One run: a scheme, a seed, a task; readable in one sitting, and able to go on from where it was interrupted."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from accelerate import Accelerator
from torch import Tensor, nn

import wellcond as wc
from wellcond.diagnose.scalars import scalars
from wellcond.errors import WellcondError
from wellcond.lab.arms import Scheme
from wellcond.lab.checkpoints import remove_checkpoints, write_checkpoint
from wellcond.lab.folder import RunFolder, sound
from wellcond.lab.models import feed, lab_model
from wellcond.lab.order import generator, indices, learning_rate
from wellcond.lab.recipe import Recipe
from wellcond.lab.standing import Standing, resume_
from wellcond.lab.tasks.base import Batch, Task

Report = Callable[[int, float], None]  # steps done, loss


@dataclass
class Run:
    """What one run needs.

    Args:
        recipe: of the comparison.
        scheme: which of its schemes.
        seed: of weights, order and augmentation.
        task: built once for all runs.
        folder: where it is kept.
    """

    recipe: Recipe
    scheme: Scheme
    seed: int
    task: Task
    folder: RunFolder

    @property
    def lr(self) -> float:
        """The peak of its learning rate."""
        return self.scheme.arm.lr or self.recipe.train.lr


def train(run: Run, report: Report = lambda step, loss: None) -> str:
    """Train from the beginning, or from the last checkpoint, to the end; return the status."""
    settings, task = run.recipe.train, run.task
    accelerator = Accelerator(mixed_precision=settings.precision, cpu=not torch.cuda.is_available())
    main = accelerator.is_main_process
    model = lab_model(run.recipe.model.name, run.recipe.model.options, task, run.seed)
    conditioning = run.scheme.apply_(model, run.seed)
    model.to(accelerator.device)
    if main and "start" not in run.folder.description:
        run.folder.describe(start=_start(model, task))
    optimizer = torch.optim.AdamW(_groups(model, settings.weight_decay), lr=run.lr, betas=settings.betas)
    if conditioning is not None:
        conditioning.attach(optimizer)
    average = {n: p.detach().clone() for n, p in model.named_parameters()} if settings.ema else {}
    start = resume_(run.folder.path, Standing(model, optimizer, conditioning, average))
    if main:
        run.folder.go_back_to(start)
    wrapped, optimizer = accelerator.prepare(torch.compile(model) if settings.compile else model, optimizer)
    total, since = torch.zeros((), device=accelerator.device), 0
    clock = time.perf_counter()
    for step in range(start, settings.steps):
        _look(run, model, step, main=main)
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(
                step, settings.steps, run.lr, settings.final_lr, settings.warmup, settings.schedule
            )
        wrapped.train()
        torch.manual_seed(generator(run.seed, "dropout", step, accelerator.process_index).initial_seed())
        loss = _step(run, wrapped, optimizer, accelerator, step)
        total, since, done = total + accelerator.reduce(loss, "mean"), since + 1, step + 1
        for name, parameter in model.named_parameters() if average else ():
            average[name].lerp_(parameter.detach(), 1 - (settings.ema or 0.0))
        if done % settings.log_every == 0 or done == settings.steps:
            mean = float(total) / since
            if not sound(mean):
                _end(run, main, "diverged", f"the loss is {mean:g} at step {done}")
                return "diverged"
            report(done, mean)
            if main:
                run.folder.measure("train", done, loss=mean)
                run.folder.time("train", done, time.perf_counter() - clock)
            total, since = torch.zeros_like(total), 0
            clock = time.perf_counter()
        if done % settings.test_every == 0 or done == settings.steps:
            with _averaged(model, average):
                result = evaluate(wrapped, task, accelerator.device, settings.batch)
            if main:
                run.folder.measure("test", done, **{task.metric: result})
            clock = time.perf_counter()
        if main and done % settings.checkpoint_every == 0 and done < settings.steps:
            write_checkpoint(run.folder.path, done, Standing(model, optimizer, conditioning, average).tensors())
            clock = time.perf_counter()
    _look(run, model, settings.steps, main=main)
    _end(run, main, "finished", "")
    accelerator.wait_for_everyone()
    return "finished"


def _step(run: Run, model: nn.Module, optimizer: Any, accelerator: Accelerator, step: int) -> Tensor:
    """One update; each process has its part of the batch, and the parts are accumulated in turn."""
    settings, task = run.recipe.train, run.task
    chosen = indices(run.seed, step, settings.batch, len(task.train))
    mine = chosen.tensor_split(accelerator.num_processes)[accelerator.process_index]
    summed = torch.zeros((), device=accelerator.device)
    for number, part in enumerate(mine.tensor_split(settings.accumulate)):
        batch = task.prepare(task.train[part], generator(run.seed, "prepare", step, number)).to(accelerator.device)
        with accelerator.autocast():
            loss = task.loss(feed(model, batch), batch, smoothing=settings.smoothing) * (len(part) / len(mine))
        accelerator.backward(loss)
        summed = summed + loss.detach()
    if settings.clip is not None:
        accelerator.clip_grad_norm_(model.parameters(), settings.clip)
    optimizer.step()
    optimizer.zero_grad()
    return summed


@torch.no_grad()
def evaluate(model: nn.Module, task: Task, device: torch.device, batch: int) -> float:
    """The metric on the test set."""
    was = model.training
    model.eval()
    counts: Any = None
    size = max(batch, 256)
    for number, begin in enumerate(range(0, len(task.test), size)):
        part = torch.arange(begin, min(begin + size, len(task.test)))
        examples = task.prepare(task.test[part], generator("test", number)).to(device)
        found = task.score(feed(model, examples), examples)
        counts = found if counts is None else counts + found
    model.train(was)
    return task.metric_of(counts)


def _look(run: Run, model: nn.Module, step: int, *, main: bool) -> None:
    """The monitor's record of this step, if one is due; always of the same heads, so that it can be followed."""
    settings = run.recipe.monitor
    if settings is None or (step % settings.every and step != run.recipe.train.steps):
        return
    inputs = _sample(model, run.task, settings.examples).inputs
    monitor = wc.Monitor(model, inputs, every=1, heads=settings.heads, tiers=settings.tiers, alarms=False)
    values: dict[str, float] = {}
    for record in monitor.step(step):
        values |= {name.removeprefix("wellcond/"): value for name, value in scalars(record).items()}
    if main:
        run.folder.measure("monitor", step, **values)


def _sample(model: nn.Module, task: Task, count: int) -> Batch:
    """The first examples of the test set, where the model is."""
    device = next(model.parameters()).device
    return task.test[torch.arange(min(count, len(task.test)))].to(device)


def _start(model: nn.Module, task: Task) -> dict[str, float]:
    """Where the fresh model stands on its diagram, where the theory has it."""
    try:
        layers = wc.locate(model, _sample(model, task, 2).inputs).layers
    except WellcondError:
        return {}
    found: dict[str, list[float | None]] = {
        "beta": [layer.beta_batch for layer in layers],
        "value_gain": [layer.value_gain[0] for layer in layers],
        "entropy": [layer.entropy_batch for layer in layers],
    }
    known = {name: [v for v in values if v is not None] for name, values in found.items()}
    return {name: sum(values) / len(values) for name, values in known.items() if values}


def _groups(model: nn.Module, decay: float) -> list[dict[str, Any]]:
    """Matrices decay; biases and gains do not."""
    own = [p for p in model.parameters() if p.requires_grad]
    wide, thin = [p for p in own if p.dim() > 1], [p for p in own if p.dim() < 2]
    return [{"params": wide, "weight_decay": decay}, {"params": thin, "weight_decay": 0.0}]


@contextmanager
def _averaged(model: nn.Module, average: dict[str, Tensor]) -> Iterator[None]:
    """The averaged weights for a moment, where there are some."""
    if not average:
        yield
        return
    own = dict(model.named_parameters())
    kept = {name: own[name].detach().clone() for name in average}
    with torch.no_grad():
        for name, tensor in average.items():
            own[name].copy_(tensor)
        yield
        for name, tensor in kept.items():
            own[name].copy_(tensor)


def _end(run: Run, main: bool, status: str, error: str) -> None:
    if main:
        run.folder.describe(status=status, error=error)
        remove_checkpoints(run.folder.path)
