"""`wellcond figures`: the papers' figures, from folders of runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from wellcond._core.json_safe import to_json
from wellcond.cli.app import app
from wellcond.cli.echo import echo
from wellcond.cli.options import Json


@app.command("figures")
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
