"""`wellcond compare`: all runs of a recipe, each kept in its folder, so that what is done stays done."""

from __future__ import annotations

import hashlib
import json
import os
import shlex
import sys
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from accelerate import PartialState
from torch import nn

import wellcond as wc
from wellcond.errors import DataError, StorageError, WellcondError
from wellcond.lab.arms import Scheme, check_schemes, schemes_of
from wellcond.lab.augment import check as check_augment
from wellcond.lab.environment import environment
from wellcond.lab.folder import RunFolder, describe
from wellcond.lab.models import check_fits, lab_model, monitor_inputs
from wellcond.lab.outcome import Outcome, read_outcome
from wellcond.lab.recipe import Recipe, load_recipe, with_steps, written
from wellcond.lab.tasks import task as build_task
from wellcond.lab.tasks.base import Task
from wellcond.lab.train import Report, Run, train
from wellcond.plain import to_json
from wellcond.report.atomic import write_text

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
        return self.recipe.rates.get(scheme.name) or scheme.arm.lr or self.recipe.train.lr

    def outcomes(self) -> list[Outcome]:
        """What is there, in the recipe's order of schemes."""
        found = [self.folder(scheme, seed) for scheme in schemes_of(self.recipe) for seed in self.recipe.seeds]
        return [read_outcome(path) for path in found if (path / "run.json").exists()]


def prepare(recipe: Recipe | str | Path, out: Path) -> Experiment:
    """Check a recipe from end to end, on a model that is not trained, and claim its folder."""
    experiment = Experiment.of(recipe if isinstance(recipe, Recipe) else load_recipe(recipe), out)
    recipe, task = experiment.recipe, experiment.task
    model = lab_model(recipe.model.name, recipe.model.options, task, seed=0)
    check_fits(model, task, task.test[torch.arange(2)])
    if recipe.augment is not None:
        processes = int(os.environ.get("WORLD_SIZE", "1"))
        check_augment(recipe.augment, task, recipe.train.batch, processes * recipe.train.accumulate)
    check_schemes(recipe, model)
    if first_process():
        _claim(out, recipe, task, model)
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
        return train(run, report)
    except (StorageError, DataError):
        raise  # a full disk or a damaged image is nobody's result
    except Exception as error:
        last = traceback.extract_tb(error.__traceback__)[-1]
        folder.describe(
            status="crashed", error=f"{type(error).__name__}: {error} ({Path(last.filename).name}:{last.lineno})"
        )
        return "crashed"


def run_all(experiment: Experiment, watch: Callable[[Scheme, int], Report]) -> None:
    """Every run that is not done, one after the other."""
    for scheme, seed in experiment.left():
        run_one(experiment, scheme, seed, watch(scheme, seed))


def first_process() -> bool:
    """Whether this process writes: the only one, or the first of those that torchrun or accelerate started."""
    return int(os.environ.get("RANK", "0")) == 0


def wait_for_all() -> None:
    """Until every process is here, if there are several: the first has claimed the folder that the others write in."""
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        PartialState(cpu=not torch.cuda.is_available()).wait_for_everyone()


def _written(scheme: Scheme) -> dict[str, Any]:
    """An arm as it is kept: what differs from the defaults, so that a later version's options change nothing."""
    return scheme.arm.model_dump(mode="json", exclude_defaults=True)


def _claim(out: Path, recipe: Recipe, task: Task, model: nn.Module) -> None:
    """Make the folder this recipe's, or see that it is: runs of two recipes are not mixed."""
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise WellcondError(f"the folder '{out}' cannot be made: {error}") from None
    mark, own = out / "comparison.json", _fingerprint(recipe)
    if mark.exists() and _fingerprint_of(mark) != own:
        raise WellcondError(
            f"'{out}' holds the runs of another recipe (see {out / 'recipe.toml'}): give another --out, or delete it"
        )
    if not mark.exists() and any(out.iterdir()):
        raise WellcondError(f"'{out}' is not empty and holds no comparison: give another --out")
    write_text(out / "recipe.toml", written(recipe))
    about = {
        "fingerprint": own,
        "title": recipe.title or f"{recipe.model.name} on {task.name}",
        "command": shlex.join(["wellcond", *sys.argv[1:]])
        if Path(sys.argv[0]).stem in ("wellcond", "__main__")
        else "",
        **environment(),
        "task": {
            "name": task.name,
            "description": task.description,
            "metric": task.metric,
            "higher_is_better": task.higher_is_better,
        },
        "model": recipe.model.name,
        "parameters": sum(p.numel() for p in model.parameters()),
        "baseline": recipe.baseline,
        "diagram": _diagram(model, task),
    }
    write_text(mark, to_json(about) + "\n")


def _fingerprint(recipe: Recipe) -> str:
    """What makes a run what it is; more seeds or schemes are still the same comparison."""
    apart = {"title", "seeds", "schemes", "baseline", "rates", "tuning"}  # each run knows its scheme and its rate
    kept = recipe.model_dump(mode="json", exclude=apart, exclude_defaults=True)
    return hashlib.sha256(to_json(kept).encode()).hexdigest()[:16]


def _fingerprint_of(path: Path) -> str:
    try:
        return str(json.loads(path.read_text())["fingerprint"])
    except (OSError, ValueError, KeyError) as error:
        raise WellcondError(f"'{path}' cannot be read ({error}): give another --out") from None


def _diagram(model: nn.Module, task: Task) -> dict[str, Any] | None:
    """The arguments of the model's own diagram, where the theory has it."""
    try:
        spot = wc.locate(model, monitor_inputs(task.test[torch.arange(2)]))
    except WellcondError:
        return None
    first = spot.layers[0]
    return {
        "depth": len(spot.layers),
        "tokens": max(2, round(first.tokens)),
        "norm": first.norm,
        "mlp_gain": list(first.mlp_gain),
        "cosine": max(0.0, first.cosine_read),
    }
