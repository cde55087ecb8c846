"""The folder of a run: its description, its measurements, and apart from these its times."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from wellcond._core.atomic import write_text
from wellcond._core.file_names import check_path
from wellcond._core.json_files import read_lines, read_object
from wellcond._core.json_safe import to_json, to_json_line
from wellcond.errors import StorageError, WellcondError
from wellcond.lab.schema import SCHEMA, in_current_schema

STATUSES = ("running", "finished", "diverged", "crashed")


class RunFolder:
    """`run.json`, `metrics.jsonl` (nothing that depends on the clock) and `timings.jsonl` of one run.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as name:
    ...     folder = RunFolder(Path(name) / "run")
    ...     folder.describe(status="running")
    ...     folder.measure("train", 10, loss=0.5)
    ...     folder.go_back_to(5)
    ...     (folder.path / "metrics.jsonl").read_text(), folder.description["status"]
    ('', 'running')
    """

    def __init__(self, path: Path) -> None:
        self.path = check_path(path)
        try:
            path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise WellcondError(f"the folder '{path}' cannot be made: {error}") from None

    @property
    def description(self) -> dict[str, Any]:
        """Return what `run.json` says, nothing before the run began."""
        return read_description(self.path)

    def describe(self, **changes: Any) -> None:
        """Change `run.json`, the rest of it staying."""
        write_text(self.path / "run.json", to_json({"schema": SCHEMA, **self.description, **changes}) + "\n")

    def measure(self, kind: str, step: int, **values: Any) -> None:
        """Append a line to `metrics.jsonl`."""
        self._append("metrics.jsonl", {"kind": kind, "step": step, **values})

    def time(self, kind: str, step: int, seconds: float) -> None:
        """Append a line to `timings.jsonl`."""
        self._append("timings.jsonl", {"kind": kind, "step": step, "seconds": seconds})

    def go_back_to(self, step: int) -> None:
        """Forget what was measured after a step: it will be measured again. The monitor looks before a step is made.

        So is the untrained model tested, which is all that step 0 has.

        Files that a killed process had not finished go, too: a folder is written by one process at a time.
        """
        for begun in self.path.glob(".*.partial"):
            begun.unlink(missing_ok=True)
        metrics, timings = (run_lines(self.path / name) for name in ("metrics.jsonl", "timings.jsonl"))
        kept = [one for one in metrics if one["step"] < step or (one["step"] == step > 0 and one["kind"] != "monitor")]
        write_text(self.path / "metrics.jsonl", "".join(map(to_json_line, kept)))
        write_text(self.path / "timings.jsonl", "".join(to_json_line(one) for one in timings if one["step"] <= step))

    def _append(self, name: str, values: dict[str, Any]) -> None:
        try:
            with (self.path / name).open("a", encoding="utf-8") as file:
                file.write(to_json_line(values))
        except OSError as error:
            raise StorageError(f"'{self.path / name}' cannot be written: {error}") from None


def read_description(folder: Path) -> dict[str, Any]:
    """Return what a folder's `run.json` says, nothing where there is none."""
    path, advice = check_path(folder / "run.json"), f"delete '{folder}' to train this run again"
    if not path.exists():
        return {}
    # To train a finished run again would be worse than to stop.
    found = in_current_schema(read_object(path, advice), path)
    if found.get("status") not in STATUSES:
        raise WellcondError(
            f"'{path}': status is one of {', '.join(STATUSES)}, got {found.get('status')!r:.60}: {advice}"
        )
    return found


def run_lines(path: Path) -> list[dict[str, Any]]:
    """Read the lines of a `metrics.jsonl` or `timings.jsonl`, each with a kind and a step; none without a file."""
    if not path.exists():
        return []
    advice = f"delete '{path.parent}' and run the comparison again"
    lines = list(read_lines(path, advice))
    for number, line in lines:
        if type(line.get("step")) is not int or not isinstance(line.get("kind"), str):
            raise WellcondError(f"'{path}', line {number}, has no step or no kind: {advice}")
    return [line for _, line in lines]


def loss_is_sound(loss: float) -> bool:
    """Return whether training can go on: a loss that is no number, or astronomical, will not come back."""
    return math.isfinite(loss) and loss < 1e6
