"""The application that commands register on. Exit code 0, 1 (a check failed), 2 (bad input) or 128 + a signal."""

from __future__ import annotations

from contextvars import ContextVar
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

import wellcond as wc
from wellcond._core import stop_signals as stopping
from wellcond.cli.echo import echo
from wellcond.errors import WellcondError

GIVEN: ContextVar[tuple[str, ...]] = ContextVar("arguments of the command line")
# A command that is not named here comes last.
HELP_ORDER: tuple[str, ...] = ("inspect", "schemes", "init", "audit", "diagnose", "figures", "diagram")
HELP_ORDER += ("compare", "tune", "report", "recipes", "reproduce")


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
