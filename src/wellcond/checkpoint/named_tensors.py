"""The tensors that a model keeps in a file: parameters and persistent buffers by canonical name, tied tensors once."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from wellcond.attention.paths import children, join, unwrap
from wellcond.conditioning.storage.live_parameter import live_weights
from wellcond.conditioning.storage.live_weight import LiveWeight
from wellcond.errors import CheckpointError


@dataclass(frozen=True)
class Place:
    """One slot of one module that holds a tensor."""

    name: str  # canonical path
    owner: nn.Module
    key: str

    @property
    def slots(self) -> dict[str, Any]:
        """The dictionary of the module that has the slot."""
        return self.owner._parameters if self.key in self.owner._parameters else self.owner._buffers

    @property
    def tensor(self) -> Tensor:
        """The tensor that is there now."""
        tensor: Tensor = self.slots[self.key]
        return tensor

    @property
    def live(self) -> LiveWeight | None:
        """Its effective weight, where it is live."""
        return live_weights(self.owner).get(self.key)


@dataclass(frozen=True)
class NamedTensor:
    """One tensor of a model and every place it is in: more than one where it is tied.

    >>> first, second = nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False)
    >>> second.weight = first.weight
    >>> [tensor.names for tensor in named_tensors(nn.Sequential(first, second))]
    [('0.weight', '1.weight')]
    """

    places: tuple[Place, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """Every canonical name of the tensor."""
        return tuple(place.name for place in self.places)

    @property
    def name(self) -> str:
        """The name it has in a file: the first one."""
        return self.places[0].name

    @property
    def tensor(self) -> Tensor:
        """The tensor that is there now."""
        return self.places[0].tensor

    @property
    def live(self) -> LiveWeight | None:
        """Its effective weight, where it is live."""
        return self.places[0].live

    @property
    def effective(self) -> Tensor:
        """The tensor that readers get, which is what a file has."""
        return self.tensor if self.live is None else self.live.export(self.tensor)

    def put(self, tensor: Tensor) -> None:
        """Set another tensor in every place, a parameter where one was."""
        old = self.tensor
        if isinstance(old, nn.Parameter) and not isinstance(tensor, nn.Parameter):
            tensor = nn.Parameter(tensor, requires_grad=old.requires_grad)
        for place in self.places:
            place.slots[place.key] = tensor


def named_tensors(model: nn.Module) -> list[NamedTensor]:
    """List what a model's state dictionary has, without wrappers in the names and each tied tensor once."""
    found: dict[Hashable, list[Place]] = {}
    for place in _places(unwrap(model)):
        tensor = place.tensor
        if is_lazy(tensor):
            raise CheckpointError(f"'{place.name}' has no shape yet: run one batch through the model first")
        # A tensor that is live in one place and not in another is used in two ways, so it is two in a file.
        found.setdefault((_identity(tensor), place.live is None), []).append(place)
    return [NamedTensor(tuple(places)) for places in found.values()]


def _places(root: nn.Module) -> Iterator[Place]:
    stack: list[tuple[str, nn.Module, frozenset[int]]] = [("", root, frozenset())]
    while stack:
        path, module, above = stack.pop()
        # Parameters that a rule has added are no part of the model it conditions.
        added = {f"{name}_{extra}" for name, live in live_weights(module).items() for extra in live.rule.parameters}
        for key, tensor in [*module._parameters.items(), *module._buffers.items()]:
            if tensor is not None and key not in module._non_persistent_buffers_set and key not in added:
                yield Place(join(path, key), module, key)
        above = above | {id(module)}
        inside = [(join(path, name), child, above) for name, child in children(module) if id(child) not in above]
        stack.extend(reversed(inside))  # a module that contains itself is listed once


def _identity(tensor: Tensor) -> Hashable:
    """Return what is equal for plain tensors in the same window of the same memory, and for one and the same object."""
    if type(tensor) not in (Tensor, nn.Parameter) or tensor.is_meta or tensor.numel() == 0:
        return id(tensor)
    memory = tensor.untyped_storage().data_ptr()
    return memory, tensor.storage_offset(), tensor.shape, tensor.stride(), tensor.dtype, tensor.device
