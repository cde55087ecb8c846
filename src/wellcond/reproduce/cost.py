"""What a recipe costs before it is started: parameters, operations, memory, hours; counted without weights."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from wellcond.lab.models import lab_model
from wellcond.lab.recipe import Recipe
from wellcond.lab.tasks.base import Task

# Dense half-precision peak of one device, from the makers' data sheets; a training reaches about 40 % of it.
PEAK = {"A100 80GB": 312e12, "A6000": 155e12, "H100": 989e12}
REACHED = 0.4
STATE = 16  # bytes a parameter: weight, gradient and the two moments of Adam in float32


@dataclass(frozen=True)
class Cost:
    """Of one run: one scheme with one seed.

    Args:
        parameters: of the model.
        forward: floating-point operations of one example, forwards; None where it cannot be counted without weights.
        saved: bytes that one example keeps for the way back, in float32.
        steps: updates.
        batch: examples of an update.
        accumulate: parts that a device takes them in.
        runs: schemes × seeds.
    """

    parameters: int
    forward: float | None
    saved: float | None
    steps: int
    batch: int
    accumulate: int
    runs: int

    @property
    def step(self) -> float | None:
        """Operations of an update: 3 × forward × batch, since the way back takes twice as many as the way forward."""
        return None if self.forward is None else 3 * self.forward * self.batch

    def hours(self, speed: float) -> float | None:
        """Of all runs, one after the other, at so many operations a second."""
        return None if self.step is None else self.runs * self.steps * self.step / speed / 3600

    def gigabytes(self, devices: int, *, sharded: bool, half: bool) -> float:
        """Of each device: `16 · parameters` bytes, divided if they are sharded, and what its examples keep."""
        kept = (self.saved or 0.0) * self.batch / self.accumulate / devices * (0.5 if half else 1.0)
        return (STATE * self.parameters / (devices if sharded else 1) + kept) / 1e9


def cost_of(recipe: Recipe, task: Task, runs: int) -> Cost:
    """Count one example through the model at its full size, on the meta device.

    Operations are those of matrix products, convolutions and attention, as torch's own counter has them; bytes are
    those of the tensors that autograd keeps, parameters apart.

    >>> from wellcond.lab.recipe import load_recipe
    >>> from wellcond.lab.tasks import task
    >>> recipe = load_recipe("digits")
    >>> cost = cost_of(recipe, task("digits"), runs=21)
    >>> cost.parameters, cost.steps
    (86506, 300)
    """
    with torch.device("meta"):
        model = lab_model(recipe.model.name, recipe.model.options, task, seed=0)
    forward, saved = _counted(model, example(task))
    train = recipe.train
    return Cost(parameters(model), forward, saved, train.steps, train.batch, train.accumulate, runs)


def parameters(model: nn.Module) -> int:
    """How many numbers are trained; tied ones count once."""
    return sum(parameter.numel() for parameter in model.parameters())


def example(task: Task) -> Any:
    """One made-up input of the task's shape, without content."""
    shape = task.shape
    if task.kind in ("image", "detection"):
        size = shape["size"] or 800
        return torch.zeros(1, shape["channels"], size, size, device="meta")
    many = (1, 2, shape["tokens"]) if task.kind == "pair" else (1, shape["tokens"])
    return {"input_ids": torch.zeros(*many, dtype=torch.int64, device="meta")}


def _counted(model: nn.Module, inputs: Any) -> tuple[float | None, float | None]:
    kept: dict[int, int] = {}
    own = {parameter.untyped_storage()._cdata for parameter in model.parameters()}

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage._cdata not in own:
            kept[id(tensor)] = tensor.numel() * tensor.element_size()
            held.append(tensor)  # so that no other takes its number
        return tensor

    held: list[Tensor] = []
    counter = FlopCounterMode(display=False)
    try:
        with counter, torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            model.train()(**inputs) if isinstance(inputs, Mapping) else model.train()(inputs)
    except Exception:  # a forward that looks at its numbers; a detector wants targets
        return None, None
    return float(counter.get_total_flops()), float(sum(kept.values()))


def this_machine() -> float:
    """Operations a second of this machine, by a product of matrices."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    a = torch.ones(1024, 1024, device=device)
    a @ a
    begin, count = time.perf_counter(), 0
    while time.perf_counter() - begin < 0.2:
        a @ a
        if device == "cuda":
            torch.cuda.synchronize()
        count += 1
    return count * 2 * 1024**3 / (time.perf_counter() - begin)
