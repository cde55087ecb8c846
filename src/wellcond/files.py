"""Weights in safetensors files: written in one step or not at all, loaded only if they belong to the model."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor, nn

from wellcond.attention.storage import assign_, full, unwritable
from wellcond.checked import File, Folder, checked
from wellcond.checkpoint import Source, refuse_pickle
from wellcond.errors import CheckpointError, WeightError
from wellcond.loading import settle, to_store
from wellcond.spectral.handle import handles_of
from wellcond.state import Stored, stored

FEW = 3  # names shown of a long list


@checked
def save_weights(model: nn.Module, path: File) -> None:
    """Write a model's parameters and persistent buffers to one safetensors file.

    Names are canonical (no `module.`, no `_orig_mod.`), a tied tensor is written once, and the file appears whole or
    not at all: a crash leaves what was there before.

    Args:
        model: any model, wrapped, compiled or sharded (then every rank calls).
        path: ends in `.safetensors`; a file that exists is replaced.

    >>> import tempfile, torch, wellcond as wc
    >>> model, other = torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     wc.save_weights(model, f"{folder}/w.safetensors")
    ...     wc.load_weights_(other, f"{folder}/w.safetensors")
    >>> torch.equal(model.weight, other.weight)
    True
    """
    target = file_target(path)
    write_tensors(target, stored(model))


def file_target(path: str | os.PathLike[str]) -> Path:
    """Check that a file of weights can be written at a path."""
    target = Path(path)
    refuse_pickle(target)
    if target.suffix != ".safetensors":
        raise CheckpointError(f"weights are written to a file that ends in .safetensors; got '{target}'")
    if target.is_dir():
        raise CheckpointError(f"'{target}' is a directory; give the name of a file")
    if not target.parent.is_dir():
        raise CheckpointError(f"there is no directory '{target.parent}' to write '{target.name}' into; make it first")
    return target


def write_tensors(target: Path, items: Iterable[Stored]) -> int:
    """Write a model's tensors in one step; return their size in bytes."""
    return write_named(target, ((item.name, item.effective) for item in items))


def write_named(target: Path, named: Iterable[tuple[str, Tensor]], metadata: Mapping[str, str] | None = None) -> int:
    """Write tensors to a temporary neighbour, then rename it; return their size in bytes."""
    tensors = _plain(named)
    temporary = target.with_name(f".{target.name}.{secrets.token_hex(4)}.partial")
    try:
        with temporary.open("xb") as file:
            mode = os.fstat(file.fileno()).st_mode  # what the user's umask says; save_file would make it private
        save_file(tensors, temporary, metadata={"format": "pt", **(metadata or {})})
        temporary.chmod(mode)
        sync(temporary)
        os.replace(temporary, target)
        sync(target.parent)
    except (OSError, SafetensorError, ValueError) as error:
        raise CheckpointError(f"'{target}' cannot be written: {error}") from error
    finally:
        temporary.unlink(missing_ok=True)
    return sum(tensor.nbytes for tensor in tensors.values())


def sync(path: Path) -> None:
    """Have the disk keep a file's contents, or a directory's names, before going on."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


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


@checked
def load_weights_(model: nn.Module, path: Folder, *, as_original: bool = False) -> None:
    """Load a model's weights from safetensors, strictly: every name and shape must fit, or nothing is loaded.

    A file holds what is used, so a model that `wc.condition_` made live stores the W that gives it, or refuses.

    Args:
        model: any model; on the meta device its tensors are replaced by the file's.
        path: a `.safetensors` file, or a directory with `model.safetensors.index.json` or `model.safetensors`. A tied
            tensor may have any of its names there.
        as_original: True if the file holds W, of a model that is not conditioned: a live model then stores it as it
            is, a folded one stores W + C.

    >>> import tempfile, torch, wellcond as wc
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     wc.save_weights(torch.nn.Linear(2, 2), f"{folder}/w.safetensors")
    ...     wc.load_weights_(torch.nn.Linear(2, 3), f"{folder}/w.safetensors")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    wellcond.errors.CheckpointError: ... 'weight' is (2, 2) in the file and (3, 2) in the model
    """
    with ExitStack() as stack:
        load_from_(model, Source.open(Path(path), stack), as_original)


@torch.no_grad()
def load_from_(model: nn.Module, source: Source, as_original: bool) -> None:
    """Load what is used, or W; everything that can be refused is done before the first tensor is written."""
    items = stored(model)
    _check_names(source, items)
    for item in items:
        _check_tensor(source, item)
    handles = handles_of(model) if as_original else []
    values = [(item, _to_store(item, source.read(_name_in(source, item)), as_original)) for item in items]
    for item, value in values:
        if item.tensor.is_meta:
            item.put(value)
        else:
            assign_(item.tensor, value)
    for handle in handles:
        handle.original_({id(item.tensor) for item in items})
    for item, value in values:
        for place in item.places:
            if place.rule is not None and as_original:
                place.rule.loaded(place.tensor)
            elif place.rule is not None:
                settle(place.rule, place.tensor, value)


def _to_store(item: Stored, value: Tensor, as_original: bool) -> Tensor:
    tensor = item.tensor
    value = value.to(dtype=tensor.dtype, device=value.device if tensor.is_meta else tensor.device)
    return value if item.rule is None or as_original else to_store(item.rule, tensor, value)


def _name_in(source: Source, item: Stored) -> str:
    return next(name for name in item.names if name in source.handles)


def _check_names(source: Source, items: list[Stored]) -> None:
    known = {name for item in items for name in item.names}
    missing = [item.name for item in items if not any(name in source.handles for name in item.names)]
    unexpected = [name for name in source.handles if name not in known]
    if missing or unexpected:
        parts = [f"{_some(missing)} missing"] * bool(missing) + [f"{_some(unexpected)} unexpected"] * bool(unexpected)
        raise CheckpointError(f"'{source.path}' belongs to another model: {'; '.join(parts)}")


def _some(names: list[str]) -> str:
    shown = ", ".join(f"'{name}'" for name in names[:FEW])
    return shown + (f" and {len(names) - FEW} more" if len(names) > FEW else "")


def _check_tensor(source: Source, item: Stored) -> None:
    names = [name for name in item.names if name in source.handles]
    reason = unwritable(item.name, item.tensor)
    if reason:
        raise WeightError(reason)
    for name in names:
        found, wanted = source.shape(name), tuple(item.tensor.shape)
        if found != wanted:
            raise CheckpointError(f"'{source.path}': '{name}' is {found} in the file and {wanted} in the model")
        if source.is_float(name) != item.tensor.is_floating_point():
            kinds = ("floating-point" if source.is_float(name) else "whole numbers or codes", item.tensor.dtype)
            raise CheckpointError(f"'{source.path}': '{name}' is {kinds[0]} in the file and {kinds[1]} in the model")
    for name in names[1:]:
        if not torch.equal(source.read(names[0]), source.read(name)):
            raise CheckpointError(
                f"'{source.path}': '{names[0]}' and '{name}' differ, but are one tensor in the model: they were not "
                "tied when the file was made"
            )
