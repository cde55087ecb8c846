"""What `wc.recommend` says of a recipe's model, seed by seed, kept in the folder of the comparison."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import wellcond as wc
from wellcond._core.atomic import write_text
from wellcond._core.json_files import read_object
from wellcond._core.json_safe import to_json
from wellcond.errors import StorageError
from wellcond.lab.models import lab_model
from wellcond.lab.recipe.recipe import Recipe
from wellcond.lab.tasks.base import Batch, Task
from wellcond.lab.training.batches import Batches
from wellcond.lab.training.optimize import optimizer_for

MOST_BATCHES = 128
OTHER_ORDER = 10_000  # beyond the seeds of runs: the batches of advice are not those that a run begins with


def advised_seed(
    recipe: Recipe, task: Task, seed: int, seconds: float, schemes: Sequence[str], folder: Path
) -> dict[str, Any]:
    """Return the recommendation for one seed as `to_dict` has it: as kept, or made and kept.

    Args:
        recipe: of the comparison whose arms are the candidates.
        task: its task.
        seed: of the model's own weights.
        seconds: that the probe may take.
        schemes: to consider.
        folder: for the trials, and for the recommendation.
    """
    kept, asked = folder / "recommendation.json", {"seconds": seconds, "schemes": list(schemes)}
    if kept.exists():
        found = read_object(kept, f"delete '{folder}' to ask again")
        if found.get("asked") != asked:
            raise StorageError(f"'{folder}' holds advice of {found.get('asked')}: delete it, or give another --out")
        return found
    settings = recipe.train

    def optimizer(model: nn.Module) -> torch.optim.Optimizer:
        return optimizer_for(model, settings.lr, settings)

    def loss(output: Any, target: Tensor) -> Tensor:
        return task.loss(output, Batch(None, target))

    every = Batches(recipe, task, OTHER_ORDER + seed)
    batches = [(batch.inputs, batch.targets) for i in range(min(MOST_BATCHES, len(every))) for batch, _ in every[i]]
    model = lab_model(recipe.model.name, recipe.model.options, task, seed)
    found = wc.recommend(
        model, batches, loss=loss, optimizer=optimizer, seconds=seconds, schemes=schemes, out=folder / "trials"
    ).to_dict() | {"asked": asked}
    folder.mkdir(parents=True, exist_ok=True)
    write_text(kept, to_json(found) + "\n")
    return read_object(kept, "")
