"""Records on disk, one JSON object a line: a process that is killed loses at most the line it was writing."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from wellcond._core.atomic import write_text
from wellcond._core.file_names import check_path
from wellcond._core.json_safe import to_json, to_json_line
from wellcond.diagnosis.schema import SCHEMA, current_layers
from wellcond.diagnosis.summaries import Summary, from_plain, from_statistics, summarize
from wellcond.errors import WellcondError


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
            raise WellcondError(f"'{folder}' cannot be written to: {error.strerror or error}") from error
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


def read_summaries(line: Mapping[str, Any]) -> dict[str, Summary]:
    """Return what a line of `metrics.jsonl` has measured, by the quantities' keys; older lines by their schema.

    Of wellcond 0.1, a monitor's line (schema 1) has records in other words, a comparison's (none) numbers alone.

    >>> read_summaries({"schema": 2, "step": 5, "quantities": {"entropy": {"mean": 0.5, "count": 4}}})["entropy"].mean
    0.5
    >>> read_summaries({"kind": "monitor", "step": 5, "entropy": 0.5})["entropy"].mean
    0.5
    """
    schema = line.get("schema", 0)
    if schema > SCHEMA:
        raise WellcondError(f"a record has schema {schema}, but this wellcond reads up to {SCHEMA}: upgrade wellcond")
    if schema == SCHEMA:
        return from_plain(line["quantities"])
    if schema:
        return summarize(current_layers(line["layers"], schema))
    return from_statistics({name: value for name, value in line.items() if name not in ("kind", "step")})


def _cut_broken_line(file: int) -> None:
    end = os.fstat(file).st_size
    position, tail = end, b""
    while position and b"\n" not in tail:
        start = max(0, position - 65536)
        tail = os.pread(file, position - start, start) + tail
        position = start
    os.ftruncate(file, end - (len(tail) - tail.rfind(b"\n") - 1))
