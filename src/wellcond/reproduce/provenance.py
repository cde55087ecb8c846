"""Provenance of the runs of a published recipe: as it says, with changes, or in small on fake data."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from wellcond._core.atomic import write_text
from wellcond._core.json_files import read_object
from wellcond._core.json_safe import to_json
from wellcond.errors import WellcondError

FILE, OLD_FILE = "provenance.json", "made.json"  # the old one has the same keys, and no schema
SCHEMA = 2
# Keys that may differ without making another result: how many seeds, and how a machine does it.
HARMLESS_KEYS = {
    "seeds",
    *(f"train.{key}" for key in ("sharding", "workers", "compile", "trackers", "log_every", "checkpoint_every")),
}


@dataclass(frozen=True)
class Provenance:
    """Provenance of the runs of a published recipe.

    Args:
        smoke: in small, on fake data.
        changes: of the recipe's keys, as given with `--set`.
    """

    smoke: bool = False
    changes: Mapping[str, Any] = field(default_factory=dict)

    @property
    def changed(self) -> str:
        """Name the changes that make another result, in words to put behind a name.

        >>> Provenance(changes={"seeds": [0], "train": {"epochs": 1, "workers": 0}}).changed
        ', changed: train.epochs = 1'
        """
        found = [f"{key} = {value}" for key, value in _flat(self.changes) if key not in HARMLESS_KEYS]
        return f", changed: {', '.join(found)}" if found else ""

    def write(self, folder: Path) -> None:
        """Write it beside the runs of the recipe."""
        folder.mkdir(parents=True, exist_ok=True)
        write_text(folder / FILE, to_json({"schema": SCHEMA, **asdict(self)}) + "\n")


def read_provenance(folder: Path) -> Provenance:
    """Read what is written beside the runs of a recipe; where nothing is, they were made as it says."""
    kept, advice = Provenance(), "delete it, and run the recipe again"
    for path in (folder / OLD_FILE, folder / FILE):  # of both the second counts
        found = read_object(path, advice, missing={})
        if (schema := found.get("schema", SCHEMA)) != SCHEMA:
            raise WellcondError(f"'{path}' has schema {schema}, this wellcond reads {SCHEMA}: {advice}")
        smoke, changes = found.get("smoke", kept.smoke), found.get("changes", kept.changes)
        if type(smoke) is not bool or not isinstance(changes, dict):
            raise WellcondError(f"'{path}': smoke is true or false and changes an object: {advice}")
        kept = Provenance(smoke, changes)
    return kept


def _flat(changes: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in changes.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{before}{key}.")
        else:
            yield f"{before}{key}", value
