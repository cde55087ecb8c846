"""Completeness of views: what parameters hold beside the columns that some role of some site explains."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from wellcond.attention.layouts import AnyLayout
from wellcond.attention.recorded.describe import Described
from wellcond.attention.roles import ROLES


def with_left_over(described: Sequence[Described]) -> list[Described]:
    """Return the sites with a word on each of their parameters that no view explains in full."""
    if not described:
        return []
    layouts: dict[str, list[AnyLayout]] = {}
    for site in described:
        for _, projection in site.layer.projections(*ROLES):
            layouts.setdefault(projection.weight.path, []).append(projection.weight.layout)
    stored = dict(described[0].site.origins.tape.parameters.values())
    words = {path: _words(path, _explained(stored[path].shape, own)) for path, own in layouts.items()}
    return [
        replace(site, left_over=(*site.left_over, *(word for path in _paths(site) if (word := words[path]))))
        for site in described
    ]


def _explained(shape: torch.Size, layouts: Sequence[AnyLayout]) -> Tensor:
    """Which numbers of a parameter some layout holds."""
    seen = torch.zeros(shape, dtype=torch.bool)
    for layout in dict.fromkeys(layouts):
        for view in layout.views(seen):
            view.fill_(True)
    return seen


def _paths(site: Described) -> list[str]:
    return list(dict.fromkeys(projection.weight.path for _, projection in site.layer.projections(*ROLES)))


def _words(path: str, seen: Tensor) -> str:
    """Say how much of a parameter no role explains; nothing if all of it is explained.

    >>> _words("qkv.weight", torch.tensor([[True, True], [False, False]]))
    "'qkv.weight': 2 of 4 numbers are in no role"
    """
    missing = seen.numel() - int(seen.sum())
    return f"'{path}': {missing:,} of {seen.numel():,} numbers are in no role" if missing else ""
