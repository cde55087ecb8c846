"""One command at a time writes into a comparison's folder."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from wellcond.errors import WellcondError


@contextmanager
def locked_folder(out: Path) -> Iterator[None]:
    """Hold the folder while its runs are made; a process that is killed lets it go.

    The lock is that of POSIX, which children made by fork do not share: those that read data may outlive a kill.
    """
    if sys.platform == "win32":  # has no such locks, and goes without
        yield
        return
    import fcntl

    with (out / ".lock").open("a") as file:
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError):
            raise WellcondError(f"another command is at work in '{out}': wait for it, or give another --out") from None
        yield
