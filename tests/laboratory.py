"""A small comparison for the tests of the laboratory."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.preloaded import torchrun
from wellcond.lab.comparison import Experiment, prepare_comparison, run_one
from wellcond.lab.recipe.arms import arms_of
from wellcond.lab.recipe.recipe import load_recipe
from wellcond.lab.training import train as training

TINY = """
title = "tiny"
task = "digits"
seeds = [0, 1]

[model]
name = "vit"
width = 16
depth = 1
heads = 2
patch = 4
dropout = 0.1

[train]
steps = 40
batch = 16
log_every = 5
test_every = 20
checkpoint_every = 10
ema = 0.9

[monitor]
every = 20
heads = 1
examples = 2

[arms.default]

[arms.conditioned]
init = "conditioned"
control = true

[arms."shift 1"]
condition = "shift"
strength = 1.0
"""


def write(folder: Path, text: str = TINY) -> Path:
    path = folder / "tiny.toml"
    path.write_text(text)
    return path


def prepared(path: Path, out: Path, **changes: Any) -> Experiment:
    return prepare_comparison(load_recipe(path, **changes), out)


def interrupt_and_resume(experiment: Experiment, monkeypatch: Any) -> None:
    """Stop every arm's first seed at step 26, six behind the checkpoint of step 20, and let it go on to its end."""
    original = training.steer_

    def interrupted(optimizer: Any, step: int, *others: Any) -> None:
        if step == 26:
            raise KeyboardInterrupt
        original(optimizer, step, *others)

    for arm in arms_of(experiment.recipe):
        monkeypatch.setattr(training, "steer_", interrupted)
        with pytest.raises(KeyboardInterrupt):
            run_one(experiment, arm, 0)
        monkeypatch.setattr(training, "steer_", original)
        assert run_one(experiment, arm, 0) == "finished"


def quiet(*_: object) -> Any:
    return lambda step, loss: None


def metrics(out: Path) -> dict[str, str]:
    """Every run's measurements, as they were written."""
    return {str(path.relative_to(out)): path.read_text() for path in sorted(out.glob("runs/*/*/metrics.jsonl"))}


def losses(out: Path) -> list[list[float]]:
    """Every run's training losses."""
    return [
        [json.loads(line)["loss"] for line in text.splitlines() if '"train"' in line] for text in metrics(out).values()
    ]


def in_two_processes(path: Path, out: Path, *more: str, kill_after: int | None = None) -> None:
    """`torchrun` on one machine, over gloo; with `kill_after`, killed −9 when so many lines have been measured."""
    wanted = ["-m", "wellcond", "compare", str(path), "--out", str(out), *more]
    if kill_after is None:
        ended = torchrun(*wanted, cwd=path.parent)
        assert ended.returncode == 0, ended.stderr[-3000:]
        return
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(
        [*command, *wanted], env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, start_new_session=True
    )
    while process.poll() is None and sum(text.count("\n") for text in metrics(out).values()) < kill_after:
        time.sleep(0.01)
    assert process.poll() is None, "it ended before it could be killed"
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
