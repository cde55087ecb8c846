"""Take the census and write `docs/coverage.md` (`make census`).

Every model is a line in a file of its own under `build/`, so that a census that was stopped goes on where it was.
"""

from __future__ import annotations

import argparse
import signal
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torch import nn

from tests.census import timm_models, transformers_models
from tests.census.page import page
from tests.census.record import ROOT, Record, code, read
from tests.census.survey import LONGEST, survey
from tests.census.transformers_models import CannotBuild
from wellcond._core.atomic import write_text
from wellcond._core.progress import bar

Build = Callable[[str], tuple[nn.Module, dict[str, Any]]]
PAGE = ROOT / "docs" / "coverage.md"


class TooSlow(BaseException):  # so that nothing which expects an error of a model takes it for one
    """Ends the work on one model."""


@contextmanager
def at_most(seconds: int) -> Iterator[None]:
    """Raise `TooSlow` in the body after some seconds."""

    def stop(*_: Any) -> None:
        raise TooSlow

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def members() -> dict[tuple[str, str], Build]:
    """Return how each model of the census is built, by library and name."""
    ours = {("transformers", name): transformers_models.build for name in transformers_models.model_types()}
    return ours | {("timm", name): timm_models.build for name in timm_models.model_names()}


def examine(library: str, name: str, build: Build, limit: int) -> Record:
    """Build a model and survey it, within a time limit."""
    start = time.perf_counter()
    reason, found = "", None
    try:
        with at_most(limit):
            found = survey(*build(name))
    except CannotBuild as error:
        reason = f"{error}"[:LONGEST]
    except TooSlow:
        reason = f"takes more than {limit} s"
    return Record(library, name, round(time.perf_counter() - start, 2), reason, found, code())


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.census", description=__doc__)
    parser.add_argument("names", nargs="*", help="only these models; the page is then not written")
    parser.add_argument("--cache", type=Path, default=ROOT / "build" / "census.jsonl", help="file of the lines")
    parser.add_argument("--limit", type=int, default=240, help="seconds for one model")
    parser.add_argument("--budget", type=float, default=float("inf"), help="seconds after which no model is begun")
    parser.add_argument("--stale", action="store_true", help="keep lines that other versions of the code have made")
    asked = parser.parse_args()
    warnings.simplefilter("ignore")
    start = time.monotonic()
    asked.cache.parent.mkdir(parents=True, exist_ok=True)
    kept = {(r.library, r.name): r for r in read(asked.cache) if asked.stale or r.code == code()}
    wanted = {key: build for key, build in members().items() if not asked.names or key[1] in asked.names}
    todo = [key for key in wanted if key not in kept or asked.names]
    with asked.cache.open("a") as lines:
        for key in bar(todo, "census", unit="model"):
            if time.monotonic() - start > asked.budget:
                sys.exit(f"{sum(key not in kept for key in wanted)} models are left")
            kept[key] = examine(*key, wanted[key], asked.limit)
            lines.write(kept[key].line())
            lines.flush()
            if asked.names:
                print(kept[key])
    if not asked.names:
        write_text(PAGE, page([kept[key] for key in wanted]))


if __name__ == "__main__":
    main()
