"""Changes to the weights that a view names, and to those that it leaves out."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

ROLES = ("query", "key", "value", "output")


class Wrong(Exception):
    """Says how a claim fails."""


@contextmanager
def turned(projection: Any, head: int) -> Iterator[None]:
    """Move each column of one head to its neighbour's place.

    Mean and mean square over a token's columns stay as they are, so that a norm over all heads keeps the other heads
    unmoved. The only column of a head of width 1 changes its sign.
    """
    weight = projection.read()
    changed = weight.clone()
    changed[head] = weight[head].roll(1, -1) if weight.shape[-1] > 1 else -weight[head]
    projection.write_(changed)
    try:
        yield
    finally:
        projection.write_(weight)


@contextmanager
def others_redrawn(model: nn.Module, projection: Any) -> Iterator[bool]:
    """Add noise to what the view leaves out of its own parameters; yield whether there is anything."""
    versions = {name: p._version for name, p in model.named_parameters()}
    weight = projection.read()
    projection.write_(weight + 1 + weight.abs())
    touched = {name: p for name, p in model.named_parameters() if p._version != versions[name]}
    after = {name: p.detach().clone() for name, p in touched.items()}
    projection.write_(weight)
    before = {name: p.detach().clone() for name, p in touched.items()}
    left_out = {name: same for name in touched if bool((same := before[name] == after[name]).any())}
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for name, mask in left_out.items():
            noise = torch.randn(mask.shape, generator=generator).to(before[name].dtype)
            touched[name].add_(noise * mask * before[name].abs().mean())
    try:
        yield bool(left_out)
    finally:
        restore(model, before)


@torch.no_grad()
def restore(model: nn.Module, weights: dict[str, Tensor]) -> None:
    for name, parameter in model.named_parameters():
        if name in weights:
            parameter.copy_(weights[name])


def tied(layer: Any, role: str, other: str) -> bool:
    """Return whether two roles are one and the same weight, head by head, as where keys are the values too."""
    one, two = getattr(layer, role, None), getattr(layer, other, None)
    if one is None or two is None or not torch.equal(one.read(), two.read()):
        return False
    with turned(one, 0):
        return torch.equal(one.read(), two.read())


def check_storage(layer: Any) -> None:
    """Hold a view to its storage: heads do not overlap, nor do roles, and what is written is read."""
    present = {role: p for role in ROLES if (p := getattr(layer, role, None)) is not None}
    if "value" not in present:
        raise Wrong("no value is claimed")
    first = {role: p.read() for role, p in present.items()}
    same = {(a, b) for a in present for b in present if a == b or tied(layer, a, b)}
    for role, projection in present.items():
        for head in range(len(first[role])):
            with turned(projection, head):
                for other, p in present.items():
                    changed = (p.read() != first[other]).flatten(1).any(1).nonzero().flatten().tolist()
                    if changed != ([head] if (role, other) in same else []):
                        raise Wrong(f"writing {role} head {head} changes {other} heads {changed}")
