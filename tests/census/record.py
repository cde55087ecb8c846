"""One line of the census: what came out for one model, kept in a file so that a census can be continued."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

from tests.census.survey import Survey

ROOT = Path(__file__).parents[2]
LIBRARIES = ("transformers", "timm")


@dataclass(frozen=True)
class Record:
    """What the census found in one model.

    Args:
        library: `"transformers"` or `"timm"`.
        name: model type, or name of the model.
        seconds: that it took.
        reason: why there is no survey: it does not build or run here, or took too long.
        survey: None where there is none.
        code: of the library and the census that made it, see `code`.
    """

    library: str
    name: str
    seconds: float
    reason: str = ""
    survey: Survey | None = None
    code: str = ""

    def line(self) -> str:
        return json.dumps(asdict(self)) + "\n"


def parse(line: str) -> Record:
    values: dict[str, Any] = json.loads(line)
    survey = values.pop("survey")
    return Record(**values, survey=None if survey is None else Survey(**survey))


def read(path: Path) -> Iterator[Record]:
    """Yield the records of a file, in the order in which they were made; a line that was cut off is left out."""
    if path.exists():
        for line in path.read_text().splitlines():
            if line.endswith("}"):
                yield parse(line)


@cache
def code() -> str:
    """Return a name of the code that decides the result: the views of the library, the census, and other packages."""
    found = hashlib.sha256(" ".join(version(name) for name in ("torch", *LIBRARIES)).encode())
    for folder in ("src/wellcond/attention", "tests/census"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            found.update(path.read_bytes())
    return found.hexdigest()[:12]
