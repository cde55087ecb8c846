"""Print what a command found, whatever the names in it are."""

from __future__ import annotations

import typer

from wellcond._core.colours import SEQUENCE, colour_wanted
from wellcond._core.safe_text import visible


def echo(text: str, *, err: bool = False) -> None:
    r"""Print some lines; control characters in names and paths are shown as escapes, not obeyed by the terminal.

    Colours stay: tables make their cells visible before they give them one.

    >>> echo("written to a\x1b[2J.html")
    written to a\x1b[2J.html
    """
    pieces = SEQUENCE.split(text) if colour_wanted() else [text]  # every second one is a colour
    typer.echo("".join(p if i % 2 else visible(p, keep="\n") for i, p in enumerate(pieces)), err=err)
