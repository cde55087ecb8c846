"""Version of the JSON that the laboratory writes, and how files of an older one are read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from wellcond.errors import WellcondError

SCHEMA = 2  # in 1, which had no number, an arm was called `scheme`, and its settings `arm`


def in_current_schema(found: dict[str, Any], path: Path) -> dict[str, Any]:
    """Return the content of a `run.json` or `comparison.json` in the words of this version; refuse a later one's.

    >>> in_current_schema({"scheme": "shift 1", "arm": {"condition": "shift"}}, Path("run.json"))
    {'arm': 'shift 1', 'settings': {'condition': 'shift'}, 'schema': 2}
    """
    version = found.get("schema", 1)
    if type(version) is not int or not 1 <= version <= SCHEMA:
        raise WellcondError(f"'{path}' has schema {version!r:.60}, and this wellcond reads up to {SCHEMA}: upgrade it")
    if version == 1:
        renamed = {"scheme": "arm", "arm": "settings"}
        found = {renamed.get(name, name): value for name, value in found.items()} | {"schema": SCHEMA}
    return found
