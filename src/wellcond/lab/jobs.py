"""Several runs side by side on one machine: a process each, the threads divided."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from queue import Empty
from typing import Any

import torch

from wellcond.errors import WellcondError
from wellcond.lab.compare import Experiment, run_one
from wellcond.lab.recipe import Recipe

Said = Callable[[str, int, int, float], None]  # scheme, seed, steps done, loss

_QUEUE: Any = None


def run_jobs(experiment: Experiment, jobs: int, said: Said) -> None:
    """Every run that is not done, `jobs` at a time.

    A process that dies takes its run with it; the run's folder is as it was, and the next call goes on from there.
    """
    context = multiprocessing.get_context("spawn")
    queue = context.Manager().Queue()
    threads = max(1, (os.cpu_count() or 1) // jobs)
    left = [(scheme.name, seed) for scheme, seed in experiment.left()]
    with ProcessPoolExecutor(jobs, mp_context=context, initializer=_begin, initargs=(queue, threads)) as pool:
        recipe = experiment.recipe.model_dump_json()
        futures = [pool.submit(_job, recipe, str(experiment.out), name, seed) for name, seed in left]
        try:
            waiting = set(futures)
            while waiting:
                _drain(queue, said)
                waiting = {future for future in waiting if not future.done()}
            for future in as_completed(futures):
                future.result()
        except BrokenProcessPool:
            raise WellcondError(
                "a process of the comparison died (killed, or out of memory); what is done is kept: run it again"
            ) from None
    _drain(queue, said)


def _drain(queue: Any, said: Said) -> None:
    try:
        while True:
            said(*queue.get(timeout=0.2))
    except Empty:
        return


def _begin(queue: Any, threads: int) -> None:
    global _QUEUE
    _QUEUE = queue
    torch.set_num_threads(threads)


def _job(recipe: str, out: str, name: str, seed: int) -> str:
    experiment = Experiment.of(Recipe.model_validate_json(recipe), Path(out))
    scheme = next(s for s, _ in experiment.runs() if s.name == name)
    return run_one(experiment, scheme, seed, lambda step, loss: _QUEUE.put((name, seed, step, loss)))
