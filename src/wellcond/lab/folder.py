"""A run's folder: what it is, what it measured, and apart from that how long it took."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from wellcond.errors import StorageError, WellcondError
from wellcond.plain import plain, to_json
from wellcond.report.atomic import write_text


class RunFolder:
    """`run.json`, `metrics.jsonl` (nothing that depends on the clock) and `timings.jsonl` of one run.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as name:
    ...     folder = RunFolder(Path(name) / "run")
    ...     folder.describe(status="running")
    ...     folder.measure("train", 10, loss=0.5)
    ...     folder.go_back_to(5)
    ...     (folder.path / "metrics.jsonl").read_text(), folder.status
    ('', 'running')
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise WellcondError(f"the folder '{path}' cannot be made: {error}") from None

    @property
    def description(self) -> dict[str, Any]:
        """What `run.json` says; nothing before the run began, or where it is damaged."""
        return describe(self.path)

    @property
    def status(self) -> str:
        """Finished, diverged, crashed or running; empty if it never began."""
        return str(self.description.get("status", ""))

    def describe(self, **changes: Any) -> None:
        """Change `run.json`, the rest of it staying."""
        write_text(self.path / "run.json", to_json({**self.description, **changes}) + "\n")

    def measure(self, kind: str, step: int, **values: Any) -> None:
        """Append a line to `metrics.jsonl`."""
        self._append("metrics.jsonl", {"kind": kind, "step": step, **values})

    def time(self, kind: str, step: int, seconds: float) -> None:
        """Append a line to `timings.jsonl`."""
        self._append("timings.jsonl", {"kind": kind, "step": step, "seconds": seconds})

    def go_back_to(self, step: int) -> None:
        """Forget what was measured after a step: it will be measured again. The monitor looks before a step is made.

        Files that a killed process had not finished go, too: a folder is written by one process at a time.
        """
        for begun in self.path.glob(".*.partial"):
            begun.unlink(missing_ok=True)
        kept = []
        for line in self._whole_lines("metrics.jsonl"):
            found = json.loads(line)
            if found["step"] < step or (found["step"] == step and found["kind"] != "monitor"):
                kept.append(line)
        write_text(self.path / "metrics.jsonl", "".join(kept))
        timings = [line for line in self._whole_lines("timings.jsonl") if json.loads(line)["step"] <= step]
        write_text(self.path / "timings.jsonl", "".join(timings))

    def _append(self, name: str, values: dict[str, Any]) -> None:
        line = json.dumps(plain(values), ensure_ascii=False, allow_nan=False) + "\n"
        try:
            with (self.path / name).open("a", encoding="utf-8") as file:
                file.write(line)
        except OSError as error:
            raise StorageError(f"'{self.path / name}' cannot be written: {error}") from None

    def _whole_lines(self, name: str) -> list[str]:
        path = self.path / name
        lines = path.read_text(encoding="utf-8").splitlines(keepends=True) if path.exists() else []
        return [line for line in lines if line.endswith("\n")]


def describe(folder: Path) -> dict[str, Any]:
    """What a folder's `run.json` says; nothing where there is none, or a damaged one."""
    path = folder / "run.json"
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        return {}
    except OSError as error:  # to train a finished run again would be worse than to stop
        raise WellcondError(f"'{path}' cannot be read: {error}") from None
    return found if isinstance(found, dict) else {}


def sound(loss: float) -> bool:
    """Whether training still goes on: a loss that is no number, or astronomical, will not come back."""
    return math.isfinite(loss) and loss < 1e6
