"""Trials that are done, in memory and in a folder, so that a probe that is killed goes on where it was."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from torch import nn
from torch.optim import Optimizer
from torch.utils._pytree import tree_leaves

from wellcond._core.file_names import check_path
from wellcond._core.function_hash import digest_of
from wellcond._core.json_files import read_object
from wellcond.diagnosis.journal import Journal
from wellcond.errors import StorageError, WellcondError

Losses = dict[int, list[float]]  # of each judging batch, by the number of steps


class TrialRecords:
    """Plans of rungs and losses of trials by what they are of; written line by line where there is a folder.

    Args:
        folder: to write to and go on from; None to keep nothing.
        fingerprint: of model, data and settings, which a folder belongs to.

    >>> with TrialRecords(None, "") as records:
    ...     records.add(("trial", 0, "yours", 7), {"losses": {}, "seconds": 1.5})
    ...     records.get(("trial", 0, "yours", 7))["seconds"], records.get(("trial", 0, "yours", 8))
    (1.5, None)
    """

    def __init__(self, folder: Path | None, fingerprint: str) -> None:
        self._found: dict[str, dict[str, Any]] = {}
        self._journal: Journal | None = None
        if folder is None:
            return
        check_folder(folder)
        if (folder / "run.json").exists():
            begun = read_object(folder / "run.json", "give another folder").get("fingerprint")
            if begun != fingerprint:
                raise StorageError(
                    f"'{folder}' holds the probe of another model, other data or other settings: give another folder"
                )
        self._journal = Journal(folder, {"fingerprint": fingerprint})  # cuts off a line that a kill has broken
        for number, line in enumerate((folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines(), 1):
            try:
                found = json.loads(line)
                self._found[found.pop("key")] = found
            except (ValueError, KeyError, AttributeError, TypeError) as error:
                raise WellcondError(
                    f"'{folder / 'metrics.jsonl'}', line {number} is not a record of a probe"
                ) from error

    def get(self, key: tuple[Any, ...]) -> dict[str, Any] | None:
        """Return what was recorded of something, None if nothing was."""
        return self._found.get(json.dumps(key))

    def add(self, key: tuple[Any, ...], record: Mapping[str, Any]) -> None:
        """Record something; it is on the disk when this returns."""
        self._found[json.dumps(key)] = dict(record)
        if self._journal is not None:
            self._journal.write({"key": json.dumps(key), **record})

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._journal is not None:
            self._journal.close()


def check_folder(folder: Path) -> None:
    """Raise unless a folder can keep trials: it is new, empty, or has those of a probe."""
    check_path(folder)
    if folder.exists() and not folder.is_dir():
        raise StorageError(f"'{folder}' is a file, and trials are kept in a folder: give another name")
    if folder.exists() and not (folder / "run.json").exists() and any(folder.iterdir()):
        raise StorageError(f"'{folder}' is not empty and holds no probe: give another folder")


def losses_of(record: Mapping[str, Any]) -> Losses:
    """Return losses as they were recorded, by number of steps."""
    return {int(step): [float(loss) for loss in losses] for step, losses in record["losses"].items()}


def fingerprint(model: nn.Module, batches: Any, *settings: object) -> str:
    """Return a hash of a model's weights and code, of batches, and of settings; of functions by what they compute.

    >>> import torch
    >>> model = nn.Linear(1, 1)
    >>> fingerprint(model, [torch.ones(1)], 1e-3) == fingerprint(model, [torch.ones(1)], 1e-2)
    False
    """
    parts = [[type(module), _plain(vars(module))] for module in model.modules()]
    given = [*map(_settings_of, settings)]
    return digest_of(model, parts, tree_leaves(batches), given)


def _plain(attributes: Mapping[str, Any]) -> dict[str, Any]:
    """Numbers and words that a module keeps, as of dropout; not its mode, as trials have their own."""
    kinds = (int, float, str, tuple)
    return {name: x for name, x in attributes.items() if isinstance(x, kinds) and name[0] != "_" and name != "training"}


def _settings_of(given: Any) -> Any:
    """An optimizer by its class and the settings of its groups; all else as it is."""
    if not isinstance(given, Optimizer):
        return given
    groups = [{name: x for name, x in group.items() if name != "params"} for group in given.param_groups]
    return [type(given), groups, [len(group["params"]) for group in given.param_groups]]
