"""Plain text tables, as wide as the terminal."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import zip_longest

from rich.cells import cell_len

from wellcond._core import terminal
from wellcond._core.colours import paint
from wellcond._core.safe_text import visible

GAP = 2  # spaces between columns
MIN_WRAPPED_WIDTH = 16  # a column is not made narrower than this to have its words wrapped
WORDS = re.compile(r"[^\W\d_]\w+,? [^\W\d_]\w+")  # two words side by side: numbers are not wrapped, words are


def table(
    header: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    width: int | None = None,
    keys: int | None = None,
    severities: Sequence[str | None] = (),
) -> str:
    """Align columns under a header; no trailing space, nothing cut.

    Where that is too wide, columns of words are wrapped, the widest most; if it is still too wide, the table is set in
    parts one below another, each with the columns that name a row.

    Args:
        header: one title a column.
        rows: one cell a column.
        width: cells of a line; None: those of the terminal, or no limit where stdout is none.
        keys: how many leading columns name a row and are not wrapped to save parts; None: as many as tell rows apart.
        severities: of the rows, which get its colour; none have one if empty.

    >>> print(table(["layer", "κ"], [["blocks.0", "1.00"], ["b", "12.5"]]))
    layer     κ
    blocks.0  1.00
    b         12.5
    >>> print(table(["id", "what it shows"], [["one", "the condition number of a layer"]], width=24))
    id   what it shows
    one  the condition
         number of a layer
    >>> print(table(["layer", "κ", "entropy"], [["blocks.0", "1.00", "0.99"]], width=18))
    layer     κ
    blocks.0  1.00
    <BLANKLINE>
    layer     entropy
    blocks.0  0.99
    """
    columns = [list(map(visible, column)) for column in zip(header, *rows, strict=True)]
    widths = [max(map(cell_len, column)) for column in columns]
    limit = terminal.columns() if width is None else width
    colours = [None, *(severities or [None] * len(rows))]
    if limit is None or _total(widths) <= limit:
        return _lines(columns, widths, colours)
    named = keys or 0
    least = [*widths[:named], *map(_least, columns[named:], widths[named:])]
    if _total(least) <= limit:
        return _lines(columns, _shrunk(widths, least, limit), colours)
    return "\n\n".join(
        _lines(part, narrowed, colours)
        for part, narrowed in _parts(columns, widths, least, limit, keys or _keys(rows, least, limit))
    )


def _total(widths: Sequence[int]) -> int:
    return sum(widths) + GAP * (len(widths) - 1)


def _least(column: Sequence[str], width: int) -> int:
    """Return how narrow a column can be: its longest word, where it has cells of several."""
    if not any(map(WORDS.search, column[1:])):
        return width
    return max(min(width, MIN_WRAPPED_WIDTH), max(cell_len(word) for cell in column for word in cell.split()))


def _shrunk(widths: Sequence[int], least: Sequence[int], limit: int) -> list[int]:
    """Take from the widest columns until all fit."""
    found = list(widths)
    while _total(found) > limit and any(wide > low for wide, low in zip(found, least, strict=True)):
        found[max((i for i, low in enumerate(least) if found[i] > low), key=found.__getitem__)] -= 1
    return found


def _keys(rows: Sequence[Sequence[str]], least: Sequence[int], limit: int) -> int:
    """Return how many leading columns to repeat in each part: as many as tell the rows apart and have room, or one."""
    last = len(least) - 1
    enough = next((n for n in range(1, last) if len({tuple(row[:n]) for row in rows}) == len(rows)), last)
    return next((n for n in range(enough, 1, -1) if _total([*least[:n], max(least[n:])]) <= limit), 1)


def _parts(
    columns: Sequence[Sequence[str]], widths: Sequence[int], least: Sequence[int], limit: int, keys: int
) -> list[tuple[list[Sequence[str]], list[int]]]:
    """Columns side by side while they fit, then below, each time beside those that name the rows."""
    room = limit - min(max(least[keys:], default=0), limit // 2) - GAP
    names = _shrunk(widths[:keys], least[:keys], room)
    names = _shrunk(names, [min(wide, MIN_WRAPPED_WIDTH // 2) for wide in names], room)  # words too long are broken
    groups: list[list[int]] = [[]]
    wide = [min(width, limit - _total(names) - GAP) for width in widths]
    for column in range(keys, len(columns)):
        if groups[-1] and _total([*names, *(wide[i] for i in (*groups[-1], column))]) > limit:
            groups.append([])
        groups[-1].append(column)
    return [([*columns[:keys], *(columns[i] for i in group)], [*names, *(wide[i] for i in group)]) for group in groups]


def _lines(columns: Sequence[Sequence[str]], widths: Sequence[int], severities: Sequence[str | None]) -> str:
    lines = []
    for severity, row in zip(severities, zip(*columns, strict=True), strict=True):
        cells = [
            [cell] if cell_len(cell) <= width else terminal.folded(cell, width)
            for cell, width in zip(row, widths, strict=True)
        ]
        for pieces in zip_longest(*cells, fillvalue=""):
            lines.append(paint((" " * GAP).join(map(_padded, pieces, widths)).rstrip(), severity))
    return "\n".join(lines)


def _padded(cell: str, width: int) -> str:
    return cell + " " * (width - cell_len(cell))


def markdown(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    r"""Align columns as a Markdown table, readable as it is.

    >>> print(markdown(["layer", "κ"], [["blocks.0", "1.00"], ["a|b", "12.5"]]))
    | layer    | κ    |
    |----------|------|
    | blocks.0 | 1.00 |
    | a\|b     | 12.5 |
    """
    cells = [[visible(cell).replace("|", r"\|") for cell in row] for row in (header, *rows)]
    widths = [max(cell_len(row[column]) for row in cells) for column in range(len(header))]
    lines = [f"| {' | '.join(map(_padded, row, widths))} |" for row in cells]
    rule = f"|{'|'.join('-' * (width + 2) for width in widths)}|"
    return "\n".join([lines[0], rule, *lines[1:]])


def span(names: Sequence[str]) -> str:
    """Name many layers in little room, as a range.

    >>> span(["blocks.0.attn", "blocks.1.attn", "blocks.2.attn"])
    'blocks.{0…2}.attn'
    >>> span(["layers.0.blocks.1.attn", "layers.1.blocks.0.attn"])
    'layers.0.blocks.1.attn … layers.1.blocks.0.attn'
    """
    names = [visible(name) for name in names]
    first, last = names[0].split("."), names[-1].split(".")
    if first == last:
        return names[0]
    different = [i for i, (a, b) in enumerate(zip(first, last, strict=False)) if a != b]
    if len(first) != len(last) or len(different) != 1 or not first[different[0]].isdigit():
        return f"{names[0]} … {names[-1]}"
    (where,) = different
    return ".".join([*first[:where], f"{{{first[where]}…{last[where]}}}", *first[where + 1 :]])


def numberless(name: str) -> str:
    """A dotted name with its numbers left out, the same for all layers of a stack.

    >>> numberless("blocks.11.mlp.fc1.weight")
    'blocks.#.mlp.fc1.weight'
    """
    return ".".join("#" if part.isdigit() else part for part in name.split("."))
