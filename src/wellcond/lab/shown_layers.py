"""Attention layers of a model of the user's own: as a pass over its data shows them, where no adapter knows them."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from wellcond.attention.layers import LayerFilter
from wellcond.inputs.own_functions import names_a_function
from wellcond.lab.models import OwnModel, inputs_of
from wellcond.lab.recipe.arms import Shown, by_class
from wellcond.lab.recipe.recipe import Recipe
from wellcond.lab.tasks.base import Batch, Task
from wellcond.scale.views_on_batch import views_on_batch

SHOWN_BY = 2  # examples


def shown_layers(recipe: Recipe, task: Task, own_model: OwnModel | None = None) -> Shown:
    """Return what finds the attention layers of a model: its classes, for what comes along, else a pass."""
    if task.own is None and own_model is None and not names_a_function(recipe.model.name):
        return by_class

    def shown(model: nn.Module) -> LayerFilter:
        return views_on_batch(model, first_inputs(model, task, SHOWN_BY), None)

    return shown


def first_inputs(model: nn.Module, task: Task, count: int) -> Any:
    """Return what a model is called with for the first examples of the test set."""
    return inputs_of(model, task, first_batch(model, task, count))


def first_batch(model: nn.Module, task: Task, count: int) -> Batch:
    """Return the first examples of the test set, where the model is."""
    first = next(model.parameters())
    return task.test[torch.arange(min(count, len(task.test)))].to(first.device, first.dtype)
