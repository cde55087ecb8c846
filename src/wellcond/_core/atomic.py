"""Write a file or a folder whole or not at all: beside its place first, then under its name."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from wellcond._core.file_names import check_path, neighbour
from wellcond.errors import StorageError, WellcondError


@contextmanager
def replacing(path: Path, error: type[WellcondError] = StorageError, *, durable: bool = False) -> Iterator[Path]:
    """Give a temporary path to write a file or a folder at; it takes its place at the end, or goes if anything fails.

    A folder at the path is absent or empty. If `durable`, the disk has the contents before the name, so that no loss of
    power leaves a part.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with replacing(Path(folder) / "a.txt") as temporary:
    ...         _ = temporary.write_text("whole")
    ...     [file.name for file in Path(folder).iterdir()]
    ['a.txt']
    """
    check_path(path, error)
    temporary = neighbour(path.absolute())
    try:
        yield temporary
        if durable:
            for written in (*(temporary.rglob("*") if temporary.is_dir() else ()), temporary):
                _sync(written)
        if os.name == "nt" and temporary.is_dir() and path.exists():
            path.rmdir()  # empty; others rename over it
        os.replace(temporary, path)
        if durable:
            _sync(temporary.parent)
    except OSError as problem:
        raise error(f"'{path}' cannot be written: {problem}") from problem
    finally:
        if temporary.is_dir():
            shutil.rmtree(temporary, ignore_errors=True)
        else:
            temporary.unlink(missing_ok=True)


def write_bytes(path: Path, content: bytes) -> None:
    """Write a file whole or not at all.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_bytes(Path(folder) / "a.txt", b"whole")
    ...     (Path(folder) / "a.txt").read_text()
    'whole'
    """
    with replacing(path) as temporary:
        temporary.write_bytes(content)


def write_text(path: Path, content: str) -> None:
    """Write text in UTF-8, which has no halves of surrogate pairs: they are written as escapes."""
    write_bytes(path, content.encode(errors="backslashreplace"))


def also_written(text: str, path: str | os.PathLike[str] | None) -> str:
    """Return a text, written to a file as well if a path is given."""
    if path is not None:
        write_text(Path(path), text)
    return text


def _sync(path: Path) -> None:
    """Have the disk keep a file's contents, or a directory's names, before going on."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
