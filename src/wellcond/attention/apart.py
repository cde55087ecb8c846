"""Roles that lie in the same memory, of one layer or of several: tied weights, under two names."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from itertools import combinations

import torch
from torch import Tensor

from wellcond._core.deferred_torch import is_dtensor
from wellcond.attention.layouts import AnyLayout
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


def shared_weights(layers: Iterable[AttentionLayer]) -> set[tuple[int, AnyLayout]]:
    """Return the stored weights that more than one role of these layers reads, as `stored_weight` names them.

    Weights that are computed at each use are left out: nobody may write them.
    """
    seen = Counter(stored_weight(p) for layer in layers for _, p in layer.projections() if p.refusal() is None)
    return {weight for weight, count in seen.items() if count > 1}


def stored_weight(projection: Projection) -> tuple[int, AnyLayout]:
    """Name the numbers that a projection reads, whatever path leads to them.

    >>> import wellcond as wc
    >>> query, key, _, _ = (p for _, p in wc.attention_layers(torch.nn.MultiheadAttention(8, 2))[0].projections())
    >>> stored_weight(query) == stored_weight(query), stored_weight(query) == stored_weight(key)
    (True, False)
    """
    return id(projection.parameter()), projection.weight.layout


def _memory(stored: Tensor) -> int | None:
    """What is the same for tensors that share memory; None where that cannot be told, or there is none."""
    strided = stored.layout is torch.strided and not stored.is_meta and not is_dtensor(stored)
    return int(stored.untyped_storage()._cdata) if strided else None


def _places(projection: Projection, stored: Tensor) -> Tensor:
    """Where in that memory the numbers of a role lie."""
    reach = 1 + sum((size - 1) * step for size, step in zip(stored.shape, stored.stride(), strict=True))
    numbers = torch.arange(reach).as_strided(stored.shape, stored.stride(), 0) + stored.storage_offset()
    return projection.weight.layout.read(numbers)
