"""The runs of a comparison on a Ray cluster: a run whose node is lost is made by another, to the same bits.

A run works in a folder of its attempt. Where nodes share the comparison's folder, that is inside of it, and another
attempt goes on from the last checkpoint; elsewhere it is a temporary one of the node, and another attempt begins anew.
Either way the finished run is sent to the process that was started by hand, which alone writes to `runs`.
"""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import signal
import socket
import tempfile
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from wellcond.errors import WellcondError
from wellcond.lab.comparison import Experiment, Said, run_one
from wellcond.lab.engines.distributed import processes
from wellcond.lab.engines.ray_attempts import ATTEMPTS, content_of, go_on_from, remove_attempts, write_run
from wellcond.lab.own_identity import check_same_data, data_identity
from wellcond.lab.recipe.recipe import Recipe
from wellcond.lab.versions_and_machine import versions_and_machine


@dataclass(frozen=True)
class Job:
    """Everything that a node needs to make any run of the comparison; it may have none of its files."""

    recipe: dict[str, Any]
    out: str
    call: str  # a folder under `out`, made just now: who sees it shares the storage
    directory: str  # that relative paths of the recipe start from
    versions: dict[str, str]
    threads: int
    own: dict[str, str]  # hashes of data of the user's own, which every node has to read alike


def run_on_ray(
    experiment: Experiment, said: Said, *, address: str = "auto", cpus: int = 1, max_retries: int = 3
) -> None:
    """Make every run that is not done, as many at a time as the cluster has room for.

    Retries are counted here and not by Ray, which repeats what ran out of memory without end.

    Args:
        experiment: as `prepare` returned it.
        said: is told of steps.
        address: of the cluster, HOST:PORT, or `auto` for the one that this machine is a node of.
        cpus: processors, and threads, of a run; it has a GPU, too, where the cluster has any.
        max_retries: how often a run is tried again after its node or process was lost.
    """
    if processes() > 1:
        raise WellcondError("--engine ray is started once, not by torchrun: a run on the cluster has one process")
    if not experiment.left():
        return
    out = experiment.out.absolute()
    with _connected(address) as ray:
        options = _room(ray, cpus)
        call = out / ATTEMPTS / secrets.token_hex(4)
        call.mkdir(parents=True)
        own = data_identity(experiment.task)
        job = Job(experiment.recipe.model_dump(), str(out), str(call), str(Path.cwd()), _libraries(), cpus, own)
        try:
            _make_all(ray, experiment, job, options, said, max_retries)
        finally:
            for arm, seed in experiment.left():  # so that another engine, too, goes on from there
                folder = experiment.folder(arm, seed)
                go_on_from(experiment.out, folder.relative_to(experiment.out), folder)
            remove_attempts(out)


def _make_all(
    ray: Any, experiment: Experiment, job: Job, options: dict[str, Any], said: Said, max_retries: int
) -> None:
    progress = _progress(ray)
    make = ray.remote(max_retries=0, **options)(_attempt)
    runs = [(arm, seed, 0) for arm, seed in experiment.left()]
    waiting = {make.remote(job, arm.name, seed, progress): (arm, seed, lost) for arm, seed, lost in runs}
    given_up = []
    try:
        while waiting:
            done, _ = ray.wait(list(waiting), timeout=0.3)
            _tell(ray, progress, said)
            for task in done:
                arm, seed, lost = waiting.pop(task)
                content, why = _result(ray, task)
                if content is not None:
                    folder = experiment.folder(arm, seed)
                    write_run(folder, content)
                    remove_attempts(experiment.out, folder.relative_to(experiment.out))
                elif lost < max_retries:
                    waiting[make.remote(job, arm.name, seed, progress)] = arm, seed, lost + 1
                else:
                    given_up.append(f"'{arm.name}' with seed {seed} ({why})")
        _tell(ray, progress, said)
    finally:
        _cancel(ray, list(waiting))
    if given_up:
        raise WellcondError(
            f"runs were given up that lost their process {max_retries + 1} times: {', '.join(given_up)}; what is done "
            "is kept: start again, if memory was short with more --cpus, so that fewer runs share a node"
        )


def _result(ray: Any, task: Any) -> tuple[dict[str, bytes] | None, str]:
    """The files of a run; nothing where its node or process was lost, and why."""
    try:
        return ray.get(task), ""
    except ray.exceptions.RayTaskError as error:  # before the run began, or storage: all the others would meet it, too
        cause = error.cause if isinstance(error.cause, Exception) else error
        if isinstance(cause, WellcondError):
            raise type(cause)(str(cause)) from None
        words = next(filter(None, reversed(str(cause).splitlines())), "")
        raise WellcondError(
            f"a node cannot begin a run: {type(cause).__name__}: {words}; "
            "every node needs this version of wellcond, and what the recipe names"
        ) from None
    except ray.exceptions.RayError as error:
        return None, type(error).__name__


def _attempt(job: Job, name: str, seed: int, progress: Any) -> dict[str, bytes]:
    """On a node: one run, as far as it goes; a failure of its own is recorded in it, and it is not tried again."""
    import ray

    node = ray.get_runtime_context().get_node_id()
    _check_libraries(job.versions)
    torch.set_num_threads(job.threads)
    if Path(job.directory).is_dir():
        os.chdir(job.directory)
    own = f"{node}-{os.getpid()}-"
    shared = Path(job.call).is_dir()
    # Shared storage keeps what was reached when the node is lost; the other folder goes with its process.
    kept = contextlib.nullcontext(tempfile.mkdtemp(prefix=own, dir=job.call)) if shared else None
    with kept or tempfile.TemporaryDirectory(prefix=f"wellcond-{own}") as base:
        experiment = Experiment.of(Recipe.model_validate(job.recipe), Path(base))
        check_same_data(experiment.task, job.own)
        arm = next(s for s, _ in experiment.runs() if s.name == name)
        folder = experiment.folder(arm, seed)
        if shared:
            go_on_from(Path(job.out), folder.relative_to(base), folder)
        run_one(experiment, arm, seed, lambda step, loss: progress.said.remote(name, seed, step, loss) and None)
        return content_of(folder)


def _progress(ray: Any) -> Any:
    """An actor that runs tell their steps to: beside this process, so that no node takes it along."""

    class Progress:  # a local class is sent as it is: its process need not import torch
        def __init__(self) -> None:
            self.latest: dict[tuple[str, int], tuple[int, float]] = {}

        def said(self, name: str, seed: int, step: int, loss: float) -> None:
            self.latest[name, seed] = step, loss

        def take(self) -> dict[tuple[str, int], tuple[int, float]]:
            taken, self.latest = self.latest, {}
            return taken

    here = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(
        ray.get_runtime_context().get_node_id(), soft=False
    )
    return ray.remote(num_cpus=0, max_restarts=-1, scheduling_strategy=here)(Progress).remote()


def _tell(ray: Any, progress: Any, said: Said) -> None:
    try:
        news = ray.get(progress.take.remote())
    except ray.exceptions.RayActorError:
        return  # it is started again; a bar that stands still is not worth a run
    for (name, seed), (step, loss) in news.items():
        said(name, seed, step, loss)


def _cancel(ray: Any, tasks: list[Any]) -> None:
    """Interrupt what is under way, and after a moment end its process."""
    for force in (False, True):
        for task in tasks:
            ray.cancel(task, force=force)
        tasks = ray.wait(tasks, num_returns=len(tasks), timeout=1)[1] if tasks else []


@contextlib.contextmanager
def _connected(address: str) -> Iterator[Any]:
    """Ray, quietly; a connection that the caller has made is used, and stays."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # read when it is imported
    try:
        import ray
        import ray.util.scheduling_strategies
    except ImportError as error:
        raise WellcondError(f"Ray cannot be imported ({error}): pip install 'wellcond[ray]'") from None
    if ray.is_initialized():
        yield ray
        return
    if address == "auto":
        address = os.environ.get("RAY_ADDRESS") or address
    try:
        host, _, port = address.rpartition(":")
        if host and "/" not in host:  # Ray itself would try for minutes
            socket.create_connection((host, int(port)), timeout=5).close()
        with _sigterm_kept():
            ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR, include_dashboard=False)
    except (OSError, ValueError, RuntimeError) as error:
        raise WellcondError(
            f"no Ray cluster at '{address}' ({' '.join(str(error).split())}): give --address HOST:PORT, "
            "or start one with `ray start --head`"
        ) from None
    # The log of a lost node would be printed on stdout, where the results go; Ray's debugger switches it off like this.
    printing: Any = ray._private.worker
    printing._worker_logs_enabled = False
    try:
        yield ray
    finally:
        ray.shutdown()
        printing._worker_logs_enabled = True


@contextlib.contextmanager
def _sigterm_kept() -> Iterator[None]:
    """Put the handler of SIGTERM back, if there was one: Ray replaces it by its own, which exits with code 15."""
    before = signal.getsignal(signal.SIGTERM)
    yield
    if callable(before) and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, before)


def _room(ray: Any, cpus: int) -> dict[str, int]:
    """Return the resources of a run, if a node has them: Ray would wait for such a node without a word."""
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    gpus = 1 if any(node.get("GPU") for node in nodes) else 0
    most = max((int(node.get("CPU", 0)) for node in nodes if node.get("GPU", 0) >= gpus), default=0)
    if most < cpus:
        raise WellcondError(f"no node has {cpus} processors{' beside a GPU' * gpus}; the largest has {most}: --cpus")
    return {"num_cpus": cpus, "num_gpus": gpus}


def _libraries() -> dict[str, str]:
    versions = versions_and_machine()["versions"]
    return {name: found for name, found in versions.items() if name != "python"}  # Ray's own check


def _check_libraries(wanted: dict[str, str]) -> None:
    """Runs that are compared are made with the same libraries."""
    found = _libraries()
    other = [f"{n} {found.get(n, 'missing')}, not {v}" for n, v in wanted.items() if found.get(n) != v]
    if other:
        raise WellcondError(f"the node {socket.gethostname()} has other libraries: {'; '.join(other)}; install these")
