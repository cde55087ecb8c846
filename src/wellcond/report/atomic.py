"""A file is written whole or not at all."""

from __future__ import annotations

import os
import secrets
from pathlib import Path

from wellcond.errors import StorageError


def write_bytes(path: Path, content: bytes) -> None:
    """Write to a temporary neighbour, then rename it.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_bytes(Path(folder) / "a.txt", b"whole")
    ...     (Path(folder) / "a.txt").read_text()
    'whole'
    """
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.partial")
    try:
        temporary.write_bytes(content)
        os.replace(temporary, path)
    except OSError as error:
        raise StorageError(f"'{path}' cannot be written: {error}") from error
    finally:
        temporary.unlink(missing_ok=True)


def write_text(path: Path, content: str) -> None:
    """The same for text, in UTF-8."""
    write_bytes(path, content.encode())
