"""Commands in a real pseudo-terminal, and what is on its screen in the end."""

from __future__ import annotations

import os
import pty
import re
import select
from pathlib import Path

from rich.cells import cell_len

from tests.preloaded import start

COMMANDS = """
import fcntl, json, runpy, struct, sys, termios
for columns, arguments in json.loads(sys.argv.pop()):
    if columns:
        fcntl.ioctl(1, termios.TIOCSWINSZ, struct.pack("HHHH", 50, columns, 0, 0))
    sys.argv[1:] = arguments
    try:
        runpy.run_module("wellcond", run_name="__main__", alter_sys=False)
    except SystemExit as stop:
        assert stop.code in (0, None, 1), f"{arguments} ended with {stop.code}"
    print("\\x1e", flush=True)
"""  # several in one process, each with a width of the terminal, null for none: importing torch takes seconds
SEQUENCE = re.compile(r"\x1b\[([?\d;]*)([A-Za-z])|\x1b\]8;[^\x1b]*\x1b\\")


def in_terminal(code: str, *arguments: str, cwd: Path, columns: str = "", streams: str = "stdin stdout stderr") -> str:
    """What a Python program writes on a terminal that is all of these streams."""
    master, slave = pty.openpty()
    terminal = dict.fromkeys(streams.split(), os.ttyname(slave))
    environment = {"TERM": "xterm-256color", "COLUMNS": columns, "LINES": ""}
    program = start(code, *arguments, cwd=cwd, env=environment, **terminal)
    written, ended = b"", False
    while select.select([master], [], [], 0.02)[0] or not ended:
        ended = not program.alive()
        if select.select([master], [], [], 0)[0]:
            written += os.read(master, 1 << 16)
    for end in (master, slave):
        os.close(end)
    done = program.wait()
    assert done.returncode == 0, written.decode()[-3000:] + done.stderr[-3000:]
    return written.decode().replace("\r\n", "\n")


def screen(written: str) -> list[str]:
    """The lines that are on the screen after all that was written: returns, cursor moves and erasures are obeyed."""
    lines, row, column, at = [""], 0, 0, 0
    while at < len(written):
        found = SEQUENCE.match(written, at)
        at = found.end() if found else at + 1
        if found and found[2] == "A":
            row = max(0, row - int(found[1] or 1))
        elif found and found[2] == "K":
            lines[row] = "" if found[1] == "2" else lines[row][:column]
        elif found and found[2] not in (None, "m", "h", "l"):
            raise AssertionError(f"a sequence that this screen does not know: {found[0]!r}")
        elif not found and written[at - 1] == "\r":
            column = 0
        elif not found and written[at - 1] == "\n":
            row, column = row + 1, 0
            lines += [""] * (row == len(lines))
        elif not found:
            lines[row] = lines[row][:column].ljust(column) + written[at - 1] + lines[row][column + 1 :]
            column += 1
    return [line.rstrip() for line in lines]


def widest(text: str) -> int:
    """Cells of the longest line."""
    return max(cell_len(line) for line in text.splitlines())
