"""An attention module out of its model: a copy in float64, the view of it, and what the model gave it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from wellcond.attention.higher_precision import widened
from wellcond.attention.paths import inside
from wellcond.attention.projection import Slot
from wellcond.attention.replay import Call
from wellcond.attention.view import AttentionLayer

Given = tuple[tuple[Any, ...], dict[str, Any]]  # arguments as they are passed
OUTSIDE = "its weights lie outside its module, which cannot be tried alone"


def is_whole(layer: AttentionLayer) -> bool:
    """Return whether a layer's weights lie in its module."""
    return all(inside(p.weight.path, layer.path) for _, p in layer.projections())


def module_alone(layer: AttentionLayer, given: Given) -> tuple[AttentionLayer, Given]:
    """Return the view of a copy of a layer's module, gathered, in float64 and without hooks; and its arguments.

    Where the model is in float64 the copy has the model's own tensors.
    """
    call = widened(Call(layer, layer.module, {"given": given}))
    start = len(layer.path) + 1 if layer.path else 0
    moved: dict[str, Any] = {
        role: replace(
            p,
            weight=Slot(p.weight.path[start:], p.weight.layout),
            bias=None if p.bias is None else p.bias[start:],
            root=call.module,
        )
        for role, p in layer.projections()
    }
    return replace(layer, name="", root=call.module, block=None, **moved), call.arguments["given"]
