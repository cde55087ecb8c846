"""Run the recipes of a table or figure, on the user's data or on fake ones: `wellcond reproduce`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from wellcond.errors import WellcondError
from wellcond.lab.analysis.outcome import read_outcomes
from wellcond.lab.analysis.summary import table_text
from wellcond.lab.api import prepared, run_prepared
from wellcond.lab.comparison import Experiment
from wellcond.lab.engines.distributed import first_process, wait_for_all
from wellcond.lab.engines.engine import Engine
from wellcond.lab.figures.draw import draw_figures
from wellcond.lab.page.comparison_data import write_comparison_page
from wellcond.lab.recipe.recipe import Recipe, merged
from wellcond.lab.recipe.settings import Named
from wellcond.reproduce.catalogue import CURVES, item, published_rows, recipes_of
from wellcond.reproduce.cost import PEAK_SPEEDS, REACHED_PART, conditioning_cost_tables, cost_of, this_machine
from wellcond.reproduce.fake_data.tokenizer import TOKENIZER_FOLDER
from wellcond.reproduce.fake_data.writers import write_fake_data
from wellcond.reproduce.provenance import Provenance
from wellcond.reproduce.published_numbers import PublishedNumber, published_numbers
from wellcond.reproduce.published_recipe import PublishedRecipe, load_published, needed_folders, tasks_of

Say = Callable[[str], None]
SMOKE_STEPS = 3
FOLDER_OPTIONS = ("folder", "cache")  # options of tasks that are in the folder of data


def reproduce(
    id: str,
    out: Path,
    engine: Engine,
    *,
    data: Path | None = None,
    only: str | None = None,
    smoke: bool = False,
    changes: Mapping[str, Any] | None = None,
    say: Say = lambda line: None,
) -> list[PublishedNumber]:
    """Make a table or figure again: run its recipes that are not done, and put ours beside the published numbers.

    Args:
        id: of the table or figure.
        out: where the runs are kept, a folder for each recipe.
        engine: where they are made.
        data: the folder that holds the data sets, each in a folder of its own.
        only: one of the recipes, by data or model.
        smoke: a few steps of the same code, small, on fake data.
        changes: of the recipes' keys.
        say: is told what it costs before it begins.
    """
    what, chosen = item(id), recipes_of(id, only)
    if what.kind == "analytic":
        say(conditioning_cost_tables())
        return []
    if not chosen:
        raise WellcondError(f"{id} has nothing to train: {what.title[0].lower()}{what.title[1:]}")
    ready = [_ready(entry, out / entry.name, data, smoke, changes or {}, say) for entry in chosen]
    found: list[PublishedNumber] = []
    for entry, experiments in zip(chosen, ready, strict=True):
        compared = run_prepared(experiments, engine)
        outcomes = {folder.name: read_outcomes(folder) for folder in compared}
        numbers = [number for row in published_rows(entry, id) for number in published_numbers(row, outcomes)]
        found += numbers
        for folder, comparison in compared.items() if first_process() else ():
            if not numbers:  # published as curves, or in words
                say(f"\n{table_text(comparison)}\n")
            say(f"page: {write_comparison_page(folder)}")
            if what.kind in CURVES:
                say(_drawn(folder / "figures", folder))
    return found


def _ready(
    entry: PublishedRecipe, folder: Path, data: Path | None, smoke: bool, changes: Mapping[str, Any], say: Say
) -> list[Experiment]:
    """Check a recipe's comparisons and say what they cost; all recipes are, before the first of them is trained."""
    said = entry.published
    say(f"{entry.name} ({said.only}): {said.parameters:,} parameters at full size; the data are read first")
    if smoke:
        recipe = _smoke(entry, folder, changes)
    else:
        recipe = with_data(load_published(entry.name, changes).recipe, _given(data, entry))
    experiments = prepared(recipe, folder / "runs")
    if first_process():
        Provenance(smoke, changes).write(folder)
    for line in costs(entry, experiments):
        say(line)
    return experiments


def _drawn(folder: Path, runs: Path) -> str:
    """Draw the figures of a comparison; say where they are, or why there are none."""
    try:
        return f"figures in {folder}: {', '.join(path.name for path in draw_figures([runs], folder))}"
    except WellcondError as error:  # no run finished, or no matplotlib: no reason to leave the other recipes out
        return f"no figures: {error}"


def with_data(recipe: Recipe, data: Path) -> Recipe:
    """Return the recipe with its folders inside of the folder of data sets.

    >>> entry = load_published("ci-vit-t-cifar10")
    >>> with_data(entry.recipe, Path("/datasets")).task.options["folder"]
    '/datasets/cifar10'
    """
    whole = data.absolute()
    return _with_options(recipe, lambda task: {key: str(whole / task[key]) for key in FOLDER_OPTIONS if key in task})


def costs(entry: PublishedRecipe, experiments: Sequence[Experiment]) -> Iterator[str]:
    """Say what a recipe will take, in lines for each of its stages, and how that was computed."""
    said, here = entry.published, this_machine()
    for experiment in experiments:
        name = f"{entry.name}, {experiment.out.name}" if len(experiments) > 1 else entry.name
        train, runs = experiment.recipe.train, len(experiment.left())
        if not runs:
            yield f"{name}: all runs are done"
            continue
        half = train.precision != "no"
        cost, peak = cost_of(experiment.recipe, experiment.task, runs), PEAK_SPEEDS[said.gpu][0 if half else 1]
        memory = cost.gigabytes(said.gpus, sharded=train.sharding == "fsdp2", half=half)
        theirs, ours = (_hours(cost.hours(speed)) for speed in (said.gpus * peak * REACHED_PART, here))
        yield f"{name}: {cost.parameters:,} parameters, {runs} runs of {cost.steps:,} steps of {cost.batch}"
        yield f"  {cost.step:.3g} operations a step = 3 × {cost.forward:.3g} forwards × {cost.batch} examples"
        gpus = f"{said.gpus} × {said.gpu} at {REACHED_PART:.0%} of {peak / 1e12:.4g} TFLOP/s"
        yield f"  {theirs} on {gpus}, about {memory:.1f} GB each"
        yield f"  {ours} on this machine at {here / 1e9:.0f} GFLOP/s; to read the data is not counted"


def _hours(hours: float) -> str:
    if hours < 1 / 60:
        return "less than a minute"
    return (
        f"{60 * hours:.0f} minutes" if hours < 2 else f"{hours:.0f} hours" if hours < 72 else f"{hours / 24:.0f} days"
    )


def _given(data: Path | None, entry: PublishedRecipe) -> Path:
    """Return the folder of data sets; those that are generated are kept in it, and need none."""
    needed = needed_folders(entry)
    if data is None and needed:
        raise WellcondError(
            f"{entry.name} needs data: --data DIR with {', '.join(needed)} in it, or --smoke for fake ones"
        )
    return data or Path("data")


def _smoke(entry: PublishedRecipe, out: Path, changes: Mapping[str, Any]) -> Recipe:
    """Return the recipe in small, on fake data that are written first."""
    few: dict[str, Any] = {"train": {"steps": SMOKE_STEPS}}  # of each stage, whatever the number of examples is
    stages = {"stages": {stage.name: few for stage in entry.recipe.stages}} if entry.recipe.stages else {}
    recipe = load_published(entry.name, merged(entry.published.smoke, merged(few | stages, changes))).recipe
    data = out / "data"
    for task in tasks_of(recipe) if first_process() else ():
        folder = data / task.options.get("folder", "")
        if "folder" in task.options and not (folder.is_dir() and any(folder.iterdir())):
            write_fake_data(task.name, folder, task.options)
    wait_for_all()
    return _with_options(with_data(recipe, data), _fake_tokenizer)


def _fake_tokenizer(task: dict[str, Any]) -> dict[str, Any]:
    """Return the fake tokenizer in place of one that would have to be fetched, if the task has one."""
    return {} if task.get("tokenizer") is None else {"tokenizer": str(Path(task["folder"]) / TOKENIZER_FOLDER)}


def _with_options(recipe: Recipe, change: Callable[[dict[str, Any]], dict[str, Any]]) -> Recipe:
    """Return the recipe with options of each of its tasks changed, also those of stages."""

    def changed(task: Named) -> Named:
        return Named(name=task.name, **task.options | change(task.options))

    stages = tuple(
        stage.model_copy(update={"task": changed(stage.task)}) if stage.task else stage for stage in recipe.stages
    )
    return recipe.model_copy(update={"task": changed(recipe.task), "stages": stages})
