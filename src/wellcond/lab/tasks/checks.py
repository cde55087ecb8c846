"""Checks that tasks share: of numbers, choices, indices, files and libraries."""

from __future__ import annotations

import importlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from wellcond._core.file_names import check_path
from wellcond.errors import WellcondError


def whole(name: str, value: object, least: int = 1) -> int:
    """Check an option that is a whole number.

    >>> whole("tokens", 0)
    Traceback (most recent call last):
    wellcond.errors.WellcondError: tokens is a whole number from 1 on, got 0
    """
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise WellcondError(f"{name} is a whole number from {least} on, got {value!r}")
    return value


def choice(name: str, value: object, known: Iterable[str]) -> str:
    """Check an option that is one of a few words.

    >>> choice("size", "huge", ("tiny", "full"))
    Traceback (most recent call last):
    wellcond.errors.WellcondError: size is one of tiny, full, got 'huge'
    """
    known = tuple(known)
    if not isinstance(value, str) or value not in known:
        raise WellcondError(f"{name} is one of {', '.join(known)}, got {value!r}")
    return value


def folder_of(folder: object, source: str, inside: str = "") -> Path:
    """Return the path of a folder that must be there, or of the one of a name inside of it that an archive makes.

    >>> folder_of("/nowhere", "unpack it there")
    Traceback (most recent call last):
    wellcond.errors.WellcondError: there is no folder '/nowhere'. The data: unpack it there
    """
    if not isinstance(folder, str | Path):
        raise WellcondError(f"folder is the path of a folder, got {folder!r}. The data: {source}")
    path = check_path(folder).expanduser()
    if not path.is_dir():
        raise WellcondError(f"there is no folder {str(folder)!r}. The data: {source}")
    return path / inside if (path / inside).is_dir() else path


def first_of(folder: Path, names: Iterable[str], source: str) -> Path:
    """Return the first of some names that is a file in a folder."""
    names = tuple(names)
    for name in names:
        if (folder / name).is_file():
            return folder / name
    raise WellcondError(f"there is no file {' or '.join(repr(str(folder / n)) for n in names)}. The data: {source}")


def read_bytes(path: Path) -> bytes:
    """Read a file, or raise an error that names it."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise WellcondError(f"{str(path)!r} cannot be read: {error.strerror or error}") from error


def read_utf8(path: Path) -> str:
    """Read a text, without the mark that some editors put at its beginning."""
    try:
        return read_bytes(path).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise WellcondError(f"{str(path)!r} is not UTF-8 text ({error}): convert it, say with iconv") from error


def library(name: str, extra: str) -> Any:
    """Import a module that is needed only here, or say which extra of the package brings it.

    >>> library("nonesuch", "timm")
    Traceback (most recent call last):
    wellcond.errors.WellcondError: this needs nonesuch (No module named 'nonesuch'): pip install 'wellcond[timm]'
    """
    try:
        return importlib.import_module(name)
    except ImportError as error:
        package = name.partition(".")[0]
        raise WellcondError(f"this needs {package} ({error}): pip install 'wellcond[{extra}]'") from error


def checked_indices(indices: Tensor, length: int) -> Tensor:
    """Return indices of examples on the CPU; one that does not exist is an error, also a negative one.

    >>> checked_indices(torch.tensor([2]), 2)
    Traceback (most recent call last):
    IndexError: example 2 of 2
    """
    indices = torch.as_tensor(indices, dtype=torch.int64, device="cpu")
    wrong = indices[(indices < 0) | (indices >= length)]
    if len(wrong):
        raise IndexError(f"example {int(wrong[0])} of {length}")
    return indices
