"""The application that commands register on. Exit code 0, 1 (a check failed), 2 (bad input) or 128 + a signal."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import is_dataclass
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

import wellcond as wc
from wellcond._core import stop_signals as stopping
from wellcond._core.colours import SEQUENCE, colour_wanted
from wellcond._core.safe_text import visible
from wellcond.errors import WellcondError

GIVEN: ContextVar[tuple[str, ...]] = ContextVar("arguments of the command line")
# A command that is not named here comes last.
HELP_ORDER: tuple[str, ...] = ("recommend", "inspect", "schemes", "init", "audit", "diagnose", "balance", "calibrate")
HELP_ORDER += (
    "figures",
    "diagram",
    "compare",
    "tune",
    "sensitivity",
    "surface",
    "targets",
    "report",
    "recipes",
    "reproduce",
)


def echo(text: str, *, err: bool = False) -> None:
    r"""Print some lines; control characters in names and paths are shown as escapes, not obeyed by the terminal.

    Colours stay: tables make their cells visible before they give them one.

    >>> echo("written to a\x1b[2J.html")
    written to a\x1b[2J.html
    """
    pieces = SEQUENCE.split(text) if colour_wanted() else [text]  # every second one is a colour
    typer.echo("".join(p if i % 2 else visible(p, keep="\n") for i, p in enumerate(pieces)), err=err)


class _Commands(TyperGroup):
    """Commands whose refusals are one line on stderr and exit code 2."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Return their names in the order of --help."""
        names = super().list_commands(ctx)
        return [*(name for name in HELP_ORDER if name in names), *sorted({*names} - {*HELP_ORDER})]

    def make_context(self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any) -> Any:
        """Keep the arguments, for refusals that say how to go on."""
        GIVEN.set(tuple(args))
        return super().make_context(info_name, args, parent, **extra)

    def invoke(self, ctx: Any) -> Any:
        """Run a command."""
        with stopping.exit_when_stopped():
            try:
                return super().invoke(ctx)
            except WellcondError as error:
                if stopping.asked():
                    raise
                echo(f"error: {' '.join(str(error).split())}", err=True)
                raise typer.Exit(2) from None


app = typer.Typer(
    cls=_Commands,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Know whether a Transformer's attention is well conditioned, and make it so.",
)


def command(function: Callable[..., None]) -> Callable[..., None]:
    """Register `name_command` as the command `name`; a dataclass in its signature stands for an option per field."""
    taken: dict[str, inspect.Parameter] = {}
    records: dict[str, Any] = {}
    for name, parameter in inspect.signature(function, eval_str=True).parameters.items():
        if is_dataclass(parameter.annotation):
            records[name] = parameter.annotation
            taken |= inspect.signature(records[name], eval_str=True).parameters
        else:
            taken[name] = parameter

    def run(**given: Any) -> None:
        for name, record in records.items():
            given[name] = record(*map(given.pop, inspect.signature(record).parameters))
        function(**given)

    run.__signature__ = inspect.Signature(list(taken.values()))  # type: ignore[attr-defined]
    app.command(function.__name__.removesuffix("_command"), help=function.__doc__)(run)
    return function


def _version(wanted: bool) -> None:
    if wanted:
        echo(f"wellcond {wc.__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Options before the command."""
