"""The runs of a comparison, each kept in its folder, so that what is done stays done."""

from __future__ import annotations

import math
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from wellcond._core.file_names import check_path
from wellcond._core.global_generators import restored_generators
from wellcond.errors import DataError, StorageError, WellcondError
from wellcond.lab.analysis.outcome import Outcome, read_outcome
from wellcond.lab.comparison_folder import reserve_folder
from wellcond.lab.engines.distributed import NEEDS_TORCHRUN, first_process, processes, wait_for_all
from wellcond.lab.models import OwnModel, check_fits, lab_model
from wellcond.lab.own_checks import check_own
from wellcond.lab.own_identity import own_identity
from wellcond.lab.recipe.arms import Arm, arms_of, check_arms
from wellcond.lab.recipe.recipe import Recipe, load_recipe, with_steps
from wellcond.lab.shown_layers import first_batch, shown_layers
from wellcond.lab.tasks import task as build_task
from wellcond.lab.tasks.base import Task
from wellcond.lab.training.augment import check_augment
from wellcond.lab.training.run_folder import RunFolder, read_description
from wellcond.lab.training.train import Report, Run, train

Said = Callable[[str, int, int, float], None]  # arm, seed, steps done, loss
DONE_STATUSES = ("finished", "diverged")  # a crashed run is tried again


@dataclass(frozen=True)
class Experiment:
    """A comparison to be run: its recipe, its task, the folder of its runs, and perhaps a model from memory."""

    recipe: Recipe
    task: Task
    out: Path
    own_model: OwnModel | None = None  # in place of the recipe's

    @classmethod
    def of(cls, recipe: Recipe, out: Path) -> Experiment:
        """Build the recipe's task, and count its epochs in steps."""
        return cls.of_task(recipe, build_task(recipe.task.name, **recipe.task.options), out)

    @classmethod
    def of_task(cls, recipe: Recipe, task: Task, out: Path, own_model: OwnModel | None = None) -> Experiment:
        """Take a task, and perhaps a model, from memory, and count its epochs in steps."""
        return cls(with_steps(recipe, len(task.train)), task, out, own_model)

    def folder(self, arm: Arm, seed: int) -> Path:
        """Return the folder of a run."""
        order = [each.name for each in arms_of(self.recipe)].index(arm.name)
        for there in sorted(self.out.glob(f"runs/[0-9][0-9]-{arm.folder}")):  # whatever was added before it since
            return there / f"seed-{seed}"
        return self.out / "runs" / f"{order:02d}-{arm.folder}" / f"seed-{seed}"

    def runs(self) -> Iterator[tuple[Arm, int]]:
        """Yield all runs, seed by seed, so that what is there early can be compared."""
        for seed in self.recipe.seeds:
            for arm in arms_of(self.recipe):
                yield arm, seed

    def left(self) -> list[tuple[Arm, int]]:
        """Return the runs that are not done."""
        return [(s, seed) for s, seed in self.runs() if self._status(s, seed) not in DONE_STATUSES]

    def _status(self, arm: Arm, seed: int) -> str:
        described = read_description(self.folder(arm, seed))
        if described and (described.get("settings"), described.get("lr")) != (_written(arm), self.rate(arm)):
            raise WellcondError(
                f"'{self.out}' holds runs of another arm '{arm.name}': give another --out, or rename the arm"
            )
        return str(described.get("status", ""))

    def rate(self, arm: Arm) -> float:
        """Return the peak of an arm's learning rate: as tuned, its own, or the recipe's."""
        own = arm.settings.lr if arm.settings.lr is not None else self.recipe.train.lr
        return self.recipe.rates.get(arm.name, own)

    def outcomes(self) -> list[Outcome]:
        """Read the outcomes that there are, in the recipe's order of arms."""
        found = [self.folder(arm, seed) for arm in arms_of(self.recipe) for seed in self.recipe.seeds]
        return [read_outcome(path) for path in found if (path / "run.json").exists()]


def prepare_comparison(recipe: Recipe | str | Path, out: Path) -> Experiment:
    """Check a recipe from end to end, on a model that is not trained, and reserve its folder."""
    check_path(out)
    return prepared(Experiment.of(recipe if isinstance(recipe, Recipe) else load_recipe(recipe), out))


def prepared(experiment: Experiment) -> Experiment:
    """Check a comparison whose task is built, and reserve its folder."""
    recipe, task, own_model = experiment.recipe, experiment.task, experiment.own_model
    if own_model is None:
        model = lab_model(recipe.model.name, recipe.model.options, task, seed=0)
    else:
        model = own_model.built(0)
    shown = shown_layers(recipe, task, own_model)
    parts = processes() * recipe.train.accumulate
    if recipe.train.batch < parts:
        raise WellcondError(f"a batch of {recipe.train.batch} cannot be divided into {parts} parts: make it larger")
    if task.own is None:
        check_fits(model, task, first_batch(model, task, 2), recipe.model.name)
    else:
        check_own(recipe, task, model, shown)
    if recipe.train.sharding == "fsdp2" and processes() == 1:
        raise WellcondError(NEEDS_TORCHRUN)
    if recipe.augment is not None:
        check_augment(recipe.augment, task, recipe.train.batch, parts)
    check_arms(recipe, model, task, shown)
    if first_process():
        reserve_folder(experiment.out, recipe, task, model, own_identity(recipe, task, model, own_model))
    wait_for_all()
    return experiment


def run_one(experiment: Experiment, arm: Arm, seed: int, report: Report = lambda step, loss: None) -> str:
    """Make one run; what goes wrong in it is recorded, and the others go on."""
    folder = RunFolder(experiment.folder(arm, seed))
    task = experiment.task
    run = Run(experiment.recipe, arm, seed, experiment.rate(arm), task, folder, experiment.own_model)
    if first_process():
        folder.describe(
            arm=arm.name,
            control_of=arm.control_of,
            control=arm.control,
            seed=seed,
            status="running",
            error="",
            metric=task.metric,
            higher_is_better=task.higher_is_better,
            steps=experiment.recipe.train.steps,
            lr=run.lr,
            settings=_written(arm),
        )
    try:
        with restored_generators():
            return train(run, report)
    except (StorageError, DataError):
        raise  # a full disk or a damaged image is nobody's result
    except Exception as error:
        last = traceback.extract_tb(error.__traceback__)[-1]
        said = f"{type(error).__name__}: {error} ({Path(last.filename).name}:{last.lineno})"
        if processes() > 1:  # the others wait for this one, and torchrun ends them with it
            raise WellcondError(f"arm '{arm.name}', seed {seed}: {said}") from error
        folder.describe(status="crashed", error=said)
        report(experiment.recipe.train.steps, math.nan)  # none of its steps are left
        return "crashed"


def run_all(experiment: Experiment, watch: Callable[[Arm, int], Report]) -> None:
    """Make every run that is not done, one after the other."""
    for arm, seed in experiment.left():
        run_one(experiment, arm, seed, watch(arm, seed))


def _written(arm: Arm) -> dict[str, Any]:
    """Return what of an arm's settings is not the default, so that options of later versions change nothing."""
    return arm.settings.model_dump(mode="json", exclude_defaults=True, exclude={"control"})
