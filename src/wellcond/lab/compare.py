"""`wellcond compare`: all runs of a recipe, each kept in its folder, so that what is done stays done."""

from __future__ import annotations

import math
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from wellcond.errors import DataError, StorageError, WellcondError
from wellcond.file_names import check_path
from wellcond.lab.arms import Scheme, check_schemes, schemes_of
from wellcond.lab.augment import check as check_augment
from wellcond.lab.claim import claim
from wellcond.lab.folder import RunFolder, describe
from wellcond.lab.models import check_fits, lab_model
from wellcond.lab.outcome import Outcome, read_outcome
from wellcond.lab.processes import ALONE, first_process, processes, wait_for_all
from wellcond.lab.recipe import Recipe, load_recipe, with_steps
from wellcond.lab.tasks import task as build_task
from wellcond.lab.tasks.base import Task
from wellcond.lab.train import Report, Run, train

DONE = ("finished", "diverged")  # a crashed run is tried again


@dataclass(frozen=True)
class Experiment:
    """A recipe, its task and the folder of its runs."""

    recipe: Recipe
    task: Task
    out: Path

    @classmethod
    def of(cls, recipe: Recipe, out: Path) -> Experiment:
        """With the recipe's task, and its epochs as steps."""
        task = build_task(recipe.task.name, **recipe.task.options)
        return cls(with_steps(recipe, len(task.train)), task, out)

    def folder(self, scheme: Scheme, seed: int) -> Path:
        """Where a run is kept."""
        order = [s.name for s in schemes_of(self.recipe)].index(scheme.name)
        for there in sorted(self.out.glob(f"runs/[0-9][0-9]-{scheme.folder}")):  # whatever was added before it since
            return there / f"seed-{seed}"
        return self.out / "runs" / f"{order:02d}-{scheme.folder}" / f"seed-{seed}"

    def runs(self) -> Iterator[tuple[Scheme, int]]:
        """All of them, seed by seed, so that what is there early can be compared."""
        for seed in self.recipe.seeds:
            for scheme in schemes_of(self.recipe):
                yield scheme, seed

    def left(self) -> list[tuple[Scheme, int]]:
        """Those that are not done."""
        return [(s, seed) for s, seed in self.runs() if self._status(s, seed) not in DONE]

    def _status(self, scheme: Scheme, seed: int) -> str:
        described = describe(self.folder(scheme, seed))
        if described and (described.get("arm"), described.get("lr")) != (_written(scheme), self.rate(scheme)):
            raise WellcondError(
                f"'{self.out}' holds runs of another scheme '{scheme.name}': give another --out, or rename the scheme"
            )
        return str(described.get("status", ""))

    def rate(self, scheme: Scheme) -> float:
        """The peak of a scheme's learning rate: as tuned, as its own, or as everybody's."""
        own = scheme.arm.lr if scheme.arm.lr is not None else self.recipe.train.lr
        return self.recipe.rates.get(scheme.name, own)

    def outcomes(self) -> list[Outcome]:
        """What is there, in the recipe's order of schemes."""
        found = [self.folder(scheme, seed) for scheme in schemes_of(self.recipe) for seed in self.recipe.seeds]
        return [read_outcome(path) for path in found if (path / "run.json").exists()]


def prepare(recipe: Recipe | str | Path, out: Path) -> Experiment:
    """Check a recipe from end to end, on a model that is not trained, and claim its folder."""
    check_path(out)
    experiment = Experiment.of(recipe if isinstance(recipe, Recipe) else load_recipe(recipe), out)
    recipe, task = experiment.recipe, experiment.task
    model = lab_model(recipe.model.name, recipe.model.options, task, seed=0)
    check_fits(model, task, task.test[torch.arange(2)], recipe.model.name)
    parts = processes() * recipe.train.accumulate
    if recipe.train.batch < parts:
        raise WellcondError(f"a batch of {recipe.train.batch} cannot be divided into {parts} parts: make it larger")
    if recipe.train.sharding == "fsdp2" and processes() == 1:
        raise WellcondError(ALONE)
    if recipe.augment is not None:
        check_augment(recipe.augment, task, recipe.train.batch, parts)
    check_schemes(recipe, model)
    if first_process():
        claim(out, recipe, task, model)
    wait_for_all()
    return experiment


def run_one(experiment: Experiment, scheme: Scheme, seed: int, report: Report = lambda step, loss: None) -> str:
    """One run; what goes wrong in it is recorded, and the others go on."""
    folder = RunFolder(experiment.folder(scheme, seed))
    task = experiment.task
    run = Run(experiment.recipe, scheme, seed, experiment.rate(scheme), task, folder)
    if first_process():
        folder.describe(
            scheme=scheme.name,
            control_of=scheme.control_of,
            seed=seed,
            status="running",
            error="",
            metric=task.metric,
            higher_is_better=task.higher_is_better,
            steps=experiment.recipe.train.steps,
            lr=run.lr,
            arm=_written(scheme),
        )
    try:
        with torch.random.fork_rng(devices=[]):
            return train(run, report)
    except (StorageError, DataError):
        raise  # a full disk or a damaged image is nobody's result
    except Exception as error:
        last = traceback.extract_tb(error.__traceback__)[-1]
        said = f"{type(error).__name__}: {error} ({Path(last.filename).name}:{last.lineno})"
        if processes() > 1:  # the others wait for this one, and torchrun ends them with it
            raise WellcondError(f"scheme '{scheme.name}', seed {seed}: {said}") from error
        folder.describe(status="crashed", error=said)
        report(experiment.recipe.train.steps, math.nan)  # none of its steps are left
        return "crashed"


def run_all(experiment: Experiment, watch: Callable[[Scheme, int], Report]) -> None:
    """Every run that is not done, one after the other."""
    for scheme, seed in experiment.left():
        run_one(experiment, scheme, seed, watch(scheme, seed))


def _written(scheme: Scheme) -> dict[str, Any]:
    """An arm as it is kept: what differs from the defaults, so that a later version's options change nothing."""
    return scheme.arm.model_dump(mode="json", exclude_defaults=True, exclude={"control"})
