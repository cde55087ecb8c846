"""A comparison on a Ray cluster of two nodes: lost nodes and processes, storage that is not shared, interruption."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import ray
from ray.cluster_utils import Cluster
from typer.testing import CliRunner

from tests.commands import started, wait_until
from tests.laboratory import TINY
from wellcond.cli.main import app
from wellcond.errors import WellcondError
from wellcond.lab.comparison import prepare_comparison, run_all
from wellcond.lab.engines.ray_attempts import ATTEMPTS
from wellcond.lab.engines.ray_cluster import _check_libraries, _connected, _libraries, run_on_ray
from wellcond.lab.recipe.recipe import load_recipe

SMALL = TINY[: TINY.index("[arms.conditioned]")] + TINY[TINY.index('[arms."shift 1"]') :]
SMALL = (
    SMALL.replace("steps = 40", "steps = 200")
    .replace("test_every = 20", "test_every = 100")
    .replace("every = 20", "every = 100")
)

# The first training that is tried fails, and those after it take their process along; checks have two examples.
FAILING = """
import os, signal
from pathlib import Path
import torch
from torch import nn

class Failing(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.head = nn.Linear(8, 10)

    def forward(self, images):
        if len(images) == 16:
            with Path(LOG).open("a") as file:
                file.write("tried\\n")
            if len(Path(LOG).read_text().splitlines()) == 1:
                raise RuntimeError("out of luck")
            os.kill(os.getpid(), signal.SIGKILL)
        tokens = images.flatten(1).unflatten(1, (8, 8))
        return self.head(self.attention(tokens, tokens, tokens)[0].mean(1))

def model():
    torch.manual_seed(0)
    return Failing()
"""


def write(folder: Path, text: str = SMALL) -> Path:
    path = folder / "small.toml"
    path.write_text(text)
    return path


def metrics(out: Path) -> dict[str, str]:
    """Every run's measurements, as they were written."""
    return {str(path.relative_to(out)): path.read_text() for path in sorted(out.glob("runs/*/*/metrics.jsonl"))}


def of_seed_0(out: Path) -> dict[str, str]:
    return {name: text for name, text in metrics(out).items() if "seed-0" in name}


def first_times(run: Path) -> list[str]:
    """How long the first steps took: no two attempts agree on that, unless one goes on from the other."""
    return (run / "timings.jsonl").read_text().splitlines()[:4]


def published(attempt: Path, out: Path) -> Path:
    """Where the run of an attempt is in the end."""
    return out / attempt.relative_to(attempt.parents[2])


def reached(run: Path) -> int:
    """Step of the last checkpoint that is there."""
    return max((int(path.name.split("-")[1]) for path in run.glob("checkpoint-*.safetensors")), default=0)


def under_way(place: Path, who: str) -> Path | None:
    """The run that a node or a process is at, some of it done."""
    for run in place.glob(f"*{who}*/runs/*/seed-*"):
        described = run / "run.json"
        if described.exists() and json.loads(described.read_text())["status"] == "running" and reached(run) >= 20:
            return run
    return None


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The comparison in this process, one run after the other."""
    folder = tmp_path_factory.mktemp("undisturbed")
    run_all(prepare_comparison(write(folder), folder / "out"), lambda arm, seed: lambda step, loss: None)
    return folder / "out"


@pytest.fixture(scope="module")
def short() -> Iterator[Path]:
    """A folder whose name is short enough for sockets."""
    folder = Path(tempfile.mkdtemp(prefix="wcr", dir="/tmp"))
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="module")
def cluster(short: Path) -> Iterator[Cluster]:
    """A head with one processor; nodes are added by those who kill them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patch.setenv("OMP_NUM_THREADS", "1")
        patch.setenv("TMPDIR", str(short))  # for sockets, and where nodes have their temporary files
        patch.delenv("RAY_ADDRESS", raising=False)
        found = Cluster()
        try:
            found.add_node(num_cpus=1, include_dashboard=False)
            yield found
        finally:
            ray.shutdown()
            found.shutdown()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--engine", "spark"], "--engine is local or ray"),
        (["--address", "auto"], "add --engine ray"),
        (["--cpus", "2"], "add --engine ray"),
        (["--engine", "ray", "--jobs", "2"], "--jobs is for this machine"),
    ],
)
def test_options_that_do_not_go_together_are_one_line(options: list[str], words: str, tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["compare", str(write(tmp_path)), "--out", str(tmp_path / "out"), *options])
    assert done.exit_code == 2
    assert words in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("address", ["127.0.0.1:9", "nonsense", "auto", "127.0.0.1:port"])
def test_a_cluster_that_is_not_there_is_one_line_and_soon(
    address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))  # a cluster of this machine is none of the test's
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    began = time.monotonic()
    words = f"no Ray cluster at '{address}'.*ray start --head"
    with pytest.raises(WellcondError, match=words) as said, _connected(address):
        raise AssertionError("there is no cluster")
    assert "\n" not in str(said.value)
    assert time.monotonic() - began < 15


def test_without_ray_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(WellcondError, match=r"pip install 'wellcond\[ray\]'"), _connected("auto"):
        raise AssertionError("there is no Ray")


def test_several_processes_of_torchrun_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    experiment = prepare_comparison(write(tmp_path), tmp_path / "out")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(WellcondError, match="not by torchrun"):
        run_on_ray(experiment, lambda *news: None)


def test_a_node_with_other_libraries_is_refused() -> None:
    _check_libraries(_libraries())
    with pytest.raises(WellcondError, match=r"torch \S+, not 1\.0"):
        _check_libraries(_libraries() | {"torch": "1.0"})


def test_a_node_killed_at_work_loses_nothing(
    cluster: Cluster, undisturbed: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """SIGKILL to the second node; its run goes on elsewhere from its checkpoint, and all bits are the same."""
    experiment = prepare_comparison(write(tmp_path), tmp_path / "out")
    victim = cluster.add_node(num_cpus=1)
    lost: list[Path] = []
    left: dict[str, Any] = {}

    def said(arm: str, seed: int, step: int, loss: float) -> None:
        run = None if lost else under_way(next((experiment.out / ATTEMPTS).iterdir()), victim.node_id)
        if run is not None:
            cluster.remove_node(victim, allow_graceful=False)
            lost.append(run)
            left.update(json.loads((run / "run.json").read_text()), first_times=first_times(run))

    run_on_ray(experiment, said, address=cluster.address)
    assert left["status"] == "running"  # it was killed before its end,
    assert first_times(published(lost[0], experiment.out)) == left["first_times"]  # and did not begin anew
    assert experiment.left() == []
    assert metrics(experiment.out) == metrics(undisturbed)
    assert not (experiment.out / ATTEMPTS).exists()
    assert not list(experiment.out.rglob("checkpoint-*"))
    assert not ray.is_initialized()
    assert capfd.readouterr() == ("", "")


@pytest.mark.long
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGKILL])
def test_a_stopped_command_leaves_nothing_at_work_on_the_cluster(
    cluster: Cluster, number: signal.Signals, tmp_path: Path
) -> None:
    path, out = write(tmp_path, SMALL.replace("steps = 200", "steps = 1000000")), tmp_path / "out"
    wanted = ["compare", str(path), "--out", "out", "--engine", "ray", "--address", cluster.address]
    with started(sys.executable, "-m", "wellcond", *wanted, cwd=tmp_path) as command:
        command.wait_for(lambda: any(under_way(call, "") for call in out.glob(f"{ATTEMPTS}/*")))
        run = next(filter(None, (under_way(call, "") for call in out.glob(f"{ATTEMPTS}/*"))))
        at_work = Path("/proc", run.parents[2].name.split("-")[1])
        assert at_work.exists()
        os.killpg(command.process.pid, number)
        code, said, took = command.end()
        assert command.nobody_left() == {}
    wait_until(lambda: not at_work.exists())
    if number == signal.SIGKILL:
        return
    assert code == 128 + number, said
    assert took < 5
    assert said.count("\n") == 2
    line = "0 of 4 runs are done and kept in out, and checkpoints of 1 more; the same command goes on from there\n"
    assert said.endswith(line)
    assert not (out / ATTEMPTS).exists()


@pytest.fixture(scope="module")
def connected(cluster: Cluster) -> Iterator[Cluster]:
    """Connected already, so that the tests have their processes in common."""
    ray.init(address=cluster.address, log_to_driver=False, logging_level="ERROR")
    yield cluster
    ray.shutdown()


@pytest.mark.long
def test_nodes_that_do_not_share_the_folder_send_their_runs(
    connected: Cluster, undisturbed: Path, tmp_path: Path, short: Path
) -> None:
    """The path leads to the folder in this process alone; a process is killed at work, too, and its run begins anew."""
    own = os.open(tmp_path, os.O_RDONLY)
    os.dup2(own, 900, inheritable=False)
    lost: list[Path] = []
    shared: list[Path] = []

    def said(arm: str, seed: int, step: int, loss: float) -> None:
        shared.extend(experiment.out.glob(f"{ATTEMPTS}/*/*"))
        run = None if lost else under_way(short, "wellcond-")
        if run is not None:
            os.kill(int(run.parents[2].name.split("-")[2]), signal.SIGKILL)
            lost.append(run)

    try:
        experiment = prepare_comparison(load_recipe(write(tmp_path), seeds=(0,)), Path("/proc/self/fd/900/out"))
        run_on_ray(experiment, said)
    finally:
        os.close(900)
        os.close(own)
    assert shared == []
    assert json.loads((lost[0] / "run.json").read_text())["status"] == "running"
    assert first_times(published(lost[0], tmp_path / "out")) != first_times(lost[0])
    assert metrics(tmp_path / "out") == of_seed_0(undisturbed)
    assert {path.name for path in (tmp_path / "out").glob("runs/*/*/*")} == {
        "run.json", "metrics.jsonl", "timings.jsonl",
    }  # fmt: skip
    assert ray.is_initialized()


@pytest.mark.long
def test_an_interrupted_comparison_keeps_its_checkpoints_and_goes_on(
    connected: Cluster, undisturbed: Path, tmp_path: Path
) -> None:
    path, out = write(tmp_path), tmp_path / "out"
    experiment = prepare_comparison(load_recipe(path, seeds=(0,)), out)
    at_work: list[Path] = []

    def interrupted(arm: str, seed: int, step: int, loss: float) -> None:
        run = under_way(next((out / ATTEMPTS).iterdir()), "")
        if run is not None:
            at_work.append(run)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_on_ray(experiment, interrupted)
    run = published(at_work[0], out)
    assert reached(run) >= 20
    times = first_times(run)
    assert not (out / ATTEMPTS).exists()
    assert len(experiment.left()) == 2
    done = CliRunner().invoke(app, ["compare", str(path), "--out", str(out), "--seeds", "1", "--engine", "ray"])
    assert done.exit_code == 0, done.output
    assert first_times(run) == times
    assert metrics(out) == of_seed_0(undisturbed)


@pytest.mark.long
def test_a_run_that_crashes_is_recorded_and_one_that_takes_its_process_along_is_given_up(
    connected: Cluster, tmp_path: Path
) -> None:
    log, model = tmp_path / "log", tmp_path / "failing.py"
    model.write_text(FAILING.replace("LOG", repr(str(log))))
    begin, train, shift = (SMALL.index(part) for part in ("[model]", "[train]", '[arms."shift'))
    text = SMALL[:begin] + '[model]\nname = "failing.py:model"\n' + SMALL[train:shift]
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path)  # the model's path is relative
        experiment = prepare_comparison(write(tmp_path, text), tmp_path / "out")
        with pytest.raises(
            WellcondError, match=r"given up that lost their process 2 times: 'default' with seed 1 .*what is done is"
        ):
            run_on_ray(experiment, lambda *news: None, max_retries=1)
    (crashed,) = experiment.outcomes()
    assert (crashed.seed, crashed.status) == (0, "crashed")
    assert "out of luck" in crashed.error
    assert len(log.read_text().splitlines()) == 1 + 2


def test_more_processors_than_a_node_has_are_not_waited_for(connected: Cluster, tmp_path: Path) -> None:
    with pytest.raises(WellcondError, match="no node has 64 processors; the largest has 1"):
        run_on_ray(prepare_comparison(write(tmp_path), tmp_path / "out"), lambda *news: None, cpus=64)
