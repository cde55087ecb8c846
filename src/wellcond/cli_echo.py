"""Print what a command found, whatever the names in it are."""

from __future__ import annotations

import typer

from wellcond.visible import visible


def echo(text: str, *, err: bool = False) -> None:
    r"""Print some lines; control characters in names and paths are shown as escapes, not obeyed by the terminal.

    >>> echo("written to a\x1b[2J.html")
    written to a\x1b[2J.html
    """
    typer.echo(visible(text, keep="\n"), err=err)
