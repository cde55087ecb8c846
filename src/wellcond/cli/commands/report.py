"""`wellcond report`: the page of a comparison."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from wellcond.cli.app import app
from wellcond.cli.echo import echo
from wellcond.cli.laboratory import laboratory


@app.command("report")
def report_command(
    runs: Annotated[Path, typer.Argument(metavar="DIR", help="The folder of a comparison.")],
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="The page.", show_default="DIR/report.html")
    ] = None,
) -> None:
    """Write the page of a comparison, also of one that is still running."""
    echo(f"written to {laboratory().write_comparison_page(runs, output)}")
