"""Readers of texts as people have them on disk: plain files, lines of JSON, parquet tables."""

from __future__ import annotations

import gzip
import io
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from wellcond._core.json_files import parse_json
from wellcond.errors import WellcondError
from wellcond.lab.tasks.checks import library

PIECE_CHARACTERS = 1 << 20  # of a plain file that are handed on at once
DOCUMENT_END = "<|endoftext|>"  # between documents; the text of the token that GPT-2 and TinyStories end one with


def documents(file: Path, *, end: str = DOCUMENT_END) -> Iterator[str]:
    """Yield the text of a file, piece by piece.

    Args:
        file: `.parquet` (a column `text`), `.jsonl` (a key `text` in each line), or plain text; the last two also
            compressed (`.gz`, `.zst`).
        end: put after each row of a table and each line of JSON, which are documents; plain text stays as it is.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder, "a.jsonl")
    ...     _ = path.write_text('{"text": "one"}' + chr(10) + '{"text": "two"}')
    ...     list(documents(path))
    ['one<|endoftext|>', 'two<|endoftext|>']
    """
    kinds = [suffix for suffix in file.suffixes if suffix not in (".gz", ".zst")]
    if ".parquet" in kinds:
        yield from (text + end for text in _rows(file))
    elif ".jsonl" in kinds:
        yield from (text + end for text in _lines(file))
    else:
        yield from _plain(file)


def files_like(folder: Path, patterns: Sequence[str], source: str) -> list[Path]:
    """Return the files of the first pattern that has any, in order."""
    for pattern in patterns:
        found = sorted(path for path in folder.glob(pattern) if path.is_file())
        if found:
            return found
    raise WellcondError(f"{str(folder)!r} has none of {', '.join(patterns)}. The data: {source}")


@contextmanager
def _opened(file: Path) -> Iterator[IO[str]]:
    """Open a file as text, unpacked; whatever goes wrong while it is read names the file."""
    damage: tuple[type[Exception], ...] = (OSError, EOFError, UnicodeDecodeError, zlib.error)
    try:
        if file.suffix == ".gz":
            raw: Any = gzip.open(file, "rb")  # noqa: SIM115 (closed below, whichever it is)
        elif file.suffix == ".zst":
            zstandard = library("zstandard", "data")
            damage += (zstandard.ZstdError,)
            raw = zstandard.open(file, "rb")
        else:
            raw = file.open("rb")
        with raw, io.TextIOWrapper(raw, encoding="utf-8-sig", newline="") as text:
            yield text
    except damage as error:
        raise WellcondError(f"{str(file)!r} cannot be read as UTF-8 text ({error}): download it again") from error


def _plain(file: Path) -> Iterator[str]:
    with _opened(file) as text:
        # Parted at the end of a line, so that no word is.
        while piece := text.read(PIECE_CHARACTERS):
            yield piece + text.readline()


def _lines(file: Path) -> Iterator[str]:
    with _opened(file) as lines:
        for number, line in enumerate(lines, start=1):
            if not line.strip():
                continue
            where = f"{str(file)!r}, line {number},"
            found = parse_json(line, where)
            if not isinstance(found, dict) or "text" not in found:
                raise WellcondError(f"{where} is no JSON object with a 'text'")
            yield _checked(file, found["text"])


def _rows(file: Path) -> Iterator[str]:
    parquet = library("pyarrow.parquet", "data")
    try:
        table = parquet.ParquetFile(file)
        if "text" not in table.schema_arrow.names:
            raise WellcondError(f"{str(file)!r} has no column 'text', only {', '.join(table.schema_arrow.names)}")
        for batch in table.iter_batches(columns=["text"]):
            yield from (_checked(file, text) for text in batch.column(0).to_pylist())
    except (OSError, ValueError) as error:  # pyarrow's own errors are among these
        raise WellcondError(f"{str(file)!r} cannot be read as a parquet table ({error}): download it again") from error


def _checked(file: Path, text: object) -> str:
    if not isinstance(text, str):
        raise WellcondError(f"{str(file)!r} has a 'text' that is {text!r}, not a string")
    return text


def first_characters(texts: Iterable[str], characters: int | None) -> Iterator[str]:
    """Yield texts up to so many characters in all.

    >>> list(first_characters(["one", "two"], 4))
    ['one', 't']
    """
    left = characters
    for text in texts:
        yield text if left is None else text[:left]
        left = None if left is None else left - len(text)
        if left is not None and left <= 0:
            return
