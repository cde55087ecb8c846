"""`wellcond recipes`, `compare`, `tune`, `sensitivity`, `surface`, `targets`, `report` and `figures`."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated, Any

import typer

from wellcond._core.json_safe import to_json
from wellcond._core.terminal import filled
from wellcond._core.text_tables import table
from wellcond.cli.app import command, echo
from wellcond.cli.arguments import nested
from wellcond.cli.laboratory import laboratory, laboratory_module
from wellcond.cli.options import Json, Out, RecipeName, RunOptions, Seeds
from wellcond.errors import WellcondError


@command
def recipes_command(json: Json = False) -> None:
    """List the comparisons that come with the library."""
    found = laboratory_module("wellcond.lab.recipe.recipe").shipped()
    echo(to_json(found) if json else table(["recipe", "what it compares"], [list(row) for row in found.items()]))


@command
def compare_command(
    recipe: RecipeName = "digits",
    out: Out = None,
    seeds: Seeds = None,
    runs: RunOptions = RunOptions(),
    json: Json = False,
) -> None:
    """Train every arm of a recipe, on the same data in the same order, and say what differs."""
    lab = laboratory()
    where = runs.engine_of(lab)
    found = lab.compare_recipe(lab.load_recipe(recipe, **_changes(runs, seeds)), out or _runs_folder(recipe), where)
    if not lab.first_process():
        return
    if json:
        data = {folder.name: comparison.to_dict() for folder, comparison in found.items()}
        for folder in found:
            if contrasts := lab.read_contrasts(folder):
                data[folder.name] |= contrasts.to_dict()
        echo(to_json(data if len(data) > 1 else next(iter(data.values()))))
        return
    for folder, comparison in found.items():
        echo(f"{f'{folder.name}{chr(10)}' if len(found) > 1 else ''}{lab.table_text(comparison)}")
        if contrasts := lab.read_contrasts(folder):
            echo(f"\n{contrasts}")
        echo(f"\nwritten to {lab.write_comparison_page(folder)}")


@command
def tune_command(
    recipe: RecipeName = "digits",
    lr: Annotated[
        str | None, typer.Option(metavar="A,B,C", help="Learning rates.", show_default="those of the recipe")
    ] = None,
    out: Out = None,
    runs: RunOptions = RunOptions(),
) -> None:
    """Find a learning rate for each arm, on seeds that are not reported; write the recipe that has them."""
    lab, usual = laboratory(), _runs_folder(recipe)
    where, folder = runs.engine_of(lab), out or usual.with_name(f"{usual.name}-tuning")
    loaded = lab.load_recipe(recipe, **nested(runs.settings))
    rates = lab.tune_recipe(lab.with_tuning(loaded, lr and _rates(lr)), folder, where)
    if lab.first_process():
        tuned = shlex.join(["wellcond", "compare", f"{folder / 'tuned.toml'}", "--out", f"{usual}-tuned"])
        echo(f"{filled(str(rates))}\n\n{tuned}")


@command
def sensitivity_command(
    recipe: RecipeName = "digits",
    lr: Annotated[
        str | None,
        typer.Option(metavar="A,B,C", help="Learning rates.", show_default="an eighth to eight times the recipe's"),
    ] = None,
    out: Out = None,
    seeds: Seeds = None,
    runs: RunOptions = RunOptions(),
    json: Json = False,
) -> None:
    """Train every arm over a grid of learning rates; the area between its curve and its best is its sensitivity."""
    lab, usual = laboratory(), _runs_folder(recipe)
    where, folder = runs.engine_of(lab), out or usual.with_name(f"{usual.name}-sensitivity")
    loaded = lab.load_recipe(recipe, **_changes(runs, seeds))
    found = lab.sensitivity_recipe(loaded, lr and _rates(lr), folder, where)
    if not lab.first_process():
        return
    if json:
        echo(to_json(found.to_dict()))
        return
    parts = [found, found.early_warnings] if found.early_warnings.runs else [found]
    echo("\n\n".join([*(filled(str(part)) for part in parts), f"written to {folder / 'sensitivity.png'}"]))


@command
def surface_command(
    recipe: RecipeName = "digits",
    beta: Annotated[
        str | None,
        typer.Option(metavar="A,B,C", help="Sharpness of heads at the start.", show_default="the recipe's"),
    ] = None,
    branch: Annotated[
        str | None, typer.Option(metavar="A,B,C", help="Gain of branches at the start.", show_default="the recipe's")
    ] = None,
    out: Out = None,
    seeds: Seeds = None,
    runs: RunOptions = RunOptions(),
    json: Json = False,
) -> None:
    """Train a grid of starts, every β with every g, and draw where training goes best and where each scheme begins."""
    lab, usual = laboratory(), _runs_folder(recipe)
    where, folder = runs.engine_of(lab), out or usual.with_name(f"{usual.name}-surface")
    grid: dict[str, Any] = {} if seeds is None else {"seeds": list(range(seeds))}
    for name, text in (("beta", beta), ("branch", branch)):
        if text is not None:
            grid[name] = _numbers(f"--{name}", text, 3, "three numbers or more, as in 0.05,0.2,0.8")
    changes = nested(runs.settings)
    if isinstance(changes.setdefault("surface", {}), dict):  # else the recipe's own check says what it should be
        changes["surface"] |= grid
    loaded = lab.load_recipe(recipe, **changes)
    found, page = lab.surface_recipe(loaded, folder, where)
    if lab.first_process():
        echo(to_json(found.to_dict()) if json else f"{filled(str(found))}\n\nwritten to {page}")


@command
def targets_command(
    folders: Annotated[list[Path], typer.Argument(metavar="DIR...", help="Folders of `wellcond surface`.")],
    json: Json = False,
) -> None:
    """Choose one sharpness and one gain on several surfaces, and say what they cost on each when it is left out."""
    found = laboratory().read_targets(folders)
    echo(to_json(found.to_dict()) if json else filled(str(found)))


@command
def report_command(
    runs: Annotated[Path, typer.Argument(metavar="DIR", help="The folder of a comparison.")],
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="The page.", show_default="DIR/report.html")
    ] = None,
) -> None:
    """Write the page of a comparison, also of one that is still running."""
    echo(f"written to {laboratory().write_comparison_page(runs, output)}")


@command
def figures_command(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN", help="Folders that a monitor or a comparison wrote.")],
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="DIR", help="Folder for the pictures and figures.json.")
    ] = Path("figures"),
    json: Json = False,
) -> None:
    """Draw the papers' figures: σ and κ of W and W + C, κ(J) and its bound, entropy, loss, epochs to the baseline."""
    from wellcond.lab.figures.draw import draw_figures

    written = draw_figures(runs, output)
    if json:
        echo(to_json({"runs": runs, "written": written}))
    else:
        echo("\n".join(f"wrote {path}" for path in written))


def _changes(runs: RunOptions, seeds: int | None) -> dict[str, Any]:
    """Return the changes of a recipe that options ask for."""
    return nested(runs.settings) | ({} if seeds is None else {"seeds": list(range(seeds))})


def _runs_folder(recipe: str) -> Path:
    """Return where the runs of a recipe go unless another folder is given."""
    return Path("runs") / Path(recipe).stem


def _rates(text: str) -> tuple[float, ...]:
    return _numbers("--lr", text, 2, "two learning rates or more, as in 0.0003,0.001,0.003")


def _numbers(option: str, text: str, fewest: int, words: str) -> tuple[float, ...]:
    """Positive numbers parted by commas."""
    try:
        found = tuple(float(part) for part in text.split(","))
    except ValueError:
        found = ()
    if len(found) < fewest or min(found) <= 0:
        raise WellcondError(f"{option} takes {words}; got '{text}'")
    return found
