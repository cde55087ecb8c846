"""The batches of a run, each a function of the seed and the step; read and augmented ahead by other processes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from wellcond.errors import DataError
from wellcond.lab.recipe.recipe import Recipe
from wellcond.lab.tasks.base import Batch, Task
from wellcond.lab.tasks.own.examples import OwnExamples
from wellcond.lab.training.augment import augmented
from wellcond.lab.training.data_order import generator, indices

T = TypeVar("T")
Parts = list[tuple[Batch, float]]  # what is accumulated in turn, and its share of the whole


@dataclass(frozen=True)
class Batches(Dataset[Parts]):
    """Batches by step: the share of one of several processes, in as many parts as are accumulated."""

    recipe: Recipe
    task: Task
    seed: int
    process: int = 0
    processes: int = 1

    def __len__(self) -> int:
        return self.recipe.train.steps

    def __getitem__(self, step: int) -> Parts:
        settings, repeats = self.recipe.train, self.recipe.augment.repeats if self.recipe.augment else 1
        different = indices(self.seed, step, settings.batch // repeats, len(self.task.train))
        chosen = different.repeat(repeats)  # copies lie far apart, for other processes (Hoffer et al. 2020)
        mine = chosen.tensor_split(self.processes)[self.process]
        place = sum(map(len, chosen.tensor_split(self.processes)[: self.process]))
        found = []
        for number, part in enumerate(mine.tensor_split(settings.accumulate)):
            drawn = generator(self.seed, "prepare", step, number, self.process)
            # Gradients of processes are averaged, also where one has an example less than another.
            share = len(part) * self.processes / len(chosen)
            found.append((self.task.prepare(self._taken(part, step, place), drawn), share))
            place += len(part)
        return found

    def _taken(self, part: Tensor, step: int, place: int) -> Batch:
        """Examples as they are or augmented, each by its place in the batch, however that is divided."""
        train, augment = self.task.train, self.recipe.augment
        if isinstance(train, OwnExamples):
            return train.drawn(part, self.seed, step, first=place)
        if augment is None:
            return train[part]
        drawn = generator(self.seed, "augment", step)
        return augmented(train, part, augment, drawn, classes=self.task.shape["classes"], first=place)

    def since(self, start: int) -> Iterator[Parts]:
        """Yield the batches from a step on, in order."""
        yield from ahead(self, range(start, len(self)), self.recipe.train.workers)


def ahead(dataset: Dataset[T], order: Sequence[int], workers: int) -> Iterator[T]:
    """Yield a dataset's entries in an order, read ahead by `workers` processes.

    >>> list(ahead([1, 2, 3], [2, 0], workers=0))
    [3, 1]
    """
    loader: DataLoader[Any] = DataLoader(
        dataset,
        batch_size=None,
        sampler=order,
        num_workers=workers,
        collate_fn=_as_it_is,
        generator=torch.Generator(),  # a loader draws a seed, and must not from the global generator
    )
    try:
        yield from loader
    except DataError as error:  # from another process it comes with a traceback, and ends with what is the matter
        raise DataError(str(error).strip().splitlines()[-1].rpartition("DataError: ")[2]) from None


def _as_it_is(entry: Any) -> Any:
    return entry
