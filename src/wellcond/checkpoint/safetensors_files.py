"""Safetensors files: those of a checkpoint opened together, and one written whole or not at all."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from wellcond._core.atomic import replacing
from wellcond._core.file_names import check_path
from wellcond._core.json_files import read_object
from wellcond.attention.storage import full
from wellcond.conditioning.correction_marks import header_from_metadata
from wellcond.errors import CheckpointError

INDEX, SINGLE = "model.safetensors.index.json", "model.safetensors"
PICKLES = {".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle"}


@dataclass(frozen=True)
class Source:
    """The open files of a checkpoint: which tensor is in which."""

    path: Path | str
    handles: Mapping[str, Any]  # tensor name -> safe_open handle

    @classmethod
    def open(cls, path: Path, stack: ExitStack) -> Source:
        """Open a file, or every file of a directory; all headers are read, so a truncated file shows now."""
        handles: dict[str, Any] = {}
        for file in _files(path):
            handle = open_file(file, stack)
            for name in handle.keys():  # noqa: SIM118 (a handle is no dictionary)
                if name in handles:
                    raise CheckpointError(f"'{name}' is in more than one file of '{path}'; make the checkpoint again")
                handles[name] = handle
        return cls(path, handles)

    def header(self) -> dict[str, str]:
        """Return what the headers of the files say beside names and shapes."""
        found: dict[str, str] = {}
        for handle in {id(handle): handle for handle in self.handles.values()}.values():
            found |= handle.metadata() or {}
        return found

    def shape_and_kind(self, name: str) -> tuple[tuple[int, ...], bool]:
        """Return the shape of a tensor, and whether it holds floating-point numbers, from the header."""
        found = self.handles[name].get_slice(name)
        return tuple(found.get_shape()), found.get_dtype().startswith(("F", "BF"))

    def read(self, name: str) -> Tensor:
        """Read one tensor."""
        tensor: Tensor = self.handles[name].get_tensor(name)
        return tensor


class Memory(Source):
    """A state dictionary, as if it were a file: its handles are the tensors themselves."""

    def header(self) -> dict[str, str]:
        """Return what torch keeps beside a state dictionary."""
        return header_from_metadata(self.handles)

    def shape_and_kind(self, name: str) -> tuple[tuple[int, ...], bool]:
        """Return the shape of a tensor, and whether it holds floating-point numbers."""
        return tuple(self.read(name).shape), self.read(name).is_floating_point()

    def read(self, name: str) -> Tensor:
        """Return the whole tensor."""
        value = self.handles[name]
        if not isinstance(value, Tensor):
            raise CheckpointError(f"'{self.path}': '{name}' is a {type(value).__name__}, not a tensor")
        return full(value)


def open_file(file: Path, stack: ExitStack) -> Any:
    """Open one safetensors file."""
    try:
        return stack.enter_context(safe_open(file, framework="pt"))
    except (SafetensorError, OSError) as error:
        raise CheckpointError(
            f"'{file}' cannot be read as safetensors ({error}); if it was cut short, copy or make it again"
        ) from error


def refuse_pickle(path: Path, instead: str = "name a .safetensors file") -> None:
    """Refuse a path that is named like a pickle, and say what to do instead."""
    if path.suffix in PICKLES:
        raise CheckpointError(
            f"'{path}' is named like a pickle, which can run code when it is loaded; safetensors only: {instead}"
        )


def _files(path: Path) -> list[Path]:
    check_path(path, CheckpointError)
    refuse_pickle(path, f"to read nothing but its tensors, wc.load_weights_(model, '{path}', allow_pt=True)")
    if not path.exists():
        raise CheckpointError(f"there is no file or directory '{path}'")
    if not path.is_dir():
        return [path]
    if (path / INDEX).is_file():
        return _indexed(path)
    if (path / SINGLE).is_file():
        return [path / SINGLE]
    raise CheckpointError(f"'{path}' has neither {INDEX} nor {SINGLE}; name the .safetensors file itself")


def _indexed(directory: Path) -> list[Path]:
    index, advice = directory / INDEX, "it is not an index of safetensors files; make it again"
    try:
        names = set(read_object(index, advice, CheckpointError)["weight_map"].values())
    except (KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(f"'{index}' has no weight_map ({error!r}): {advice}") from error
    for name in names:
        # A plain file name: an index from elsewhere must not lead out of its directory.
        if not isinstance(name, str) or Path(name).name != name or "\\" in name or Path(name).suffix != ".safetensors":
            raise CheckpointError(f"'{index}' names {name!r}; only .safetensors files beside the index are read")
        if not (directory / name).is_file():
            raise CheckpointError(f"'{index}' names '{name}', which is not there; copy or make the checkpoint again")
    return [directory / name for name in sorted(names)]


def file_target(path: str | os.PathLike[str]) -> Path:
    """Check that a file of weights can be written at a path."""
    target = check_path(path, CheckpointError)
    refuse_pickle(target)
    if target.suffix != ".safetensors":
        raise CheckpointError(f"weights are written to a file that ends in .safetensors; got '{target}'")
    if target.is_dir():
        raise CheckpointError(f"'{target}' is a directory; give the name of a file")
    if not target.parent.is_dir():
        raise CheckpointError(f"there is no directory '{target.parent}' to write '{target.name}' into; make it first")
    return target


def write_named(target: Path, named: Iterable[tuple[str, Tensor]], metadata: Mapping[str, str] | None = None) -> int:
    """Write tensors to one file, whole or not at all; return their size in bytes."""
    tensors = _plain(named)
    try:
        with replacing(target, CheckpointError, durable=True) as temporary:
            with temporary.open("xb") as file:
                mode = os.fstat(file.fileno()).st_mode  # what the user's umask says; save_file would make it private
            save_file(tensors, temporary, metadata={"format": "pt", **(metadata or {})})
            temporary.chmod(mode)
    except (SafetensorError, ValueError) as error:
        raise CheckpointError(f"'{target}' cannot be written: {error}") from error
    return sum(tensor.nbytes for tensor in tensors.values())


def _plain(named: Iterable[tuple[str, Tensor]]) -> dict[str, Tensor]:
    tensors: dict[str, Tensor] = {}
    memory: set[int] = set()
    for name, value in named:
        tensor = full(value)
        if tensor.is_meta:
            raise CheckpointError(
                f"'{name}' is on the meta device, so it has no numbers to save: materialise the model first, or "
                "use wc.init_to_files"
            )
        plain = tensor.cpu().contiguous()
        if plain.untyped_storage().data_ptr() in memory:  # overlaps another tensor, which safetensors refuses
            plain = plain.clone()
        memory.add(plain.untyped_storage().data_ptr())
        tensors[name] = plain
    return tensors
