"""Hashes of what a comparison has of the user's own, so that a folder is not continued with other data or functions."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import nn

from wellcond._core.function_hash import digest_of
from wellcond.errors import DataError
from wellcond.inputs.own_functions import names_a_function
from wellcond.lab.models import OwnModel
from wellcond.lab.recipe.recipe import Recipe
from wellcond.lab.tasks.base import Examples, Task
from wellcond.lab.tasks.own.examples import OwnExamples
from wellcond.lab.tasks.own.rules import OwnRules


def own_identity(recipe: Recipe, task: Task, model: nn.Module, own_model: OwnModel | None) -> dict[str, str]:
    """Return a hash of each thing that is the user's own, by what it is called in a refusal.

    Of a file it is of the content, of data of the length and three examples, of a function of its compiled code, of a
    model of its function, the names and shapes of its parameters, and what its classes compute.
    """
    found = data_identity(task)
    for name in (recipe.task.name, recipe.model.name):
        if names_a_function(name):
            file = name.rpartition(":")[0]
            found[f"'{file}'"] = hashlib.sha256(Path(file).read_bytes()).hexdigest()[:16]
    if isinstance(task.own, OwnRules):
        functions = {"loss": task.own.objective.loss, "metric": task.own.metric}
        functions["collate"] = getattr(task.train, "collate", None)
        found |= {f"the {name}": digest_of(function) for name, function in functions.items()}
    if own_model is not None:
        shapes = [(name, tuple(p.shape), str(p.dtype)) for name, p in model.named_parameters()]
        classes = sorted(
            {type(module) for module in model.modules()}, key=lambda cls: (cls.__module__, cls.__qualname__)
        )
        found["the model"] = digest_of(own_model.build, shapes, classes)
    return found


def data_identity(task: Task) -> dict[str, str]:
    """Return the hashes of a task's examples; none of a task that comes along."""
    if task.own is None:
        return {}
    return {f"the data to {word}": _examples(part) for word, part in (("train on", task.train), ("test", task.test))}


def check_same_data(task: Task, identity: Mapping[str, str]) -> None:
    """Refuse a task that gives another process other examples: its runs would not be paired with those here."""
    for what, digest in data_identity(task).items():
        if identity.get(what) != digest:
            raise DataError(
                f"{task.name} gives each process other examples to {what.rpartition(' to ')[2]}: begin with equal "
                "numbers, and sort what is a set"
            )


def _examples(examples: Examples) -> str:
    """The hash of some; a dataset that gives others each time is refused, as its draws cannot be repeated."""
    count = len(examples)
    places = torch.tensor(sorted({0, count // 2, count - 1}))
    first, again = (digest_of(count, batch.inputs, batch.targets) for batch in (examples[places], examples[places]))
    if first != again:
        where = examples.where if isinstance(examples, OwnExamples) else "the data"
        raise DataError(
            f"{where} has other numbers each time it is read: draw from the global generators of torch, NumPy or "
            "Python, which are seeded for every example"
        )
    return first
