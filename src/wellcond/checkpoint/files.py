"""Weights in safetensors files: written in one step or not at all, loaded only if they belong to the model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn

from wellcond._core.argument_types import File, Folder
from wellcond._core.checked import checked
from wellcond.attention.storage import assign_, unwritable
from wellcond.checkpoint.named_tensors import NamedTensor, named_tensors
from wellcond.checkpoint.safetensors_files import PICKLES, Memory, Source, file_target, write_named
from wellcond.checkpoint.torch_files import read_pickled
from wellcond.conditioning.correction_marks import header_of, held, mark_, records_in
from wellcond.conditioning.existing_handles import handles_around, handles_of
from wellcond.conditioning.storage.loading import settle, to_hold
from wellcond.conditioning.transaction import all_or_nothing, modules_of, numbers_of
from wellcond.errors import CheckpointError, WeightError

MAX_NAMES_SHOWN = 3


@checked
def save_weights(model: nn.Module, path: File) -> None:
    """Write a model's parameters and persistent buffers to one safetensors file.

    Names are canonical (no `module.`, no `_orig_mod.`), a tied tensor is written once, and the file appears whole or
    not at all: a crash leaves what was there before. The weights of a model that `wc.condition_` conditions are written
    as W + C, and the header says which hold W + C, so that nothing is added to them again.

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
    items = named_tensors(model)
    known = [(item.name, held(item.places[0].owner, item.places[0].key, live=item.live is not None)) for item in items]
    header = header_of((name, record) for name, record in known if record is not None)
    write_named(target, ((item.name, item.effective) for item in items), header)


@checked
def load_weights_(
    model: nn.Module, path: Folder | Mapping[str, Tensor], *, as_original: bool = False, allow_pt: bool = False
) -> None:
    """Load a model's weights from safetensors, strictly: every name and shape must fit, or nothing is loaded.

    A file holds effective weights, so a model that `wc.condition_` made live takes the W that gives them, or refuses. A
    model that is not conditioned remembers which of its weights hold W + C, for `wc.condition_`.

    Args:
        model: any model; on the meta device its tensors are replaced by the file's.
        path: a `.safetensors` file, a directory with `model.safetensors.index.json` or `model.safetensors`, or a state
            dictionary. A tied tensor may have any of its names there.
        as_original: True if the file holds W, of a model that is not conditioned: a live model then holds it as it
            is, a folded one W + C.
        allow_pt: True to read a file of `torch.save` too (.pt, .pth, .ckpt, .bin), by `torch.load(weights_only=True)`:
            a state dictionary, also inside another as nanoGPT and Lightning write it, with their prefixes.

    >>> import tempfile, torch, wellcond as wc
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     wc.save_weights(torch.nn.Linear(2, 2), f"{folder}/w.safetensors")
    ...     wc.load_weights_(torch.nn.Linear(2, 3), f"{folder}/w.safetensors")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    wellcond.errors.CheckpointError: ... 'weight' is (2, 2) in the file and (3, 2) in the model
    """
    with ExitStack() as stack:
        if isinstance(path, Mapping):
            source: Source = Memory("the state dictionary", path)
        elif allow_pt and Path(path).suffix in PICKLES:
            source = read_pickled(Path(path), {name for item in named_tensors(model) for name in item.names})
        else:
            source = Source.open(Path(path), stack)
        _load_from_(model, source, as_original)


@torch.no_grad()
def _load_from_(model: nn.Module, source: Source, as_original: bool) -> None:
    """Load effective weights, or W; everything that can be refused is done before the first tensor is written."""
    items = named_tensors(model)
    _check_names(source, items)
    for item in items:
        _check_tensor(source, item)
    records = {} if as_original else records_in(source.header(), source.path)
    handles = handles_of(model) if as_original else handles_around(model)
    values = [(item, _loaded_value(item, source, as_original)) for item in items]
    with ExitStack() as stack:
        for handle in handles:
            stack.enter_context(all_or_nothing(handle, "none"))
        if handles or any(item.live is not None for item in items):
            stack.enter_context(_numbers_back(items))
        for item, value in values:
            if item.tensor.is_meta:
                item.put(value)
            else:
                assign_(item.tensor, value)
        for handle in handles if as_original else ():
            handle.trained_loaded_({id(item.tensor) for item in items})
        for item, value in values:
            for place in item.places:
                if place.live is not None and as_original:
                    place.live.loaded(place.tensor)
                elif place.live is not None:
                    settle(place.live, place.tensor, value)
    for item in items:
        record = next((records[name] for name in item.names if name in records), None)
        if record is not None and item.live is None:
            for place in item.places:
                mark_(place.owner, place.key, record)


@contextmanager
def _numbers_back(items: list[NamedTensor]) -> Iterator[None]:
    """Write a model's numbers back if the block fails: rules may refuse, or run out of memory, when all is loaded."""
    before = [
        partial(item.put, item.tensor) if item.tensor.is_meta else numbers_of(item.tensor, None) for item in items
    ]
    live = {id(place.owner): place.owner for item in items for place in item.places if place.live is not None}
    rules_back = modules_of(list(live.values()))
    try:
        yield
    except BaseException:
        for put_back in (*before, rules_back):
            put_back()
        raise


def _loaded_value(item: NamedTensor, source: Source, as_original: bool) -> Tensor:
    tensor, value = item.tensor, source.read(next(name for name in item.names if name in source.handles))
    value = value.to(dtype=tensor.dtype, device=value.device if tensor.is_meta else tensor.device)
    return value if item.live is None or as_original else to_hold(item.live, tensor, value)


def _check_names(source: Source, items: list[NamedTensor]) -> None:
    known = {name for item in items for name in item.names}
    missing = [item.name for item in items if not any(name in source.handles for name in item.names)]
    unexpected = [name for name in source.handles if name not in known]
    if missing or unexpected:
        parts = [f"{_some(missing)} missing"] * bool(missing) + [f"{_some(unexpected)} unexpected"] * bool(unexpected)
        raise CheckpointError(f"'{source.path}' belongs to another model: {'; '.join(parts)}")


def _some(names: list[str]) -> str:
    shown = ", ".join(f"'{name}'" for name in names[:MAX_NAMES_SHOWN])
    return shown + (f" and {len(names) - MAX_NAMES_SHOWN} more" if len(names) > MAX_NAMES_SHOWN else "")


def _check_tensor(source: Source, item: NamedTensor) -> None:
    names = [name for name in item.names if name in source.handles]
    reason = unwritable(item.name, item.tensor)
    if reason:
        raise WeightError(reason)
    for name in names:
        (found, is_float), wanted = source.shape_and_kind(name), tuple(item.tensor.shape)
        if found != wanted:
            raise CheckpointError(f"'{source.path}': '{name}' is {found} in the file and {wanted} in the model")
        if is_float != item.tensor.is_floating_point():
            kind, dtype = "floating-point" if is_float else "whole numbers or codes", item.tensor.dtype
            raise CheckpointError(f"'{source.path}': '{name}' is {kind} in the file and {dtype} in the model")
    for name in names[1:]:
        if not torch.equal(source.read(names[0]), source.read(name)):
            raise CheckpointError(
                f"'{source.path}': '{names[0]}' and '{name}' differ, but are one tensor in the model: they were not "
                "tied when the file was made"
            )
