"""`wellcond reproduce`: a table or figure of the papers, made again."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from wellcond._core.json_safe import to_json
from wellcond._core.terminal import filled
from wellcond.cli.app import command, echo
from wellcond.cli.arguments import nested
from wellcond.cli.laboratory import laboratory, laboratory_module
from wellcond.cli.options import Json, RunOptions
from wellcond.errors import WellcondError


@command
def reproduce_command(
    id: Annotated[str | None, typer.Argument(metavar="ID", help="A table or figure, as in ci-table2.")] = None,
    data: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Holds the data sets, each in a folder of its own.")
    ] = None,
    only: Annotated[str | None, typer.Option(help="One of its recipes, by data or model.")] = None,
    smoke: Annotated[bool, typer.Option("--smoke", help="A few steps, small, on fake data.")] = False,
    listing: Annotated[bool, typer.Option("--list", help="What there is; with ID, all about it.")] = False,
    results: Annotated[
        bool, typer.Option("--results", help="Every published number with ours, from the runs in --out.")
    ] = False,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="Folder for the runs, one for each recipe.", show_default="runs; --smoke: runs/smoke"
        ),
    ] = None,
    runs: RunOptions = RunOptions(),
    json: Json = False,
) -> None:
    """Make a table or figure of the papers again, and print ours beside the published numbers."""
    folder = out or (Path("runs/smoke") if smoke else Path("runs"))
    if results:
        _print_results(folder, id, only, json)
        return
    if listing or id is None:
        _print_list(id, only, json)
        return
    lab = laboratory()
    from wellcond.reproduce.provenance import Provenance
    from wellcond.reproduce.published_numbers import numbers_text
    from wellcond.reproduce.run import reproduce

    where, changes = runs.engine_of(lab), nested(runs.settings)

    def say(line: str) -> None:
        if lab.first_process():
            echo(line if json else filled(line), err=json)

    found = reproduce(id, folder, where, data=data, only=only, smoke=smoke, changes=changes, say=say)
    if lab.first_process():
        if json:
            echo(to_json([asdict(row) for row in found]))
        elif found:
            ours = "on fake data" if smoke else f"ours{Provenance(changes=changes).changed}"
            echo(f"\n{filled(numbers_text(found, ours))}\n\nruns in {folder}")


def _print_list(id: str | None, only: str | None, json: bool) -> None:
    """Print what can be reproduced, or all about one table or figure."""
    if id is None and only is not None:
        raise WellcondError("--only is one of a table's recipes: give the table's id, too")
    lists = laboratory_module("wellcond.reproduce.listing")
    if json:
        echo(to_json(lists.listed(id, only)))
    else:
        echo(filled(lists.details(id, only) if id else lists.listing()))


def _print_results(folder: Path, id: str | None, only: str | None, json: bool) -> None:
    """Print every published number with ours, from the runs in a folder."""
    found = laboratory_module("wellcond.reproduce.results")
    rows = found.results(folder, id, only)
    echo(to_json([asdict(row) for row in rows]) if json else found.results_text(rows))
