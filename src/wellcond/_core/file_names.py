"""Paths that no file can have, refused before anything is computed for them."""

from __future__ import annotations

import os
import secrets
from pathlib import Path

from wellcond.errors import WellcondError

LONGEST_NAME = 255  # bytes of a file name on ext4, XFS, APFS and most others
LONGEST_PATH = 4095  # bytes of a path on Linux


def check_path(path: str | os.PathLike[str], error: type[WellcondError] = WellcondError) -> Path:
    """Return a path as it came, or refuse it: a name that is too long, or that no file system can store.

    >>> check_path("runs/" + "x" * 300)
    Traceback (most recent call last):
    wellcond.errors.WellcondError: the name 'xxxxxxxxxxxxxxxxxxxx…' has 300 bytes, a file 255 at most: shorten it
    """
    found = Path(path)
    try:
        names = [(part, len(os.fsencode(part))) for part in found.parts]
    except UnicodeEncodeError:
        raise error(f"'{found}' has half a character in it, which no file system stores: rename it") from None
    if "\0" in str(found):
        raise error(f"'{found}' has a NUL in it, which no file name has: leave it out")
    for name, size in names:
        if size > LONGEST_NAME:
            raise error(f"the name '{name[:20]}…' has {size} bytes, a file {LONGEST_NAME} at most: shorten it")
    size = len(os.fsencode(found.absolute()))
    if size > LONGEST_PATH:
        raise error(f"the path '{str(found)[:20]}…' has {size} bytes, more than {LONGEST_PATH}: shorten it")
    return found


def neighbour(path: Path) -> Path:
    """Name a temporary file or folder beside a path, by a name that is never too long.

    >>> len(neighbour(Path("runs") / ("x" * 255)).name)
    46
    """
    return path.with_name(f".{path.name[:20]}.{secrets.token_hex(8)}.partial")
