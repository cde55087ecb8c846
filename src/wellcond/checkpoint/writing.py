"""Write tensors to a safetensors file in one step: it appears whole or not at all."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from wellcond._core.atomic import replacing
from wellcond._core.file_names import check_path
from wellcond.attention.storage import full
from wellcond.checkpoint.named_tensors import NamedTensor
from wellcond.checkpoint.reading import refuse_pickle
from wellcond.errors import CheckpointError


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


def write_tensors(target: Path, items: Iterable[NamedTensor]) -> int:
    """Write a model's tensors in one step; return their size in bytes."""
    return write_named(target, ((item.name, item.effective) for item in items))


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
