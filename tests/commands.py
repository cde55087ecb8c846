"""Commands in processes of their own, to send signals to, and the table of all processes they have started."""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path


def wait_until(what: Callable[[], object]) -> None:
    """Until something is so."""
    deadline = time.monotonic() + 120
    while not what():
        assert time.monotonic() < deadline
        time.sleep(0.02)


@dataclass
class Started:
    """A command, with a mark in the environment that its processes inherit."""

    process: subprocess.Popen[str]
    mark: str

    def family(self) -> dict[int, str]:
        """The command lines of all its processes that are alive."""
        found = {}
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                state = (folder / "stat").read_text().rpartition(")")[2].split()[0]
                if state != "Z" and self.mark.encode() in (folder / "environ").read_bytes():
                    found[int(folder.name)] = (folder / "cmdline").read_text().replace("\0", " ")
            except OSError:  # it has ended meanwhile
                continue
        return found

    def wait_for(self, what: Callable[[], object]) -> None:
        """Until something is so, while the command runs."""

        def so() -> object:
            assert self.process.poll() is None, self.process.communicate()[1]
            return what()

        wait_until(so)

    def nobody_left(self) -> dict[int, str]:
        """Who is, after as long as torch's own processes take to see that they are alone."""
        deadline = time.monotonic() + 30
        while (left := self.family()) and time.monotonic() < deadline:
            time.sleep(0.05)
        return left

    def end(self) -> tuple[int, str, float]:
        """Exit code, stderr, and how long it took from here; one that does not end says where it is."""
        began = time.monotonic()
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.process.send_signal(signal.SIGABRT)  # Python's fault handler prints the stacks
            raise AssertionError(f"not ended: {self.process.communicate()[1]}") from None
        took = time.monotonic() - began
        return self.process.returncode, self.process.communicate()[1], took


@contextmanager
def started(*command: str, cwd: Path) -> Iterator[Started]:
    """A command in a process group of its own, as a shell starts it."""
    mark = f"mark-{secrets.token_hex(8)}"
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONFAULTHANDLER": "1", "WELLCOND_TEST": mark}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    # A shell starts what it puts in the background, perhaps these tests, with Ctrl-C ignored, and that is inherited.
    heard = {"start_new_session": True, "preexec_fn": _hear_signals}
    process = subprocess.Popen(command, cwd=cwd, env=environment, text=True, **heard, **pipes)
    found = Started(process, mark)
    try:
        yield found
    finally:
        for survivor in found.family():
            os.kill(survivor, signal.SIGKILL)
        process.communicate()


def _hear_signals() -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
