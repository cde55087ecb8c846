"""Colour by severity, where it is wanted: on a terminal, unless the environment has NO_COLOR (https://no-color.org)."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from wellcond.propagation.verdict import Severity
from wellcond.tables import table

COLOURS = {Severity.ALARM: "\x1b[31m", Severity.WARNING: "\x1b[33m", Severity.NOTE: "\x1b[36m"}
RESET = "\x1b[0m"


def colour_wanted() -> bool:
    """Whether what is printed now is read by a person on a terminal that shows colours."""
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def paint(text: str, severity: Severity | None, colour: bool) -> str:
    r"""A line in the colour of its severity; as it is without one, or if no colour is wanted.

    >>> paint("entropy collapse", Severity.ALARM, True)
    '\x1b[31mentropy collapse\x1b[0m'
    """
    return f"{COLOURS[severity]}{text}{RESET}" if colour and severity is not None else text


def graded_table(
    header: Sequence[str], rows: Sequence[tuple[Severity | None, Sequence[str]]], *, colour: bool = False
) -> str:
    """A table with the gravest rows first, else in the order given, and each in its colour.

    >>> print(graded_table(["layer", "verdict"], [(None, ["0", "ok"]), (Severity.ALARM, ["1", "rank collapse"])]))
    layer  verdict
    1      rank collapse
    0      ok
    """
    ordered = sorted(rows, key=lambda row: 0 if row[0] is None else -1 - row[0].rank)
    first, *lines = table(header, [row for _, row in ordered]).split("\n")
    painted = [paint(line, severity, colour) for line, (severity, _) in zip(lines, ordered, strict=True)]
    return "\n".join([first, *painted])
