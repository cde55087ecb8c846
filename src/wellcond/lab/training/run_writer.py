"""Write what a run measures into its folder and the user's trackers, from the first of its processes only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from accelerate import Accelerator

from wellcond.control.log import ControlRecord
from wellcond.diagnosis.schema import SCHEMA
from wellcond.diagnosis.summaries import from_plain, statistics_of
from wellcond.errors import WellcondError
from wellcond.lab.training.checkpoints import remove_checkpoints
from wellcond.lab.training.run_folder import RunFolder


class RunWriter:
    """A run's folder and trackers, for all processes to call and one, `main`, to write."""

    def __init__(self, folder: RunFolder, accelerator: Accelerator, trackers: tuple[str, ...]) -> None:
        self.folder, self.accelerator, self.tracked = folder, accelerator, bool(trackers)
        self.main = accelerator.is_main_process
        if self.tracked:
            try:
                accelerator.init_trackers("tracked")
            except (ImportError, ValueError) as error:
                raise WellcondError(f"trackers = {list(trackers)}: {error}") from error

    def measure(self, kind: str, step: int, **values: float) -> None:
        """Record what was measured after so many steps."""
        if self.main:
            self.folder.measure(kind, step, **values)
        if self.tracked:
            self.accelerator.log({f"{kind}/{name}": value for name, value in values.items()}, step=step)

    def monitor(self, step: int, records: Sequence[Mapping[str, Any]]) -> None:
        """Write what a monitor measured, by the quantities' keys; the records of each head would fill the disk."""
        found = {key: summary for record in records for key, summary in record["quantities"].items()}
        if self.main:
            self.folder.measure("monitor", step, schema=SCHEMA, quantities=found)
        if self.tracked:
            values = statistics_of(from_plain(found))
            self.accelerator.log({f"monitor/{name}": value for name, value in values.items()}, step=step)

    def control(self, records: Sequence[ControlRecord]) -> None:
        """Write what a control found and did; trackers are for numbers, and it has words."""
        for values in map(asdict, records) if self.main else ():
            self.folder.measure("control", values.pop("step"), **values)

    def end(self, status: str, error: str) -> None:
        """How it ended; nothing is left to go on from."""
        if self.main:
            self.folder.describe(status=status, error=error)
            remove_checkpoints(self.folder.path)
        if self.tracked:
            self.accelerator.end_training()
