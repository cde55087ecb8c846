"""State dictionaries in files of `torch.save`: tensors only, read without running code, found wherever they lie."""

from __future__ import annotations

import re
import zipfile
from collections.abc import Callable, Iterator, Mapping, Set
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from wellcond.checkpoint.safetensors_files import Memory
from wellcond.errors import CheckpointError

# Levels that torch.compile, FSDP, activation checkpointing and Fabric put into names: nobody's own are called so.
LEVELS = re.compile(r"\b(?:_orig_mod|_fsdp_wrapped_module|_checkpoint_wrapped_module|_forward_module)\.")
WRAPPERS = re.compile(r"(?:(?:module|model|net)\.)*")  # before all names; of DDP and Lightning, or of the model itself
MAX_DEPTH = 3  # of dictionaries inside one another


def read_pickled(path: Path, wanted: Set[str]) -> Memory:
    """Read the weights of a model from a file of `torch.save`, by `torch.load(weights_only=True)`.

    Of the state dictionaries in it, as in `{"model": …, "optimizer": …}` or `{"state_dict": …}`, that with the most of
    the model's names is taken, the first of equals. `_orig_mod.` and its like are taken out of names. A prefix such as
    `model.` is taken off where that gives the model's names, and what is not behind it (a loss's weights) is left out.

    Args:
        path: of the file.
        wanted: the names of the model's tensors.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     torch.save({"model": {"_orig_mod.weight": torch.ones(2)}, "iter_num": 9}, f"{folder}/ckpt.pt")
    ...     read_pickled(Path(folder, "ckpt.pt"), {"weight"}).handles
    {'weight': tensor([1., 1.])}
    """
    loaded = _loaded(path)
    found = [named for state in _states(loaded, MAX_DEPTH) for named in _unwrapped(state)]
    if not found:
        held = ", ".join(map(str, loaded)) if isinstance(loaded, Mapping) else type(loaded).__name__
        raise CheckpointError(f"'{path}' holds no state dictionary, but {held}: torch.save(model.state_dict(), …)")
    return Memory(path, max(found, key=lambda named: len(wanted & named.keys())))


def _loaded(path: Path) -> Any:
    if not path.is_file():
        raise CheckpointError(f"there is no file '{path}'")
    try:
        # An old file is no archive, and cannot be mapped into memory.
        return torch.load(path, map_location="cpu", weights_only=True, mmap=zipfile.is_zipfile(path))
    except Exception as error:  # of the archive, of the pickle, or what it is not allowed to make
        other = re.search(r"GLOBAL (\S+)", str(error))
        why = f"it has {other[1]}" if other else f"{type(error).__name__}: {error}".splitlines()[0]
        raise CheckpointError(
            f"'{path}' is not a file of tensors and plain data that torch.load(weights_only=True) reads ({why}); where "
            "it was made, save the state dictionary alone: wc.save_weights(model, 'model.safetensors')"
        ) from error


class _State(dict[str, Tensor]):
    """Tensors by name, with what torch keeps beside them by module: it says which hold W + C."""

    _metadata: dict[str, Any]


def _renamed(state: Mapping[Any, Any], rename: Callable[[str], str | None]) -> _State:
    """Rename the tensors of a dictionary, and the modules of its metadata; leave out what gets no name."""
    tensors = {name: value for name, value in state.items() if isinstance(name, str) and isinstance(value, Tensor)}
    metadata = getattr(state, "_metadata", None) or {}
    found = _State({new: value for name, value in tensors.items() if (new := rename(name)) is not None})
    modules = {rename(f"{path}."): local for path, local in metadata.items()}
    found._metadata = {path.removesuffix("."): local for path, local in modules.items() if path is not None}
    return found


def _states(loaded: Any, deep: int) -> Iterator[_State]:
    """Yield dictionaries of tensors by name, from the outside in."""
    if not isinstance(loaded, Mapping) or not deep:
        return
    found = _renamed(loaded, lambda name: LEVELS.sub("", name))
    if found:
        yield found
    for value in loaded.values():
        yield from _states(value, deep - 1)


def _unwrapped(state: _State) -> Iterator[_State]:
    """Yield the dictionary as it is, and without each prefix that only names wrappers."""
    prefixes = {""}
    for name in state:
        parts = WRAPPERS.match(name)[0].split(".")[:-1]  # type: ignore[index]
        prefixes |= {".".join(parts[:n]) + "." for n in range(1, len(parts) + 1)}
    for prefix in sorted(prefixes, key=len):
        cut = len(prefix)
        yield _renamed(state, lambda name, p=prefix, n=cut: name[n:] if name.startswith(p) else None)  # type: ignore[misc]
