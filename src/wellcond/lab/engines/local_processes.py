"""Several runs side by side on one machine: a process each, the threads divided."""

from __future__ import annotations

import atexit
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from multiprocessing import resource_tracker
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, NoReturn

import torch

from wellcond._core import stop_signals as stopping
from wellcond.errors import WellcondError
from wellcond.lab.comparison import Experiment, Said, run_one
from wellcond.lab.own_identity import check_same_data, data_identity
from wellcond.lab.recipe.recipe import Recipe

ArmAndSeed = tuple[str, int]  # arm, seed

LINE_CLOSED = (EOFError, ConnectionError)  # the other end of a line
SECONDS_TO_END = 1.0  # that a process has to end in before it is killed


def run_jobs(experiment: Experiment, jobs: int, said: Said) -> None:
    """Make every run that is not done, `jobs` at a time. No process outlives this call, or the process that made it.

    A process that dies takes its run with it; the run's folder is as it was, and the next call goes on from there.
    """
    context = multiprocessing.get_context("spawn")
    runs = [(arm.name, seed) for arm, seed in experiment.left()]
    threads, own = max(1, (os.cpu_count() or 1) // jobs), data_identity(experiment.task)
    given = experiment.recipe.model_dump_json(), experiment.out, threads, own
    at_work: dict[Any, BaseProcess] = {}  # by our end of its line
    try:
        with _terminal_signals_blocked():
            for _ in range(min(jobs, len(runs))):
                ours, theirs = context.Pipe()
                process = context.Process(target=_make_runs, args=(*given, theirs))
                process.start()
                at_work[ours] = process
                theirs.close()  # so that the end of the process is the end of what it says
        left = iter(runs)
        while at_work:
            for line in wait(list(at_work)):
                _answer(line, at_work, left, said)
    finally:
        _end(at_work.values())


def _answer(line: Any, at_work: dict[Any, BaseProcess], left: Iterator[ArmAndSeed], said: Said) -> None:
    """Take what a process says: that it is free, what it has reached, or what went wrong; or see that it ended."""
    try:
        found = line.recv()
        if found is None:
            line.send(next(left, None))
    except LINE_CLOSED:
        process = at_work.pop(line)
        process.join()
        if process.exitcode != 0:
            raise WellcondError(
                "a process of the comparison died (killed, or out of memory); what is done is kept: run it again"
            ) from None
        return
    if isinstance(found, WellcondError):  # no result of a run, as a full disk: the others would meet it, too
        raise found
    if found is not None:
        said(*found)


@contextmanager
def _terminal_signals_blocked() -> Iterator[None]:
    """Meanwhile, start processes that never see Ctrl-C or a terminal's end: these are for this one, which ends them."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    resource_tracker.ensure_running()  # which would be started by the first process, and unblock SIGINT
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGHUP})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _end(children: Iterable[BaseProcess]) -> None:
    """Ask processes to end, and kill those that have not after a moment."""
    ending, deadline = list(children), time.monotonic() + SECONDS_TO_END
    for child in ending:
        child.terminate()
    for child in ending:
        child.join(max(0.0, deadline - time.monotonic()))
        if child.is_alive():
            child.kill()
            child.join()


def _make_runs(recipe: str, out: Path, threads: int, own: dict[str, str], line: Any) -> None:
    """In a process of its own: one run after the other, as long as there are any."""
    signal.signal(signal.SIGTERM, _leave)
    threading.Thread(target=_follow_parent, daemon=True).start()
    torch.set_num_threads(threads)
    try:
        experiment = Experiment.of(Recipe.model_validate_json(recipe), out)
        check_same_data(experiment.task, own)
        arms = {arm.name: arm for arm, _ in experiment.runs()}
        while (run := _next(line)) is not None:
            name, seed = run
            run_one(experiment, arms[name], seed, partial(_report, line, name, seed))
    except WellcondError as error:
        line.send(error)


def _next(line: Any) -> ArmAndSeed | None:
    with _heard():
        line.send(None)
        found: ArmAndSeed | None = line.recv()
        return found


def _report(line: Any, name: str, seed: int, step: int, loss: float) -> None:
    with _heard():
        line.send((name, seed, step, loss))


@contextmanager
def _heard() -> Iterator[None]:
    """End with the parent, which is no fault of the run that is under way."""
    try:
        yield
    except LINE_CLOSED:
        _leave(signal.SIGTERM, None)


def _leave(number: int, frame: object) -> NoReturn:
    """Unwind, then end without taking Python and torch apart, which can take seconds."""
    stopping.end_readers()
    atexit.register(os._exit, 128 + number)
    raise SystemExit(128 + number)


def _follow_parent() -> None:
    """In a thread: end when the process that was started by hand does, also if it was killed."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(SECONDS_TO_END)
    os._exit(128 + signal.SIGTERM)
