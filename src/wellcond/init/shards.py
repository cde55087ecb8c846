"""Cut a model on the meta device into shards, and give one shard at a time memory."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from wellcond.attention.find import attention_layers
from wellcond.attention.storage import split_path
from wellcond.checkpoint.named_tensors import NamedTensor, named_tensors
from wellcond.errors import CheckpointError
from wellcond.init.model_defaults import INSTEAD

SIZE = 2**30  # bytes above which what is outside the blocks goes into another shard


@dataclass(frozen=True)
class Shard:
    """The tensors of one block, or some of those outside the blocks."""

    name: str
    items: list[NamedTensor]

    @property
    def names(self) -> set[str]:
        """Every canonical name of every tensor."""
        return {name for item in self.items for name in item.names}


def cut(model: nn.Module) -> list[Shard]:
    """One shard per block (or attention layer outside any), then the rest in pieces of about a gigabyte.

    >>> with torch.device("meta"):
    ...     layer = nn.TransformerEncoderLayer(8, 2, batch_first=True)
    ...     model = nn.Sequential(nn.TransformerEncoder(layer, 2), nn.Linear(8, 8))
    >>> [(shard.name, len(shard.items)) for shard in cut(model)]
    [('0.layers.0', 12), ('0.layers.1', 12), ('rest from 1.weight', 2)]
    """
    found = attention_layers(model)
    blocks = dict.fromkeys(layer.block.name if layer.block else layer.name for layer in found)
    members: dict[str, list[NamedTensor]] = {name: [] for name in blocks}
    rest: list[Shard] = []
    room = 0
    for item in named_tensors(model):
        block = next((name for name in blocks if not name or item.name.startswith(name + ".")), None)
        if block is not None:
            members[block].append(item)
            continue
        together = bool(rest) and _owner(item) == _owner(rest[-1].items[-1])  # a module is initialised in one go
        if not together and room < item.tensor.nbytes:
            rest.append(Shard(f"rest from {item.name}", []))
            room = SIZE
        rest[-1].items.append(item)
        room -= item.tensor.nbytes
    return [Shard(name, items) for name, items in members.items() if items] + rest


def _owner(item: NamedTensor) -> str:
    return split_path(item.name)[0]


@contextmanager
def materialised(shard: Shard) -> Iterator[dict[str, int]]:
    """Give a shard's tensors memory, marked as "not set yet"; return them to meta afterwards.

    Yields the version of each tensor that was on meta, by name, for `check_set`.
    """
    before = {item.name: (item, item.tensor) for item in shard.items if item.tensor.is_meta}
    try:
        for item, tensor in before.values():
            real = torch.empty_like(tensor, device="cpu", requires_grad=False)
            item.put(real.fill_(math.nan) if _has_nan(real) else real.zero_())
        yield {name: item.tensor._version for name, (item, _) in before.items()}
    finally:
        for item, tensor in before.values():
            item.put(tensor)


def check_set(shard: Shard, versions: dict[str, int]) -> None:
    """Refuse what nobody set since `materialised`: still NaN or, for whole numbers, never written."""
    for item in shard.items:
        if item.name not in versions:  # its constructor made it on the CPU, so it has its values
            continue
        tensor = item.tensor
        if tensor.isnan().any() if _has_nan(tensor) else tensor._version == versions[item.name]:
            owner = type(item.places[0].owner).__name__
            raise CheckpointError(
                f"nothing sets '{item.name}' ({owner}, {tuple(tensor.shape)}) again: its constructor did, on the meta "
                f"device. {INSTEAD}"
            )


def _has_nan(tensor: Tensor) -> bool:
    return tensor.is_floating_point() or tensor.is_complex()
