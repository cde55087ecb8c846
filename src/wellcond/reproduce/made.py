"""How the runs of an entry were made: as the recipe says, with changes, or in small on made-up data."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from wellcond.errors import WellcondError
from wellcond.json_files import read_object
from wellcond.plain import to_json
from wellcond.report.atomic import write_text

FILE = "made.json"
# What may differ without making another result: how many seeds, and how a machine does it.
HARMLESS = {
    "seeds",
    *(f"train.{key}" for key in ("sharding", "workers", "compile", "trackers", "log_every", "checkpoint_every")),
}


@dataclass(frozen=True)
class Made:
    """How.

    Args:
        smoke: in small, on made-up data.
        changes: of the recipe's keys, as given with `--set`.
    """

    smoke: bool = False
    changes: Mapping[str, Any] = field(default_factory=dict)

    @property
    def changed(self) -> str:
        """The changes that make another result, in words to put behind a name.

        >>> Made(changes={"seeds": [0], "train": {"epochs": 1, "workers": 0}}).changed
        ', changed: train.epochs = 1'
        """
        found = [f"{key} = {value}" for key, value in _flat(self.changes) if key not in HARMLESS]
        return f", changed: {', '.join(found)}" if found else ""

    def write(self, folder: Path) -> None:
        """Beside the runs of the entry."""
        folder.mkdir(parents=True, exist_ok=True)
        write_text(folder / FILE, to_json(asdict(self)) + "\n")


def how_made(folder: Path) -> Made:
    """What is written beside the runs of an entry; as the recipe says if nothing is."""
    path, advice = folder / FILE, "delete it, and run the entry again"
    found = read_object(path, advice, missing={})
    smoke, changes = found.get("smoke", False), found.get("changes", {})
    if type(smoke) is not bool or not isinstance(changes, dict):
        raise WellcondError(f"'{path}': smoke is true or false and changes an object: {advice}")
    return Made(smoke, changes)


def _flat(changes: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in changes.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{before}{key}.")
        else:
            yield f"{before}{key}", value
