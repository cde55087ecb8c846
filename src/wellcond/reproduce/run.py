"""`wellcond reproduce`: the recipes of a table or figure, on the user's data or on made-up ones."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from wellcond.errors import WellcondError
from wellcond.lab.commands import Engine, prepared, run_prepared
from wellcond.lab.compare import Experiment
from wellcond.lab.outcome import read_outcomes
from wellcond.lab.processes import first_process, wait_for_all
from wellcond.lab.recipe import Recipe, merged
from wellcond.lab.settings import Named
from wellcond.lab.summary import table_text
from wellcond.report.comparison_page import write_comparison_page
from wellcond.report.figures import draw_figures
from wellcond.reproduce.analytic import analytic
from wellcond.reproduce.catalogue import CURVES, entries_of, item, rows_of
from wellcond.reproduce.cost import PEAK, REACHED, cost_of, this_machine
from wellcond.reproduce.entry import Entry, load_entry, needed_folders, tasks_of
from wellcond.reproduce.made import Made
from wellcond.reproduce.made_up import write_made_up
from wellcond.reproduce.made_up_tokenizer import TOKENIZER
from wellcond.reproduce.measured import Beside, beside

Say = Callable[[str], None]
SMOKE_STEPS = 3
PLACES = ("folder", "cache")  # options of tasks that are in the folder of data


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
) -> list[Beside]:
    """Make a table or figure again: run its recipes that are not done, and put ours beside the published numbers.

    Args:
        id: of the table or figure.
        out: where the runs are kept, a folder for each recipe.
        engine: where they are made.
        data: the folder that holds the data sets, each in a folder of its own.
        only: one of the recipes, by data or model.
        smoke: a few steps of the same code, small, on made-up data.
        changes: of the recipes' keys.
        say: is told what it costs before it begins.
    """
    what, chosen = item(id), entries_of(id, only)
    if what.kind == "analytic":
        say(analytic())
        return []
    if not chosen:
        raise WellcondError(f"{id} has nothing to train: {what.title[0].lower()}{what.title[1:]}")
    ready = [_ready(entry, out / entry.name, data, smoke, changes or {}, say) for entry in chosen]
    found: list[Beside] = []
    for entry, experiments in zip(chosen, ready, strict=True):
        compared = run_prepared(experiments, engine)
        measured = {folder.name: read_outcomes(folder) for folder in compared}
        numbers = [number for row in rows_of(entry, id) for number in beside(row, measured)]
        found += numbers
        for folder, comparison in compared.items() if first_process() else ():
            if not numbers:  # published as curves, or in words
                say(f"\n{table_text(comparison)}\n")
            say(f"page: {write_comparison_page(folder)}")
            if what.kind in CURVES:
                say(_drawn(folder / "figures", folder))
    return found


def _ready(
    entry: Entry, folder: Path, data: Path | None, smoke: bool, changes: Mapping[str, Any], say: Say
) -> list[Experiment]:
    """An entry's comparisons, checked, and what they cost; all entries are, before the first of them is trained."""
    said = entry.published
    say(f"{entry.name} ({said.only}): {said.parameters:,} parameters at full size; the data are read first")
    if smoke:
        recipe = _smoke(entry, folder, changes)
    else:
        recipe = with_data(load_entry(entry.name, changes).recipe, _given(data, entry))
    experiments = prepared(recipe, folder / "runs")
    if first_process():
        Made(smoke, changes).write(folder)
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
    """The recipe with its folders inside of the folder of data sets.

    >>> entry = load_entry("ci-vit-t-cifar10")
    >>> with_data(entry.recipe, Path("/datasets")).task.options["folder"]
    '/datasets/cifar10'
    """
    return _with_tasks(recipe, lambda task: _inside(task, data.absolute()))


def costs(entry: Entry, experiments: Sequence[Experiment]) -> Iterator[str]:
    """What a recipe will take, lines for each of its stages, and how that was computed."""
    said, here = entry.published, this_machine()
    for experiment in experiments:
        name = f"{entry.name}, {experiment.out.name}" if len(experiments) > 1 else entry.name
        train, runs = experiment.recipe.train, len(experiment.left())
        if not runs:
            yield f"{name}: all runs are done"
            continue
        half = train.precision != "no"
        cost, peak = cost_of(experiment.recipe, experiment.task, runs), PEAK[said.gpu][0 if half else 1]
        memory = cost.gigabytes(said.gpus, sharded=train.sharding == "fsdp2", half=half)
        theirs, ours = (_hours(cost.hours(speed)) for speed in (said.gpus * peak * REACHED, here))
        yield f"{name}: {cost.parameters:,} parameters, {runs} runs of {cost.steps:,} steps of {cost.batch}"
        yield f"  {cost.step:.3g} operations a step = 3 × {cost.forward:.3g} forwards × {cost.batch} examples"
        gpus = f"{said.gpus} × {said.gpu} at {REACHED:.0%} of {peak / 1e12:.4g} TFLOP/s"
        yield f"  {theirs} on {gpus}, about {memory:.1f} GB each"
        yield f"  {ours} on this machine at {here / 1e9:.0f} GFLOP/s; to read the data is not counted"


def _hours(hours: float) -> str:
    if hours < 1 / 60:
        return "less than a minute"
    return (
        f"{60 * hours:.0f} minutes" if hours < 2 else f"{hours:.0f} hours" if hours < 72 else f"{hours / 24:.0f} days"
    )


def _given(data: Path | None, entry: Entry) -> Path:
    """The folder of data sets; those that are generated are kept in it, and need none."""
    needed = needed_folders(entry)
    if data is None and needed:
        raise WellcondError(
            f"{entry.name} needs data: --data DIR with {', '.join(needed)} in it, or --smoke for made-up ones"
        )
    return data or Path("data")


def _inside(task: Named, data: Path) -> Named:
    options = task.options
    return Named(name=task.name, **options | {key: str(data / options[key]) for key in PLACES if key in options})


def _smoke(entry: Entry, out: Path, changes: Mapping[str, Any]) -> Recipe:
    """The same recipe in small, on made-up data that are written first."""
    few = merged(_few_steps(entry), changes)
    recipe = load_entry(entry.name, merged(entry.published.smoke, few)).recipe
    data = out / "data"
    for task in tasks_of(recipe) if first_process() else ():
        folder = data / task.options.get("folder", "")
        if "folder" in task.options and not (folder.is_dir() and any(folder.iterdir())):
            write_made_up(task.name, folder, task.options)
    wait_for_all()
    return _with_tokenizers(with_data(recipe, data))


def _few_steps(entry: Entry) -> dict[str, Any]:
    """The change that makes a few steps of each stage, whatever the number of examples is."""
    steps: dict[str, Any] = {"train": {"steps": SMOKE_STEPS}}
    stages = {stage.name: steps for stage in entry.recipe.stages}
    return steps | ({"stages": stages} if stages else {})


def _with_tokenizers(recipe: Recipe) -> Recipe:
    """Made-up tokenizers in place of those that would have to be fetched."""

    def own(task: Named) -> Named:
        given: dict[str, Any] = task.options
        if given.get("tokenizer") is None:
            return task
        return Named(name=task.name, **given | {"tokenizer": str(Path(given["folder"]) / TOKENIZER)})

    return _with_tasks(recipe, own)


def _with_tasks(recipe: Recipe, change: Callable[[Named], Named]) -> Recipe:
    """The recipe with each of its tasks changed, also those of stages."""
    stages = tuple(
        stage.model_copy(update={"task": change(stage.task)}) if stage.task else stage for stage in recipe.stages
    )
    return recipe.model_copy(update={"task": change(recipe.task), "stages": stages})
