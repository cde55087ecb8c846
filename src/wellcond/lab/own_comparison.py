"""Comparisons of models and data from memory: the arms of some schemes, their controls, and their runs in a folder."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torch import nn

from wellcond._core.file_names import check_path
from wellcond._core.keyed_random import neutral
from wellcond.attention.ordinary import with_gradients
from wellcond.errors import ArgumentError, WellcondError
from wellcond.lab.analysis.statistics import Comparison, compare_outcomes
from wellcond.lab.comparison import Experiment, prepared
from wellcond.lab.engines.engine import Engine
from wellcond.lab.models import OwnModel
from wellcond.lab.page.comparison_data import write_comparison_page
from wellcond.lab.recipe.arms import Arm
from wellcond.lab.recipe.recipe import Recipe, valid_recipe
from wellcond.lab.recipe.settings import ArmSettings
from wellcond.lab.shown_layers import first_inputs, shown_layers
from wellcond.lab.tasks import task as build_task
from wellcond.lab.tasks.base import Task
from wellcond.lab.tasks.own.task_of import task_of
from wellcond.lab.training.train import CALIBRATED_ON
from wellcond.scale.measure_scales import measure_scales

DEFAULT = "default"  # the arm that begins with the model's own weights


@neutral()
@with_gradients()
def compare_own(
    build_model: Callable[[], nn.Module] | str,
    data: Mapping[str, Any] | str,
    own: Mapping[str, Any],
    schemes: Sequence[str | Mapping[str, str]],
    keys: Mapping[str, Any],
    controls: bool,
    out: Any,
) -> Comparison:
    """Make the runs and compare them.

    Arguments as in `wc.compare`; `own` are loss, metric and the like, `keys` those of a recipe.
    """
    task, model, named = _task(data, own), None, build_model
    if isinstance(build_model, nn.Module):
        raise ArgumentError(
            "compare: build_model is a function that builds a model, a new one for each run; got a model: write "
            f"lambda: {type(build_model).__name__}(…)"
        )
    if not isinstance(build_model, str):
        model = OwnModel(build_model)
        model.checked()  # before anything is written into what it returns
        named = model.name
    inits = {_arm_name(scheme): scheme if isinstance(scheme, str) else dict(scheme) for scheme in schemes}
    if len(inits) < len(schemes) or not inits or DEFAULT in inits:
        raise ArgumentError(f"compare: schemes are one or more different ones of wc.schemes(); got {list(schemes)!r}")
    recipe = valid_recipe(
        {
            "title": f"{named} on {task.name}",
            "task": {"name": task.name},
            "model": {"name": named},
            "arms": {DEFAULT: {}} | {name: {"init": init} for name, init in inits.items()},
            **keys,
        },
        "compare",
    )
    if controls:
        recipe = _with_controls(recipe, task, model)
    with _folder(out) as folder:
        experiment = prepared(Experiment.of_task(recipe, task, folder, model))
        Engine().run(experiment)
        outcomes = experiment.outcomes()
        if all(run.status == "crashed" for run in outcomes):
            raise WellcondError(f"compare: every run crashed, the first with {outcomes[0].error}")
        found = compare_outcomes(outcomes, DEFAULT)
        if out is not None:
            write_comparison_page(folder)
    return found


def _task(data: Mapping[str, Any] | str, own: Mapping[str, Any]) -> Task:
    given = [name for name, value in own.items() if value is not None]
    if not isinstance(data, str):
        twice = [name for name in given if name in data]
        if twice:
            raise ArgumentError(f"compare: {twice[0]} is an argument and in data: leave one of them out")
        return task_of({**data, **{name: own[name] for name in given}}, "data")
    if given:
        raise ArgumentError(f"compare: the task {data!r} has its own loss, metric and batches: leave {given[0]} out")
    return build_task(data)


def _arm_name(scheme: str | Mapping[str, str]) -> str:
    """Name an arm by its scheme, or by those of its roles.

    >>> _arm_name({"qk": "conditioned", "vo": "mimetic"})
    'qk conditioned, vo mimetic'
    """
    return scheme if isinstance(scheme, str) else ", ".join(f"{roles} {name}" for roles, name in scheme.items())


def _with_controls(recipe: Recipe, task: Task, own: OwnModel | None) -> Recipe:
    """Add to each scheme the control of its scale and, where attention has a sharpness, the calibrated default."""
    arms = {}
    for name, settings in recipe.arms.items():
        kinds = () if settings.init is None else ("scale", *_calibrated(recipe, task, own, name, settings))
        arms[name] = settings.model_copy(update={"control": kinds})
    return recipe.model_copy(update={"arms": arms})


def _calibrated(recipe: Recipe, task: Task, own: OwnModel | None, name: str, settings: ArmSettings) -> tuple[str, ...]:
    """The control that has the sharpness and gains of an arm, if a fresh model can be given them."""
    shown, control = shown_layers(recipe, task, own), Arm(name, settings, name, "calibrated")
    model = control.built(recipe, task, 0, own)
    inputs = first_inputs(model, task, CALIBRATED_ON)
    try:
        scales = measure_scales(model, inputs)
        control.initialise_(model, 0, lambda model: inputs, shown)
    except WellcondError:
        return ()  # what else is wrong with it is said when all arms are checked
    return ("calibrated",) if any(s.beta and None not in s.beta for s in scales.values()) else ()


@contextmanager
def _folder(out: Any) -> Iterator[Path]:
    """The folder of the runs, or one that is removed."""
    if out is not None:
        yield check_path(Path(out))
        return
    with tempfile.TemporaryDirectory(prefix="wellcond-") as name:
        yield Path(name) / "comparison"
