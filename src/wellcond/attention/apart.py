"""Roles of a layer that lie in the same memory: tied weights, under two names."""

from __future__ import annotations

from itertools import combinations

import torch
from torch import Tensor

from wellcond._core.deferred_torch import is_dtensor
from wellcond.attention.projection import Projection
from wellcond.attention.roles import QKV
from wellcond.attention.view import AttentionLayer


def tied_roles(layer: AttentionLayer) -> str:
    """Say which two of query, key and value share numbers, so that to write one is to write both; empty if none do.

    >>> import wellcond as wc
    >>> class Tied(torch.nn.Module):
    ...     def __init__(self):
    ...         super().__init__()
    ...         self.num_heads = 2
    ...         self.q, self.k, self.v = (torch.nn.Linear(4, 4) for _ in range(3))
    >>> model = Tied()
    >>> tied_roles(wc.attention_layers(model)[0])
    ''
    >>> model.k.weight = model.q.weight
    >>> tied_roles(wc.attention_layers(model)[0])
    'the query is the key too: their weights are tied'
    """
    for (a, one), (b, other) in combinations(layer.projections(*QKV), 2):
        if one.weight.path == other.weight.path:  # a fused weight, whose layout keeps them apart
            continue
        stored = one.parameter(), other.parameter()
        together = _memory(stored[0]) == _memory(stored[1]) is not None
        if together and bool(torch.isin(_places(one, stored[0]), _places(other, stored[1])).any()):
            return f"the {a} is the {b} too: their weights are tied"
    return ""


def _memory(stored: Tensor) -> int | None:
    """What is the same for tensors that share memory; None where that cannot be told, or there is none."""
    strided = stored.layout is torch.strided and not stored.is_meta and not is_dtensor(stored)
    return int(stored.untyped_storage()._cdata) if strided else None


def _places(projection: Projection, stored: Tensor) -> Tensor:
    """Where in that memory the numbers of a role lie."""
    reach = 1 + sum((size - 1) * step for size, step in zip(stored.shape, stored.stride(), strict=True))
    numbers = torch.arange(reach).as_strided(stored.shape, stored.stride(), 0) + stored.storage_offset()
    return projection.weight.layout.read(numbers)
