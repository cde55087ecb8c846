"""Run a command, show its output, and write its closing line with command, machine and versions to a page.

Usage: `python benchmarks/record.py docs/test-all.md python -m pytest`
"""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

from machine import machine

PAGE = """\
# The long tests

Written by `make test-all`: every test, the long ones included.

```text
{closing}
```

| | |
|---|---|
| command | `{command}` |
| minutes | {minutes:.1f} |
{rows}
"""


def main(page: Path, command: list[str]) -> int:
    start = time.monotonic()
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    closing = ""
    for line in process.stdout:
        print(line, end="", flush=True)
        closing = line.strip(" =\n") or closing
    rows = "\n".join(f"| {name.replace('_', ' ')} | {value} |" for name, value in machine().items())
    shown = " ".join([Path(command[0]).name, *command[1:]])
    page.write_text(PAGE.format(closing=closing, command=shown, minutes=(time.monotonic() - start) / 60, rows=rows))
    return process.wait()


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2:]))
