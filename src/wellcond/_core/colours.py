"""Colour by severity, where it is wanted: on a terminal, unless the environment has NO_COLOR (https://no-color.org)."""

from __future__ import annotations

import os
import re
import sys

COLOURS = {"alarm": "\x1b[31m", "warning": "\x1b[33m", "note": "\x1b[36m"}
RESET = "\x1b[0m"
SEQUENCE = re.compile(f"({'|'.join(map(re.escape, (*COLOURS.values(), RESET)))})")


def colour_wanted() -> bool:
    """Return whether what is printed now is read by a person on a terminal that shows colours."""
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def paint(text: str, severity: str | None) -> str:
    r"""Give every line the colour of its severity; a text without one stays as it is.

    >>> paint("entropy collapse", "alarm"), paint("ok", None)
    ('\x1b[31mentropy collapse\x1b[0m', 'ok')
    """
    if severity is None:
        return text
    return "\n".join(f"{COLOURS[severity]}{line}{RESET}" if line else line for line in text.split("\n"))
