"""Progress bars: only for somebody who watches a terminal or a notebook, and gone when the work is done."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from tqdm.auto import tqdm

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress, ProgressColumn


def bar(
    items: Iterable[Any] | None,
    what: str,
    *,
    total: int | None = None,
    unit: str = "it",
    shown: bool = True,
    at_once: bool = False,
) -> Any:
    """A bar on stderr after two seconds of work; a pipe or a file gets nothing, a notebook a bar of its own.

    Args:
        items: what is gone through; None for a context whose `update()` is called `total` times.
        what: the name of the work.
        total: how many items, if they do not know it.
        unit: what an item is called.
        shown: False for no bar at all.
        at_once: whether it is known to be long: the bar is there from the start, and a pipe or a file gets one line.

    >>> list(bar([1, 2], "counting"))
    [1, 2]
    """
    # disable=None: tqdm asks whether stderr is a terminal.
    if shown and at_once and not sys.stderr.isatty():
        print(what, file=sys.stderr, flush=True)  # noqa: T201
    hidden, delay = None if shown else True, 0 if at_once else 2
    return tqdm(items, desc=what, total=total, unit=unit, delay=delay, leave=False, disable=hidden)


def bars(*columns: ProgressColumn, console: Console, shown: bool = True) -> Progress:
    """Several bars at once, by rich, wiped off when they stop; none where nobody watches."""
    from rich.progress import Progress

    return Progress(*columns, console=console, transient=True, disable=not (shown and watched(console)))


def watched(console: Console) -> bool:
    """Return whether a console writes to a terminal; where FORCE_COLOR is set, rich says so of a pipe, too."""
    return console.is_terminal and console.file.isatty()
