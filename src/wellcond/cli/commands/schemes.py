"""`wellcond schemes`: the initialisations by name, and where they apply."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from wellcond._core.json_safe import to_json
from wellcond._core.terminal import filled
from wellcond.cli.app import app
from wellcond.cli.echo import echo
from wellcond.cli.models import model_shapes
from wellcond.cli.options import Json
from wellcond.cli.summaries import scheme_list
from wellcond.errors import SchemeError
from wellcond.init.scheme_source import list_schemes


@app.command("schemes")
def schemes_command(
    pattern: Annotated[str, typer.Argument(help="Shell pattern on the name; shows details.")] = "",
    models: Annotated[
        list[str] | None, typer.Option("--for", metavar="MODEL", help="Show where each scheme applies; repeatable.")
    ] = None,
    json: Json = False,
) -> None:
    """List the schemes, or the table of schemes × models with the reasons for what does not apply."""
    infos = list_schemes(pattern or "*")
    if not infos:
        raise SchemeError(f"no scheme matches '{pattern}'; there are: {', '.join(i.name for i in list_schemes())}")
    matrix: dict[str, Any] = {}
    if models:
        from wellcond.init.applicability import applicability, matrix_text

        matrix = {name: applicability(model_shapes(name), [info.name for info in infos]) for name in models}
    if json:
        rows = [
            vars(info) | {"applies": {model: vars(found[info.name]) for model, found in matrix.items()}}
            for info in infos
        ]
        echo(to_json({"schemes": rows}))
    else:
        echo(filled(matrix_text(matrix)) if matrix else scheme_list(infos, details=bool(pattern)))
