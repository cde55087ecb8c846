"""The terminal that text is printed on: its width, and lines that break between words."""

from __future__ import annotations

import re
import shutil
import sys

from rich.cells import cell_len, chop_cells

WIDTH = 100  # of prose where no terminal says it
BREAK_POINTS = re.compile(r"(?<=[-./_,:=])")  # where a word is broken first if it must be


def columns() -> int | None:
    """Width of the terminal on stdout, or that of `COLUMNS` if set; None if stdout is a pipe, a file or a notebook.

    >>> columns() is None
    True
    """
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def wrapped(text: str, width: int) -> list[str]:
    """Wrap text into lines of at most `width` cells, broken between words; a word longer than a line stays whole.

    Cells are counted, not characters: 中 takes two, an accent of its own none.

    >>> wrapped("the attention of 中文 text", 12)
    ['the', 'attention of', '中文 text']
    """
    lines = [""]
    for word in text.split():
        joined = f"{lines[-1]} {word}"
        if not lines[-1]:
            lines[-1] = word
        elif cell_len(joined) <= width:
            lines[-1] = joined
        else:
            lines.append(word)
    return lines


def prose(text: str) -> str:
    """Wrap sentences into lines as long as the terminal's, or 100 cells where stdout is none."""
    return "\n".join(wrapped(text, columns() or WIDTH))


def folded(text: str, width: int) -> list[str]:
    """Wrap text, and break a word that is longer than a line: behind a dot or a hyphen, else anywhere.

    >>> folded("in blocks.10.attn", 10)
    ['in', 'blocks.10.', 'attn']
    """
    return [piece for line in wrapped(text, width) for piece in _pieces(line, width)]


def _pieces(line: str, width: int) -> list[str]:
    pieces = [""]
    for part in [line] if cell_len(line) <= width else BREAK_POINTS.split(line):
        for piece in chop_cells(part, max(2, width)):  # 2: the widest character
            joined = pieces[-1] + piece
            pieces[-1:] = [joined] if cell_len(joined) <= width or not pieces[-1] else [pieces[-1], piece]
    return pieces


def filled(text: str, width: int | None = None) -> str:
    r"""Break the lines that are longer than the terminal between words, what follows two spaces further in.

    A line has `width` cells; None is for those of the terminal, or no limit where stdout is none.

    >>> print(filled("short   line\n  a line that is too long", 16))
    short   line
      a line that is
        too long
    """
    limit = columns() if width is None else width
    return text if limit is None else "\n".join(_filled(line, limit) for line in text.split("\n"))


def _filled(line: str, width: int) -> str:
    if cell_len(line) <= width:
        return line
    indent = line[: len(line) - len(line.lstrip())]
    first, *more = wrapped(line, width - len(indent))
    further = f"{indent}  "
    return "\n".join([indent + first, *(further + piece for piece in wrapped(" ".join(more), width - len(further)))])
