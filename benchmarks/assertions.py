"""Count what the tests assert and the processor time that they take, before and after a change of the tests.

As a script, it counts the assertions that are written, without running any::

    python benchmarks/assertions.py tests src

As a plugin, it counts the assertions that hold and the processor seconds of each test (its own and those of the
processes that it started), and writes both as JSON, one file a process::

    ASSERTIONS=build/asserted pytest -p benchmarks.assertions -o enable_assertion_pass_hook=true tests
"""

from __future__ import annotations

import ast
import json
import os
import resource
import sys
from collections import Counter, defaultdict
from collections.abc import Generator
from pathlib import Path

import pytest

CALLS = {"raises", "warns", "deprecated_call", "fail"}


def written(path: Path) -> Counter[str]:
    """Count the assertions of a file: ``assert``, pytest's contexts, ``assert_…`` functions, lines of doctests."""
    text = path.read_text()
    counts: Counter[str] = Counter()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Assert):
            counts["assert"] += 1
        elif isinstance(node, ast.Call):
            name = getattr(node.func, "attr", getattr(node.func, "id", ""))
            if name.startswith("assert_"):
                counts["assert_"] += 1
            elif name in CALLS and getattr(getattr(node.func, "value", None), "id", "") == "pytest":
                counts[f"pytest.{name}"] += 1
    counts[">>>"] = sum(line.lstrip().startswith(">>>") for line in text.splitlines())
    return counts


def processor_seconds() -> float:
    """Return the processor seconds of this process and of all that it started, ended or still alive."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(use.ru_utime + use.ru_stime for use in used) + sum(map(_alive, _children(os.getpid())))


def _children(process: int) -> list[int]:
    try:
        return [int(n) for path in Path(f"/proc/{process}/task").glob("*/children") for n in path.read_text().split()]
    except OSError:  # it has ended meanwhile
        return []


def _alive(process: int) -> float:
    try:
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    own = sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")  # and of its children that have ended
    return own + sum(map(_alive, _children(process)))


seconds: defaultdict[str, float] = defaultdict(float)
held: Counter[str] = Counter()


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    start = processor_seconds()
    try:
        return (yield)
    finally:
        seconds[item.nodeid] += processor_seconds() - start


def pytest_assertion_pass(item: pytest.Item) -> None:
    held[item.nodeid] += 1


def pytest_sessionfinish() -> None:
    if folder := os.environ.get("ASSERTIONS"):
        Path(folder).mkdir(parents=True, exist_ok=True)
        found = {"total": processor_seconds(), "seconds": seconds, "held": held}
        Path(folder, f"{os.getpid()}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    files = sorted(path for folder in sys.argv[1:] for path in Path(folder).rglob("*.py"))
    print(dict(sum(map(written, files), Counter())))
