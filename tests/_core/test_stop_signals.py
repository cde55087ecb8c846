"""Real commands, stopped by real signals: soon, in one line, with all of their processes; and they go on from there."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.commands import Started, started
from tests.laboratory import metrics
from wellcond.lab.api import compare_recipe
from wellcond.lab.engines.engine import Engine
from wellcond.lab.recipe.recipe import load_recipe

LIMIT = 5  # seconds from a signal to the end

# Trains 25 steps, then waits for as long as there is a file: a run that no machine is too fast to stop in.
HELD = """
import time
from pathlib import Path
import torch
from torch import nn

class Held(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.head = nn.Linear(8, 10)
        self.steps = 0

    def forward(self, images):
        if self.training:
            self.steps += 1
            while self.steps > 25 and Path(HOLD).exists():
                time.sleep(0.01)
        tokens = images.flatten(1).unflatten(1, (8, 8))
        return self.head(self.attention(tokens, tokens, tokens)[0].mean(1))

def model():
    torch.manual_seed(0)
    return Held()
"""

RECIPE = """
task = "digits"
seeds = [0, 1]

[model]
name = "MODEL:model"

[train]
steps = 40
batch = 16
log_every = 5
checkpoint_every = 10
workers = 0

[arms.default]

[arms.conditioned]
init = "conditioned"
"""


def held(folder: Path, **train: object) -> Path:
    """A recipe whose runs wait while the file `hold` is there."""
    (folder / "hold").touch()
    model = folder / "held.py"
    model.write_text(HELD.replace("HOLD", repr(str(folder / "hold"))))
    path = folder / "held.toml"
    text = RECIPE.replace("MODEL", str(model))
    for name, value in train.items():
        text = text.replace(f"{name} = 0", f"{name} = {value}")
    path.write_text(text)
    return path


def waiting(out: Path) -> list[Path]:
    """Runs that have come to the step at which they wait."""
    return [path.parent for path in out.glob("runs/*/*/checkpoint-00000020-*")]


def comparing(path: Path, *more: str) -> list[str]:
    return [sys.executable, "-m", "wellcond", "compare", str(path), "--out", "out", *more]


def whole(out: Path) -> bool:
    return not list(out.rglob("*.partial"))


def test_ctrl_c_ends_runs_side_by_side_and_the_same_command_goes_on(tmp_path: Path) -> None:
    """The terminal's signal goes to all processes; of four runs two are under way, and two must not begin."""
    path, out = held(tmp_path), tmp_path / "out"
    with started(*comparing(path, "--jobs", "2"), cwd=tmp_path) as command:
        command.wait_for(lambda: len(waiting(out)) == 2)
        os.killpg(command.process.pid, signal.SIGINT)
        code, said, took = command.end()
        assert (code, command.nobody_left()) == (130, {})
        assert took < LIMIT
    assert said.splitlines() == [
        "4 runs in out, 0 of them done already",
        "stopped by Ctrl-C (SIGINT): 0 of 4 runs are done and kept in out, and checkpoints of 2 more; "
        "the same command goes on from there",
    ]
    runs = list(out.glob("runs/*/*"))
    assert [json.loads((run / "run.json").read_text())["status"] for run in runs] == ["running", "running"]
    assert whole(out)
    (runs[0] / ".checkpoint.0123.partial").touch()  # as of a process that was killed while it wrote
    (tmp_path / "hold").unlink()
    compare_recipe(load_recipe(path), out, Engine())  # at once: nobody holds the folder
    compare_recipe(load_recipe(path), tmp_path / "undisturbed", Engine())
    assert len(metrics(out)) == 4
    assert whole(out)
    assert metrics(out) == metrics(tmp_path / "undisturbed")


def test_runs_side_by_side_do_not_outlive_a_parent_that_is_killed(tmp_path: Path) -> None:
    path, out = held(tmp_path), tmp_path / "out"
    with started(*comparing(path, "--jobs", "2"), cwd=tmp_path) as command:
        command.wait_for(lambda: len(waiting(out)) == 2)
        assert len(command.family()) >= 3
        command.process.kill()
        assert command.nobody_left() == {}
    runs = list(out.glob("runs/*/*"))
    assert [json.loads((run / "run.json").read_text())["status"] for run in runs] == ["running", "running"]


@pytest.mark.long
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize("everybody", [True, False])
@pytest.mark.parametrize("jobs", ["1", "2"])
def test_processes_that_read_data_end_with_their_run(number: int, everybody: bool, jobs: str, tmp_path: Path) -> None:
    """A service manager's SIGTERM goes to all processes, a user's to one; torch's own messages are not seen."""
    path, out = held(tmp_path, workers=2), tmp_path / "out"
    with started(*comparing(path, "--jobs", jobs), cwd=tmp_path) as command:
        command.wait_for(lambda: len(waiting(out)) == int(jobs))
        assert len(command.family()) >= 1 + 2 * int(jobs)
        (os.killpg if everybody else os.kill)(command.process.pid, number)
        code, said, took = command.end()
        assert (code, command.nobody_left()) == (128 + number, {})
        assert took < LIMIT
    assert said.count("\n") == 2, said
    assert f"0 of 4 runs are done and kept in out, and checkpoints of {jobs} more" in said


@pytest.mark.long
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGKILL])
def test_processes_of_torchrun_end_with_it(number: int, tmp_path: Path) -> None:
    """It passes the signal on, and ends with a message and a code of its own; killed, it cannot."""
    path, out = held(tmp_path), tmp_path / "out"
    run = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    with started(*run, *comparing(path)[1:], cwd=tmp_path) as command:
        command.wait_for(lambda: len(waiting(out)) == 1)
        os.killpg(command.process.pid, number)
        code, said, took = command.end()
        assert command.nobody_left() == {}
        assert code != 0
        assert took < LIMIT
    if number != signal.SIGKILL:
        line = "0 of 4 runs are done and kept in out, and checkpoints of 1 more; the same command goes on from there\n"
        assert said.count(line) == said.count("stopped by") == 1
    (run_json,) = out.glob("runs/*/*/run.json")
    assert json.loads(run_json.read_text())["status"] == "running"


@pytest.mark.long
def test_a_storage_error_of_one_run_ends_those_beside_it(tmp_path: Path) -> None:
    """The others wait at their step, and would for ever."""
    path, out = held(tmp_path), tmp_path / "out"
    with started(*comparing(path, "--jobs", "2", "--seeds", "1"), cwd=tmp_path) as command:
        command.wait_for(lambda: len(waiting(out)) == 2)
        command.process.send_signal(signal.SIGTERM)
        command.end()
    first = sorted(out.glob("runs/*/*"))[0]
    (first / "metrics.jsonl").unlink()
    (first / "metrics.jsonl").mkdir()
    with started(*comparing(path, "--jobs", "2", "--seeds", "1"), cwd=tmp_path) as command:
        code, said, _ = command.end()
        assert (code, command.nobody_left()) == (2, {})
    assert "metrics.jsonl' cannot be read" in said.splitlines()[-1]


@pytest.mark.long
def test_a_terminal_that_is_closed_ends_its_command(tmp_path: Path) -> None:
    """Bars, too, cannot be written any more."""
    path, out = held(tmp_path), tmp_path / "out"
    script = (
        "import os, pty, sys\n"
        "process, terminal = pty.fork()\n"
        "if process == 0: os.execv(sys.argv[1], sys.argv[1:])\n"
        "while os.path.exists('open'):\n"
        "    os.read(terminal, 65536)\n"
        "os.close(terminal)\n"
        "print(os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]))\n"
    )
    (tmp_path / "open").touch()
    with started(sys.executable, "-c", script, *comparing(path, "--jobs", "2"), cwd=tmp_path) as command:
        command.wait_for(lambda: len(waiting(out)) == 2)
        (tmp_path / "open").unlink()
        assert command.process.communicate(timeout=60) == ("129\n", "")
        assert command.nobody_left() == {}


# Before the signal it says that it is there; how it waits decides whether Python's handler runs.
SLEEPING = "import time; time.sleep(600)"
IN_C = "import ctypes; c, lock = ctypes.CDLL(None), bytes(64); c.pthread_mutex_lock(lock); c.pthread_mutex_lock(lock)"


@contextmanager
def inspecting(body: str, folder: Path, *before: str) -> Iterator[Started]:
    """`wellcond inspect` of a model that takes for ever to build."""
    (folder / "m.py").write_text(f"def build():\n    open('here', 'w').close()\n    {body}\n")
    with started(*before, sys.executable, "-m", "wellcond", "inspect", "m.py:build", cwd=folder) as command:
        command.wait_for((folder / "here").exists)
        yield command


def line(name: str) -> str:
    return f"stopped by {name}: no file is left half-written; give the same command again\n"


def test_any_command_says_what_stopped_it(tmp_path: Path) -> None:
    with inspecting(SLEEPING, tmp_path) as command:
        command.process.send_signal(signal.SIGHUP)
        code, said, took = command.end()
    assert (code, said) == (129, line("SIGHUP (the terminal is gone)"))
    assert took < LIMIT


def test_nohup_stays_in_force_and_sigterm_stops(tmp_path: Path) -> None:
    with inspecting(SLEEPING, tmp_path, "nohup") as command:
        command.process.send_signal(signal.SIGHUP)
        time.sleep(1)
        assert command.process.poll() is None
        command.process.send_signal(signal.SIGTERM)
        code, said, _ = command.end()
    assert (code, said) == (143, line("SIGTERM"))


def test_a_second_ctrl_c_does_not_wait_for_a_call_that_does_not_return(tmp_path: Path) -> None:
    with inspecting(IN_C, tmp_path) as command:
        command.process.send_signal(signal.SIGINT)
        time.sleep(1)
        assert command.process.poll() is None
        command.process.send_signal(signal.SIGINT)
        code, said, took = command.end()
    assert (code, said) == (130, line("Ctrl-C (SIGINT)"))
    assert took < 2  # the first would have ended it after 3.5 s


@pytest.mark.long
def test_a_call_that_does_not_return_is_not_waited_for(tmp_path: Path) -> None:
    with inspecting(IN_C, tmp_path) as command:
        command.process.send_signal(signal.SIGTERM)
        code, said, took = command.end()
    assert (code, said) == (143, line("SIGTERM"))
    assert took < LIMIT
