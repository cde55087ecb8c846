"""Engines that make the runs of a comparison: one after the other, side by side, or on a cluster."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from wellcond._core import stop_signals as stopping
from wellcond.errors import WellcondError
from wellcond.lab.comparison import Experiment, run_all
from wellcond.lab.engines.display import Display
from wellcond.lab.engines.distributed import first_process, processes
from wellcond.lab.engines.local_processes import run_jobs
from wellcond.lab.engines.ray_attempts import reached
from wellcond.lab.engines.ray_cluster import run_on_ray


@dataclass(frozen=True)
class Engine:
    """How to make the runs that are not made yet.

    Args:
        name: `"local"`, or `"ray"` for the nodes of a cluster.
        jobs: runs side by side on this machine.
        address: of the cluster; the one that this machine belongs to if there is none.
        cpus: processors of a run on the cluster.
    """

    name: str = "local"
    jobs: int = 1
    address: str | None = None
    cpus: int | None = None

    def __post_init__(self) -> None:
        if self.name not in ("local", "ray"):
            raise WellcondError(f"--engine is local or ray, got '{self.name}'")
        if self.name == "local" and (self.address is not None or self.cpus is not None):
            raise WellcondError("--address and --cpus are for a cluster: add --engine ray")
        if self.name == "ray" and self.jobs > 1:
            raise WellcondError(
                "--jobs is for this machine: with --engine ray the cluster's processors decide, see --cpus"
            )

        if processes() > 1 and (self.jobs > 1 or self.name == "ray"):
            raise WellcondError(
                "torchrun's processes share each run: --jobs and --engine ray are for runs of one process"
            )

    def run(self, experiment: Experiment) -> None:
        """Make the runs that are left, with a live display; what stops this process says how many are done."""
        alone = locked_folder(experiment.out) if first_process() else nullcontext()
        with stopping.kept(lambda: _kept(experiment)), alone, Display(experiment) as display:
            if self.name == "ray":
                run_on_ray(experiment, display.said, address=self.address or "auto", cpus=self.cpus or 1)
            elif self.jobs > 1:
                run_jobs(experiment, self.jobs, display.said)
            else:
                run_all(experiment, lambda arm, seed: partial(display.said, arm.name, seed))


def _kept(experiment: Experiment) -> str:
    """Say what a stopped comparison keeps, and how it goes on."""
    runs, left = len(list(experiment.runs())), experiment.left()
    begun = sum(reached(experiment.folder(arm, seed)) > 0 for arm, seed in left)
    checkpoints = f", and checkpoints of {begun} more" if begun else ""
    done = f"{runs - len(left)} of {runs} runs are done and kept in {experiment.out}"
    return f"{done}{checkpoints}; the same command goes on from there"


@contextmanager
def locked_folder(out: Path) -> Iterator[None]:
    """Hold the folder while its runs are made; a process that is killed lets it go.

    The lock is that of POSIX, which children made by fork do not share: those that read data may outlive a kill.
    """
    if sys.platform == "win32":  # has no such locks, and goes without
        yield
        return
    import fcntl

    with (out / ".lock").open("a") as file:
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError):
            raise WellcondError(f"another command is at work in '{out}': wait for it, or give another --out") from None
        yield
