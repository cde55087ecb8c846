"""Compare, tune and look at the arms of a recipe: what the commands of the laboratory call."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from wellcond._core.atomic import write_text
from wellcond._core.json_safe import to_json
from wellcond.errors import WellcondError
from wellcond.html.surface_page import surface_page
from wellcond.lab.analysis.common_targets import CommonTargets, common_targets
from wellcond.lab.analysis.contrasts import read_contrasts
from wellcond.lab.analysis.sensitivity import GRID, Sensitivity, sensitivity_of
from wellcond.lab.analysis.statistics import Comparison, compare_outcomes
from wellcond.lab.analysis.summary import table_text
from wellcond.lab.analysis.surface import Surface
from wellcond.lab.analysis.surface_runs import read_surface, surface_of
from wellcond.lab.analysis.tuning import Rates, rates_of, tuning_recipe
from wellcond.lab.comparison import Experiment, prepare_comparison
from wellcond.lab.engines.distributed import first_process, wait_for_all
from wellcond.lab.engines.engine import Engine
from wellcond.lab.figures.compared_runs import read_about
from wellcond.lab.figures.surface import surface_figure
from wellcond.lab.page.comparison_data import write_comparison_page
from wellcond.lab.page.surface_data import surface_data
from wellcond.lab.recipe.rate_grid import grid_recipe
from wellcond.lab.recipe.recipe import Recipe, load_recipe, recipe_toml, shipped
from wellcond.lab.recipe.settings import Tuning
from wellcond.lab.recipe.stages import stages_of
from wellcond.lab.recipe.surface_grid import surface_grid

__all__ = [
    "Engine",
    "compare_recipe",
    "first_process",
    "load_recipe",
    "read_contrasts",
    "sensitivity_recipe",
    "shipped",
    "read_targets",
    "surface_recipe",
    "table_text",
    "tune_recipe",
    "with_tuning",
    "write_comparison_page",
]


def compare_recipe(recipe: Recipe, out: Path, engine: Engine) -> dict[Path, Comparison]:
    """Make all runs of a recipe that are not made yet, and compare them.

    Args:
        recipe: of one comparison, or of several stages.
        out: where its runs are kept.
        engine: where they are made.

    Returns:
        Each comparison by its folder: one, or as many as there are stages.
    """
    return run_prepared(prepared(recipe, out), engine)


def prepared(recipe: Recipe, out: Path) -> list[Experiment]:
    """Prepare a recipe's comparison, or that of each stage; all are checked before the first is trained."""
    return [prepare_comparison(each, folder) for each, folder in stages_of(recipe, out)]


def run_prepared(experiments: list[Experiment], engine: Engine) -> dict[Path, Comparison]:
    """Make the runs of prepared comparisons that are not made yet, one comparison after the other."""
    found = {}
    for experiment in experiments:
        tuned = _tuned(experiment, engine)
        engine.run(tuned)
        found[experiment.out] = compare_outcomes(tuned.outcomes(), experiment.recipe.baseline)
    return found


def tune_recipe(recipe: Recipe, out: Path, engine: Engine) -> Rates:
    """Find a learning rate for each arm, and write the recipe with them as `tuned.toml`."""
    if recipe.stages:
        raise WellcondError(
            "a recipe with stages is tuned stage by stage: write the one to tune as a recipe of its own"
        )
    tuning = prepare_comparison(tuning_recipe(recipe), out)
    engine.run(tuning)
    wait_for_all()
    rates = rates_of(recipe, tuning.outcomes())
    if first_process():
        tuned = recipe.model_copy(update={"rates": rates.best(), "tuning": None})
        write_text(out / "tuned.toml", recipe_toml(tuned))
    return rates


def sensitivity_recipe(recipe: Recipe, lr: tuple[float, ...] | None, out: Path, engine: Engine) -> Sensitivity:
    """Train every arm at every learning rate, by default an eighth to eight times the recipe's; write what came of it.

    `out` then holds the runs, `sensitivity.json` and `sensitivity.png`.
    """
    if recipe.stages:
        raise WellcondError(
            "a recipe with stages has no learning rate: write the one to look at as a recipe of its own"
        )
    rates = lr or tuple(float(f"{recipe.train.lr * factor:.4g}") for factor in GRID)
    grid = prepare_comparison(grid_recipe(recipe, rates, recipe.seeds, test_first=True), out)
    engine.run(grid)
    wait_for_all()
    found = sensitivity_of(recipe, rates, grid.outcomes())
    if first_process():
        write_text(out / "sensitivity.json", to_json(found.to_dict()) + "\n")
        found.plot(out / "sensitivity.png")
    return found


def surface_recipe(recipe: Recipe, out: Path, engine: Engine) -> tuple[Surface, Path]:
    """Train a grid of starts, every β with every g, and the recipe's arms; return the surface and its page.

    `out` then holds the runs, `surface.json`, `surface.png` and `surface.html`.
    """
    experiment = prepare_comparison(surface_grid(recipe), out)
    engine.run(experiment)
    wait_for_all()
    found = surface_of(experiment.recipe, experiment.outcomes())
    page = out / "surface.html"
    if first_process():
        about = read_about(out)
        write_text(out / "surface.json", to_json(found.to_dict()) + "\n")
        surface_figure(found, out / "surface.png", about)
        write_text(page, surface_page(surface_data(found, about)))
    return found, page


def read_targets(folders: Sequence[Path]) -> CommonTargets:
    """Choose one sharpness and one gain for the tasks of several surfaces, by the folders of their runs."""
    surfaces: dict[str, tuple[Surface, int]] = {}
    for folder in folders:
        diagram = read_about(folder).get("diagram")
        if not diagram:
            raise WellcondError(f"'{folder}' does not say how deep its model is: the theory does not cover it")
        if folder.name in surfaces:
            raise WellcondError(f"two folders are called '{folder.name}': each task has one")
        surfaces[folder.name] = read_surface(folder), int(diagram["depth"])
    return common_targets(surfaces)


def with_tuning(recipe: Recipe, lr: tuple[float, ...] | None) -> Recipe:
    """Return the recipe with these learning rates to try, in place of its own."""
    if lr is None:
        return recipe
    seeds = Tuning(lr=lr).seeds if recipe.tuning is None else recipe.tuning.seeds
    if set(seeds) & set(recipe.seeds):
        raise WellcondError(f"tuning is on seeds {list(seeds)}, which are reported: write others as tuning.seeds")
    return recipe.model_copy(update={"tuning": Tuning(lr=lr, seeds=seeds)})


def _tuned(experiment: Experiment, engine: Engine) -> Experiment:
    """Return the experiment at the learning rates that tuning chooses, if the recipe asks for it."""
    if experiment.recipe.tuning is None:
        return experiment
    rates = tune_recipe(experiment.recipe, experiment.out / "tuning", engine).best()
    tuned = experiment.recipe.model_copy(update={"rates": rates, "tuning": None})
    if first_process():
        write_text(experiment.out / "recipe.toml", recipe_toml(tuned))  # what is reported is what was run
    return replace(experiment, recipe=tuned)
