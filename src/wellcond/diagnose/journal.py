"""Records on disk, one JSON object a line: a process that is killed loses at most the line it was writing."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from wellcond.diagnose.records import SCHEMA
from wellcond.errors import WellcondError
from wellcond.file_names import check_path
from wellcond.plain import to_json, to_json_line
from wellcond.report.atomic import write_text


class Journal:
    r"""A run's folder: `run.json` says what it is, `metrics.jsonl` has the records.

    A folder that is there already is continued: what a killed process left of a last line is cut off first.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with Journal(Path(folder), {"label": "default", "seed": 0}) as journal:
    ...         journal.write({"step": 1, "kappa": float("inf")})
    ...     (Path(folder) / "metrics.jsonl").read_text()
    '{"step": 1, "kappa": "inf"}\n'
    """

    def __init__(self, folder: Path, about: Mapping[str, Any]) -> None:
        check_path(folder)
        try:
            folder.mkdir(parents=True, exist_ok=True)
            if not (folder / "run.json").exists():
                write_text(folder / "run.json", to_json({"schema": SCHEMA, **about}) + "\n")
            self._file = os.open(folder / "metrics.jsonl", os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o666)
        except OSError as error:
            raise WellcondError(f"'{folder}' cannot be written to: {error.strerror}") from error
        _cut_broken_line(self._file)

    def write(self, record: Mapping[str, Any]) -> None:
        """Append one line with one call, and have the system store it."""
        os.write(self._file, to_json_line(record).encode())
        os.fdatasync(self._file)

    def close(self) -> None:
        """Close the file; nothing is pending."""
        os.close(self._file)

    def __enter__(self) -> Journal:
        return self

    def __exit__(self, *problem: Any) -> None:
        self.close()


def _cut_broken_line(file: int) -> None:
    end = os.fstat(file).st_size
    position, tail = end, b""
    while position and b"\n" not in tail:
        start = max(0, position - 65536)
        tail = os.pread(file, position - start, start) + tail
        position = start
    os.ftruncate(file, end - (len(tail) - tail.rfind(b"\n") - 1))
