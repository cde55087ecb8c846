"""`wellcond compare`: train every arm of a recipe, and say what differs."""

from __future__ import annotations

from typing import Annotated

import typer

from wellcond._core.json_safe import to_json
from wellcond.cli.app import app
from wellcond.cli.echo import echo
from wellcond.cli.laboratory import laboratory, runs_folder
from wellcond.cli.options import Address, Cpus, EngineName, Jobs, Json, Out, RecipeName, RecipeSettings
from wellcond.cli.settings import nested


@app.command("compare")
def compare_command(
    recipe: RecipeName = "digits",
    out: Out = None,
    seeds: Annotated[
        int | None, typer.Option(help="So many seeds, from 0.", min=1, show_default="those of the recipe")
    ] = None,
    settings: RecipeSettings = None,
    jobs: Jobs = 1,
    engine: EngineName = "local",
    address: Address = None,
    cpus: Cpus = None,
    json: Json = False,
) -> None:
    """Train every arm of a recipe, on the same data in the same order, and say what differs."""
    lab = laboratory()
    where = lab.Engine(engine, jobs, address, cpus)
    changes = nested(settings or ()) | ({} if seeds is None else {"seeds": list(range(seeds))})
    found = lab.compare_recipe(lab.load_recipe(recipe, **changes), out or runs_folder(recipe), where)
    if not lab.first_process():
        return
    if json:
        data = {folder.name: comparison.to_dict() for folder, comparison in found.items()}
        echo(to_json(data if len(data) > 1 else next(iter(data.values()))))
        return
    for folder, comparison in found.items():
        echo(f"{f'{folder.name}{chr(10)}' if len(found) > 1 else ''}{lab.table_text(comparison)}")
        echo(f"\nwritten to {lab.write_comparison_page(folder)}")
