"""Checkpoints of a run: safetensors files, written whole, checked when read, the last two kept."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from wellcond._core.atomic import write_bytes

FILE_NAME = re.compile(r"checkpoint-(\d{8})-([0-9a-f]{16})\.safetensors")
CHECKPOINTS_KEPT = 2


def write_checkpoint(folder: Path, step: int, tensors: Mapping[str, Tensor]) -> None:
    """Write a checkpoint whose name holds its checksum, and remove those before the last.

    >>> import tempfile, torch
    >>> with tempfile.TemporaryDirectory() as name:
    ...     write_checkpoint(Path(name), 10, {"w": torch.ones(2)})
    ...     step, tensors = latest_checkpoint(Path(name))
    >>> step, tensors["w"].tolist()
    (10, [1.0, 1.0])
    """
    content = save({name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()})
    write_bytes(folder / f"checkpoint-{step:08d}-{_checksum(content)}.safetensors", content)
    for old in _files(folder)[:-CHECKPOINTS_KEPT]:
        old.unlink(missing_ok=True)


def latest_checkpoint(folder: Path) -> tuple[int, dict[str, Tensor]] | None:
    """Return the step and the tensors of the last whole checkpoint; a damaged one is passed over."""
    for path in reversed(_files(folder)):
        found = FILE_NAME.fullmatch(path.name)
        assert found is not None
        content = path.read_bytes()
        if _checksum(content) != found[2]:
            continue
        try:
            return int(found[1]), load(content)
        except SafetensorError:
            continue
    return None


def remove_checkpoints(folder: Path) -> None:
    """Remove all checkpoints of a run that is done."""
    for path in _files(folder):
        path.unlink(missing_ok=True)


def _files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if FILE_NAME.fullmatch(path.name))


def _checksum(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:16]
