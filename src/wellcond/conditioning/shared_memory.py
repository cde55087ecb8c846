"""Check for parameters that share numbers with each other, or with modules that are not conditioned."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from wellcond.attention.paths import join, walk
from wellcond.conditioning.target_weights import TargetWeight, untied
from wellcond.errors import WeightError


def check_memory(weights: Sequence[TargetWeight]) -> None:
    """Raise where adding to a weight once would add twice, or to a tensor that is not the weight."""
    mine = {id(weight.parameter): weight for weight in untied(weights) if _plain(weight.parameter)}
    places: dict[int, list[tuple[str, Tensor]]] = {}
    for path, tensor in _tensors(weights[0].root) if weights else ():
        if _plain(tensor):
            places.setdefault(tensor.untyped_storage().data_ptr(), []).append((path, tensor))
    for weight in mine.values():
        for path, tensor in places.get(weight.parameter.untyped_storage().data_ptr(), []):
            if tensor is not weight.parameter and _meet(tensor, weight.parameter):
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


def _tensors(root: nn.Module) -> list[tuple[str, Tensor]]:
    return [
        (join(path, name), tensor)
        for path, module in walk(root)
        for name, tensor in (*module._parameters.items(), *module._buffers.items())
        if tensor is not None
    ]


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
