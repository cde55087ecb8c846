"""Evaluate a model on the test set, in parts that processes share; the result does not depend on how many."""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce
from operator import add
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.utils import gather_object
from torch import nn
from torch.utils.data import Dataset

from wellcond.lab.models import output_of
from wellcond.lab.recipe.settings import Training
from wellcond.lab.tasks.base import Batch, Task
from wellcond.lab.training.batches import ahead
from wellcond.lab.training.data_order import generator, seed_global_

MAX_PART_EXAMPLES = 256  # examples at a time, at most
MAX_PART_OUTPUTS = 2**26  # numbers that a part's output may have in any case: a quarter of a gigabyte


@dataclass(frozen=True)
class EvaluationParts(Dataset[Batch]):
    """Parts of the test set by number, of `size` examples each."""

    task: Task
    size: int

    @classmethod
    def of(cls, task: Task, settings: Training) -> EvaluationParts:
        """Parts of 256, or as many as training takes at a time, where 256 may not fit: a large vocabulary, own data."""
        shape = task.shape
        output = shape["tokens"] * shape["vocabulary"] if "text" in task.kind else shape.get("classes", 1)
        light = 0 if task.kind in ("detection", "custom") else MAX_PART_OUTPUTS // output
        return cls(task, max(1, min(MAX_PART_EXAMPLES, max(light, settings.batch // settings.accumulate))))

    def __len__(self) -> int:
        return -(-len(self.task.test) // self.size)

    def __getitem__(self, number: int) -> Batch:
        chosen = torch.arange(number * self.size, min((number + 1) * self.size, len(self.task.test)))
        return self.task.prepare(self.task.test[chosen], generator("test", number))


@torch.no_grad()
def evaluate(model: nn.Module, task: Task, settings: Training, accelerator: Accelerator) -> dict[str, float]:
    """Return the metric on the test set and the task's extra numbers.

    Each process takes every n-th part. All take as many: a forward of several processes waits for all of them, so one
    that has run out of parts repeats one, which does not count.
    """
    was = model.training
    model.eval()
    seed_global_(accelerator.device, generator("test").initial_seed())  # a metric of the user's own may draw
    tests, n = EvaluationParts.of(task, settings), accelerator.num_processes
    turns = range(accelerator.process_index, -(-len(tests) // n) * n, n)
    found: list[tuple[int, Any]] = []
    for number, batch in zip(turns, ahead(tests, [i % len(tests) for i in turns], settings.workers), strict=True):
        examples = batch.to(accelerator.device, getattr(torch, settings.dtype))
        with accelerator.autocast():
            counts = task.score(output_of(model, task, examples), examples)
        found += [(number, counts)] if number < len(tests) else []
    model.train(was)
    every = sorted(gather_object(found) if n > 1 else found, key=lambda pair: pair[0])
    total = reduce(add, (counts for _, counts in every))  # in the order of the parts, whoever made them
    return {task.metric: task.metric_of(total)} | task.extras(total)
