"""Checks of a model before it is conditioned: its parameters can be written, are its own, and may be more."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from wellcond._core.deferred_torch import is_dtensor
from wellcond.attention.paths import join, walk
from wellcond.attention.storage import fetch, full, write_refusal
from wellcond.conditioning.storage.live_parameter import live_weights
from wellcond.conditioning.target_weights import TargetWeight, untied
from wellcond.errors import InapplicableError, WeightError

_FIXED = ("DistributedDataParallel", "FullyShardedDataParallel", "DeepSpeedEngine")


def check_unwrapped(model: nn.Module, method: str) -> None:
    """Raise where the set of parameters is fixed already: a new one would be trained apart on every rank."""
    wrappers = [type(m).__name__ for m in model.modules() if any(c.__name__ in _FIXED for c in type(m).__mro__)]
    wrappers += ["fully_shard" for parameter in model.parameters() if is_dtensor(parameter)]
    if wrappers:
        raise InapplicableError(
            f"'{method}' changes the set of parameters, which {wrappers[0]} has fixed: apply it first, then wrap or "
            "shard the model and build the optimizer"
        )


def check_weights(weights: Sequence[TargetWeight]) -> None:
    """Raise unless every parameter may be conditioned; nothing has been changed yet."""
    for weight in weights:
        if weight.name in live_weights(weight.owner):
            raise WeightError(
                f"'{weight.path}' is conditioned already (live, in a copy of a conditioned model): copy the model "
                "before wc.condition_, or call remove_() on the original's handle and copy it then"
            )
        reason = write_refusal(weight.root, weight.path)
        if reason:
            raise WeightError(reason)
        tensor = fetch(weight.root, weight.path)
        if tensor.is_meta:
            raise WeightError(
                f"'{weight.path}' is on the meta device: materialise the model (to_empty) and initialise it"
            )
        if not torch.isfinite(full(tensor)).all():
            raise WeightError(f"'{weight.path}' of shape {tuple(tensor.shape)} has numbers that are not finite")


def check_memory(weights: Sequence[TargetWeight]) -> None:
    """Raise where adding to a weight once would add twice, or to a tensor that is not the weight."""
    places: dict[int, list[tuple[str, Tensor]]] = {}
    for path, module in walk(weights[0].root) if weights else ():
        for name, tensor in (*module._parameters.items(), *module._buffers.items()):
            if tensor is not None and _plain(tensor):
                places.setdefault(tensor.untyped_storage().data_ptr(), []).append((join(path, name), tensor))
    for weight in untied(weights):
        mine = weight.parameter
        for path, tensor in places.get(mine.untyped_storage().data_ptr(), []) if _plain(mine) else ():
            if tensor is not mine and _meet(tensor, mine):
                raise WeightError(
                    f"'{weight.path}' and '{path}' are two tensors in the same memory, so a change of one is a change "
                    "of the other: tie them as one parameter (b.weight = a.weight), or give one its own (.clone())"
                )


def tied_elsewhere(weights: Sequence[TargetWeight]) -> str:
    """Say where a conditioned parameter is tied to a place that is not conditioned; empty if nowhere."""
    mine = {id(weight.parameter): weight for weight in weights}
    conditioned = {(id(weight.owner), weight.name) for weight in weights}
    for path, module in walk(weights[0].root) if weights else ():
        for name, parameter in module._parameters.items():
            if id(parameter) in mine and (id(module), name) not in conditioned:
                return f"'{mine[id(parameter)].path}' is tied to '{join(path, name)}', which is not conditioned"
    return ""


def _plain(tensor: Tensor) -> bool:
    """Return whether a tensor's memory is its own; FSDP's flat parameter is one memory for many by design."""
    return type(tensor) in (Tensor, nn.Parameter) and not tensor.is_meta and tensor.numel() > 0


def _meet(a: Tensor, b: Tensor) -> bool:
    (first, last), (start, end) = _window(a), _window(b)
    return first < end and start < last


def _window(tensor: Tensor) -> tuple[int, int]:
    reach = sum(stride * (size - 1) for stride, size in zip(tensor.stride(), tensor.shape, strict=True))
    start = tensor.storage_offset() * tensor.element_size()
    return int(start), int(start + (reach + 1) * tensor.element_size())
