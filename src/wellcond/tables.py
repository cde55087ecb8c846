"""Plain text tables that fit a terminal."""

from __future__ import annotations

from collections.abc import Sequence

from wellcond.visible import visible


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Align columns under a header; no trailing space, nothing cut.

    >>> print(table(["layer", "κ"], [["blocks.0", "1.00"], ["b", "12.5"]]))
    layer     κ
    blocks.0  1.00
    b         12.5
    """
    cells = [[visible(cell) for cell in row] for row in (header, *rows)]
    widths = [max(len(row[column]) for row in cells) for column in range(len(header))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in cells]
    return "\n".join(lines)


def markdown(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    r"""The same for Markdown, readable as it is.

    >>> print(markdown(["layer", "κ"], [["blocks.0", "1.00"], ["a|b", "12.5"]]))
    | layer    | κ    |
    |----------|------|
    | blocks.0 | 1.00 |
    | a\|b     | 12.5 |
    """
    cells = [[visible(cell).replace("|", r"\|") for cell in row] for row in (header, *rows)]
    widths = [max(len(row[column]) for row in cells) for column in range(len(header))]
    lines = [f"| {' | '.join(cell.ljust(width) for cell, width in zip(row, widths, strict=True))} |" for row in cells]
    rule = f"|{'|'.join('-' * (width + 2) for width in widths)}|"
    return "\n".join([lines[0], rule, *lines[1:]])


def span(names: Sequence[str]) -> str:
    """Name many layers in little room.

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
