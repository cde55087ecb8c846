"""The laboratory's commands; its libraries are an extra, so they are imported when a command runs."""

from __future__ import annotations

import shlex
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from wellcond.cli_echo import echo
from wellcond.cli_settings import nested
from wellcond.errors import WellcondError
from wellcond.plain import to_json
from wellcond.stopping import start_tracker
from wellcond.tables import table
from wellcond.terminal import filled

RecipeName = Annotated[str, typer.Argument(metavar="RECIPE", help="A .toml file, or a name of `wellcond recipes`.")]
Out = Annotated[
    Path | None,
    typer.Option(help="Folder for the runs and the report.", metavar="DIR", show_default="runs/RECIPE"),
]
Jobs = Annotated[int, typer.Option("--jobs", "-j", help="Runs side by side, threads divided.", min=1)]
EngineName = Annotated[str, typer.Option(help="local, or ray: the nodes of a cluster.", metavar="local|ray")]
Address = Annotated[
    str | None, typer.Option(help="With ray: HOST:PORT of the cluster.", metavar="ADDRESS", show_default="auto")
]
Cpus = Annotated[int | None, typer.Option(help="With ray: processors of a run.", min=1, show_default="1")]
Settings = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Change the recipe, as in train.steps=100.")
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]


def compare(
    recipe: RecipeName = "digits",
    out: Out = None,
    seeds: Annotated[
        int | None, typer.Option(help="So many seeds, from 0.", min=1, show_default="those of the recipe")
    ] = None,
    settings: Settings = None,
    jobs: Jobs = 1,
    engine: EngineName = "local",
    address: Address = None,
    cpus: Cpus = None,
    json: Json = False,
) -> None:
    """Train with every scheme of a recipe, on the same data in the same order, and say what differs."""
    lab = _laboratory()
    where = lab.Engine(engine, jobs, address, cpus)
    changes = nested(settings or ()) | ({} if seeds is None else {"seeds": list(range(seeds))})
    found = lab.compare_recipe(lab.load_recipe(recipe, **changes), out or _folder(recipe), where)
    if not lab.first_process():
        return
    if json:
        data = {folder.name: comparison.to_dict() for folder, comparison in found.items()}
        echo(to_json(data if len(data) > 1 else next(iter(data.values()))))
        return
    for folder, comparison in found.items():
        echo(f"{f'{folder.name}{chr(10)}' if len(found) > 1 else ''}{lab.table_text(comparison)}")
        echo(f"\nwritten to {lab.write_comparison_page(folder)}")


def tune(
    recipe: RecipeName = "digits",
    lr: Annotated[
        str | None, typer.Option(metavar="A,B,C", help="Learning rates.", show_default="those of the recipe")
    ] = None,
    out: Out = None,
    settings: Settings = None,
    jobs: Jobs = 1,
    engine: EngineName = "local",
    address: Address = None,
    cpus: Cpus = None,
) -> None:
    """Find a learning rate for each scheme, on seeds that are not reported; write the recipe that has them."""
    lab = _laboratory()
    where, folder = (
        lab.Engine(engine, jobs, address, cpus),
        out or _folder(recipe).with_name(f"{_folder(recipe).name}-tuning"),
    )
    loaded = lab.load_recipe(recipe, **nested(settings or ()))
    rates = lab.tune_recipe(lab.with_tuning(loaded, lr and _numbers(lr)), folder, where)
    if lab.first_process():
        tuned = shlex.join(["wellcond", "compare", f"{folder / 'tuned.toml'}", "--out", f"{_folder(recipe)}-tuned"])
        echo(f"{filled(str(rates))}\n\n{tuned}")


def report(
    runs: Annotated[Path, typer.Argument(metavar="DIR", help="The folder of a comparison.")],
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="The page.", show_default="DIR/report.html")
    ] = None,
) -> None:
    """Write the page of a comparison, also of one that is still running."""
    echo(f"written to {_laboratory().write_comparison_page(runs, output)}")


def recipes(json: Json = False) -> None:
    """List the comparisons that come with the library."""
    found = _laboratory().shipped()
    echo(to_json(found) if json else table(["recipe", "what it compares"], [list(row) for row in found.items()]))


def reproduce(
    id: Annotated[str | None, typer.Argument(metavar="ID", help="A table or figure, as in ci-table2.")] = None,
    data: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Holds the data sets, each in a folder of its own.")
    ] = None,
    only: Annotated[str | None, typer.Option(help="One of its recipes, by data or model.")] = None,
    smoke: Annotated[bool, typer.Option("--smoke", help="A few steps, small, on made-up data.")] = False,
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
    settings: Settings = None,
    jobs: Jobs = 1,
    engine: EngineName = "local",
    address: Address = None,
    cpus: Cpus = None,
    json: Json = False,
) -> None:
    """Make a table or figure of the papers again, and print ours beside the published numbers."""
    lab = _laboratory()
    from wellcond.reproduce import listing as lists
    from wellcond.reproduce.made import Made
    from wellcond.reproduce.measured import beside_text
    from wellcond.reproduce.results import results as found_so_far
    from wellcond.reproduce.results import results_text
    from wellcond.reproduce.run import reproduce as made_again

    folder = out or (Path("runs/smoke") if smoke else Path("runs"))
    if results:
        so_far = found_so_far(folder, id, only)
        echo(to_json([asdict(each) for each in so_far]) if json else results_text(so_far))
        return
    if listing or id is None:
        if id is None and only is not None:
            raise WellcondError("--only is one of a table's recipes: give the table's id, too")
        shown = lists.details(id, only) if id else lists.listing()
        echo(to_json(lists.listed(id, only)) if json else filled(shown))
        return
    where = lab.Engine(engine, jobs, address, cpus)

    def say(line: str) -> None:
        if lab.first_process():
            echo(line if json else filled(line), err=json)

    changes = nested(settings or ())
    found = made_again(id, folder, where, data=data, only=only, smoke=smoke, changes=changes, say=say)
    if lab.first_process():
        if json:
            echo(to_json([asdict(row) for row in found]))
        elif found:
            ours = "on made-up data" if smoke else f"ours{Made(changes=changes).changed}"
            echo(f"\n{filled(beside_text(found, ours))}\n\nruns in {folder}")


def _laboratory() -> Any:
    start_tracker()  # before joblib, which scikit-learn imports, does
    try:
        import wellcond.lab.commands as commands
    except ImportError as error:
        raise WellcondError(f"the laboratory cannot be imported ({error}): pip install 'wellcond[lab,timm]'") from error
    return commands


def _folder(recipe: str) -> Path:
    return Path("runs") / Path(recipe).stem


def _numbers(text: str) -> tuple[float, ...]:
    try:
        found = tuple(float(part) for part in text.split(","))
    except ValueError:
        found = ()
    if len(found) < 2 or min(found) <= 0:
        raise WellcondError(f"--lr takes two learning rates or more, as in 0.0003,0.001,0.003; got '{text}'")
    return found
