"""A file is written whole or not at all."""

from __future__ import annotations

import os
from pathlib import Path

from wellcond.errors import StorageError
from wellcond.file_names import check_path, neighbour


def write_bytes(path: Path, content: bytes) -> None:
    """Write to a temporary neighbour, then rename it.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_bytes(Path(folder) / "a.txt", b"whole")
    ...     (Path(folder) / "a.txt").read_text()
    'whole'
    """
    check_path(path, StorageError)
    temporary = neighbour(path)
    try:
        temporary.write_bytes(content)
        os.replace(temporary, path)
    except OSError as error:
        raise StorageError(f"'{path}' cannot be written: {error}") from error
    finally:
        temporary.unlink(missing_ok=True)


def write_text(path: Path, content: str) -> None:
    """The same for text, in UTF-8, which has no halves of surrogate pairs: they are written as escapes."""
    write_bytes(path, content.encode(errors="backslashreplace"))
