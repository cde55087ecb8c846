"""How long the library and its commands take to start, against `import torch`.

Usage: `python benchmarks/startup.py [--repeats 9]`

Each is a process of its own, all in turn, so that a busy machine slows all alike; the ratios are of medians. Prints a
table and writes `benchmarks/results/startup.json` with the machine.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

from machine import machine
from wellcond._core.text_tables import table

RESULTS = Path(__file__).parent / "results" / "startup.json"
IMPORTED, LISTED = 1.15, 0.25  # × import torch, at most
TORCH = "import torch"
USED = "import wellcond as wc; wc.attention_layers, wc.init_, wc.condition_, wc.diagnose"
BARS = {"import wellcond": IMPORTED, USED: IMPORTED}
COMMANDS = ("--help", "--version", "schemes", "recipes", "reproduce --list")


def command(text: str) -> list[str]:
    """A line of Python, or arguments of `wellcond`, as a process."""
    return (
        [sys.executable, "-c", text]
        if text.startswith("import ")
        else [sys.executable, "-m", "wellcond", *text.split()]
    )


def seconds(text: str) -> tuple[float, float]:
    """Of the clock and of the processors, from start to end."""
    start = time.perf_counter()
    process = subprocess.Popen(command(text), stdout=subprocess.DEVNULL)
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0, text
    return time.perf_counter() - start, used.ru_utime + used.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=9)
    options = parser.parse_args()
    bars = BARS | dict.fromkeys(COMMANDS, LISTED)
    for text in (TORCH, *bars):  # once, so that every file has been read
        seconds(text)
    rounds = [{text: seconds(text) for text in (TORCH, *bars)} for _ in range(options.repeats)]
    clock, processor = ({text: statistics.median(r[text][i] for r in rounds) for text in rounds[0]} for i in (0, 1))
    ratios = {text: clock[text] / clock[TORCH] for text in bars}
    work = {text: processor[text] / processor[TORCH] for text in bars}
    rows = [
        [text, f"{clock[text]:.2f} s", f"{ratios[text]:.2f} ×", f"{work[text]:.2f} ×", f"at most {bar} ×"]
        for text, bar in bars.items()
    ]
    rows.insert(0, [TORCH, f"{clock[TORCH]:.2f} s", "", "", ""])
    print(table(["process", "median", "÷ import torch", "processor time ÷", "bar"], rows))
    print("\nbars met" if all(ratios[text] <= bar for text, bar in bars.items()) else "\nbars not met")
    record = {"machine": machine(), "seconds": clock, "processor_seconds": processor, "ratios": ratios}
    RESULTS.write_text(json.dumps(record, indent=2) + "\n")


if __name__ == "__main__":
    main()
