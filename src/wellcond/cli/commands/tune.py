"""`wellcond tune`: a learning rate for each arm of a recipe."""

from __future__ import annotations

import shlex
from typing import Annotated

import typer

from wellcond._core.terminal import filled
from wellcond.cli.app import app
from wellcond.cli.echo import echo
from wellcond.cli.laboratory import laboratory, runs_folder
from wellcond.cli.options import Address, Cpus, EngineName, Jobs, Out, RecipeName, RecipeSettings
from wellcond.cli.settings import nested
from wellcond.errors import WellcondError


@app.command("tune")
def tune_command(
    recipe: RecipeName = "digits",
    lr: Annotated[
        str | None, typer.Option(metavar="A,B,C", help="Learning rates.", show_default="those of the recipe")
    ] = None,
    out: Out = None,
    settings: RecipeSettings = None,
    jobs: Jobs = 1,
    engine: EngineName = "local",
    address: Address = None,
    cpus: Cpus = None,
) -> None:
    """Find a learning rate for each arm, on seeds that are not reported; write the recipe that has them."""
    lab = laboratory()
    where, folder = (
        lab.Engine(engine, jobs, address, cpus),
        out or runs_folder(recipe).with_name(f"{runs_folder(recipe).name}-tuning"),
    )
    loaded = lab.load_recipe(recipe, **nested(settings or ()))
    rates = lab.tune_recipe(lab.with_tuning(loaded, lr and _rates(lr)), folder, where)
    if lab.first_process():
        tuned = shlex.join(["wellcond", "compare", f"{folder / 'tuned.toml'}", "--out", f"{runs_folder(recipe)}-tuned"])
        echo(f"{filled(str(rates))}\n\n{tuned}")


def _rates(text: str) -> tuple[float, ...]:
    try:
        found = tuple(float(part) for part in text.split(","))
    except ValueError:
        found = ()
    if len(found) < 2 or min(found) <= 0:
        raise WellcondError(f"--lr takes two learning rates or more, as in 0.0003,0.001,0.003; got '{text}'")
    return found
