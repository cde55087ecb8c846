"""`wellcond recipes`: the comparisons that come with the library."""

from __future__ import annotations

from wellcond._core.json_safe import to_json
from wellcond._core.text_tables import table
from wellcond.cli.app import app
from wellcond.cli.echo import echo
from wellcond.cli.laboratory import laboratory_module
from wellcond.cli.options import Json


@app.command("recipes")
def recipes_command(json: Json = False) -> None:
    """List the comparisons that come with the library."""
    found = laboratory_module("wellcond.lab.recipe.recipe").shipped()
    echo(to_json(found) if json else table(["recipe", "what it compares"], [list(row) for row in found.items()]))
