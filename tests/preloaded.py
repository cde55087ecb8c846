"""Python programs in processes of their own, forked from one that has imported torch and most of what follows it.

Each interpreter that a test starts spends seconds on these imports, more than on what is tested. `start` and `run` take
a program as `python -c` does, `run_ranks` one for several ranks of a process group, as `torchrun` does. Programs get a
folder, an environment and streams of their own, and nothing has run in the process that they are forked from. Tests
of imports, of signals and of the command itself start real interpreters; so does `torchrun`, for its ranks.
"""

from __future__ import annotations

import atexit
import json
import os
import random
import select
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[1]
MODULES = (
    *("torch", "torch.distributed.fsdp", "timm", "transformers.models.gpt2.modeling_gpt2", "accelerate"),
    *("scipy.stats", "sklearn.datasets", "matplotlib.pyplot", "wellcond", "wellcond.cli.main", "wellcond.lab.api"),
    *("wellcond.diagnosis.api", "wellcond.placement.check", "wellcond.reproduce.run"),
)
WELLCOND = "import runpy; runpy.run_module('wellcond', run_name='__main__')"  # the command line, as a program
SERVER = """
import atexit, gc, importlib, json, os, signal, sys, traceback, types

def run(program):
    os.chdir(program["cwd"])
    os.environ.clear()
    os.environ.update(program["env"])
    sys.path += [path for path in program["env"].get("PYTHONPATH", "").split(":") if path and path not in sys.path]
    sys.argv = ["-c", *program["arguments"]]
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        os.dup2(os.open(program[name], os.O_RDWR | os.O_APPEND), number)
        setattr(sys, name, open(number, "w" if number else "r", 1 if number == 2 else -1, closefd=False))
    sys.modules["__main__"], code = types.ModuleType("__main__"), 0
    try:
        exec(compile(program["code"], "<string>", "exec"), vars(sys.modules["__main__"]))
    except SystemExit as stop:
        code = stop.code if isinstance(stop.code, int) else int(stop.code is not None)
        if stop.code is not None and not isinstance(stop.code, int):
            print(stop.code, file=sys.stderr)
    except BaseException:
        traceback.print_exc()
        code = 1
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)

gc.disable()
for name in sys.argv[1:]:
    importlib.import_module(name)
gc.freeze()  # else each program looks for garbage in the libraries, and copies their pages
gc.enable()
codes = {}
for line in sys.stdin:
    asked = json.loads(line)
    if "wait" not in asked:
        started = []
        for program in asked["start"]:
            started.append(os.fork())
            if started[-1] == 0:
                run(program)
        print(json.dumps(started), flush=True)
        continue
    group = set(asked["wait"])
    while not group <= codes.keys():
        process, status = os.wait()
        codes[process] = os.waitstatus_to_exitcode(status)
        if codes[process] and process in group:  # the other ranks would wait for it
            for other in group - codes.keys():
                os.kill(other, signal.SIGKILL)
    print(json.dumps([codes[process] for process in asked["wait"]]), flush=True)
"""


@cache
def _server() -> subprocess.Popen[str]:
    environment = os.environ | {"PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", SERVER, *MODULES]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    process = subprocess.Popen(command, env=environment, text=True, start_new_session=True, **pipes)
    atexit.register(_end, process)
    return process


@cache
def _folder() -> str:
    """Return the folder of the programs' output, which is removed in the end."""
    folder = tempfile.TemporaryDirectory()
    atexit.register(folder.cleanup)
    return folder.name


def _end(process: subprocess.Popen[str]) -> None:
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _ask(timeout: float = 60, **asked: object) -> list[int]:
    server = _server()
    assert server.stdin is not None
    assert server.stdout is not None
    server.stdin.write(json.dumps(asked) + "\n")
    server.stdin.flush()
    if not select.select([server.stdout], [], [], timeout)[0]:
        _server.cache_clear()
        _end(server)
        raise AssertionError(f"not ended after {timeout} s")
    answer: list[int] = json.loads(server.stdout.readline())
    return answer


@dataclass
class Program:
    """A program that runs, or has run, and the files that it writes its output into."""

    process: int
    stdout: Path
    stderr: Path

    def alive(self) -> bool:
        """Return whether it still runs."""
        return Path(f"/proc/{self.process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"

    def kill(self) -> None:
        """Kill it -9."""
        os.kill(self.process, signal.SIGKILL)

    def wait(self, timeout: float = 600) -> subprocess.CompletedProcess[str]:
        """Wait for its end."""
        return _ended([self], timeout)[0]


def _started(programs: list[dict[str, object]]) -> list[Program]:
    for program in programs:
        program.setdefault("stdin", os.devnull)
        for name in {"stdout", "stderr"} - program.keys():
            number, program[name] = tempfile.mkstemp(dir=_folder())
            os.close(number)
    processes = _ask(start=programs)
    files = [(Path(str(program["stdout"])), Path(str(program["stderr"]))) for program in programs]
    return [Program(process, *both) for process, both in zip(processes, files, strict=True)]


def _ended(programs: list[Program], timeout: float) -> list[subprocess.CompletedProcess[str]]:
    codes = _ask(timeout, wait=[program.process for program in programs])
    return [
        subprocess.CompletedProcess("python", code, *map(_written, (program.stdout, program.stderr)))
        for code, program in zip(codes, programs, strict=True)
    ]


def _written(file: Path) -> str:
    return file.read_text() if file.is_file() else ""  # nothing of a terminal


def start(code: str, *arguments: str, cwd: Path, env: Mapping[str, str] | None = None, **streams: str) -> Program:
    """Start a program with these arguments in a folder, with these variables besides those of this process.

    `streams` are files that are there, a terminal for example, for its `stdin`, `stdout` and `stderr`.
    """
    common = {"code": code, "arguments": arguments, "cwd": str(cwd), "env": os.environ | (env or {})}
    return _started([common | streams])[0]


def run(
    code: str, *arguments: str, cwd: Path, env: Mapping[str, str] | None = None, timeout: float = 600
) -> subprocess.CompletedProcess[str]:
    """Start a program and wait for its end."""
    return start(code, *arguments, cwd=cwd, env=env).wait(timeout)


def torchrun(*command: str, cwd: Path, ranks: int = 2, timeout: float = 600) -> subprocess.CompletedProcess[str]:
    """Run a command on that many ranks, which torchrun itself starts."""
    code = "from torch.distributed.run import main; main()"
    options = ("--standalone", "--nproc-per-node", str(ranks))
    return run(code, *options, *command, cwd=cwd, env={"OMP_NUM_THREADS": "1"}, timeout=timeout)


def _free_port() -> int:
    """Return a port below those that the system gives to connections, so that none takes it before the ranks do."""
    while True:
        port = random.SystemRandom().randrange(20_000, 30_000)
        with socket.socket() as free, suppress(OSError):
            free.bind(("127.0.0.1", port))
            return port


def run_ranks(
    code: str, *arguments: str, cwd: Path, ranks: int = 2, env: Mapping[str, str] | None = None, timeout: float = 300
) -> Sequence[subprocess.CompletedProcess[str]]:
    """Run a program as that many ranks of a process group on this machine."""
    common = os.environ | (env or {})
    common |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(_free_port()), "OMP_NUM_THREADS": "1"}
    common |= {"WORLD_SIZE": str(ranks), "LOCAL_WORLD_SIZE": str(ranks)}
    programs = [
        {"code": code, "arguments": arguments, "cwd": str(cwd), "env": common | {"RANK": str(r), "LOCAL_RANK": str(r)}}
        for r in range(ranks)
    ]
    return _ended(_started(programs), timeout)
