"""The open safetensors files of a checkpoint: one file, or a directory with an index."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from torch import Tensor

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

    def shape(self, name: str) -> tuple[int, ...]:
        """Return the shape of a tensor, from the header."""
        return tuple(self.handles[name].get_slice(name).get_shape())

    def is_float(self, name: str) -> bool:
        """Return whether a tensor holds floating-point numbers, from the header."""
        dtype: str = self.handles[name].get_slice(name).get_dtype()
        return dtype.startswith(("F", "BF"))

    def read(self, name: str) -> Tensor:
        """Read one tensor."""
        tensor: Tensor = self.handles[name].get_tensor(name)
        return tensor


class Memory(Source):
    """A state dictionary, as if it were a file: its handles are the tensors themselves."""

    def header(self) -> dict[str, str]:
        """Return what torch keeps beside a state dictionary."""
        return header_from_metadata(self.handles)

    def shape(self, name: str) -> tuple[int, ...]:
        """Return the shape of a tensor."""
        return tuple(self.read(name).shape)

    def is_float(self, name: str) -> bool:
        """Return whether a tensor holds floating-point numbers."""
        return self.read(name).is_floating_point()

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
