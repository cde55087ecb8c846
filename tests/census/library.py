"""What the library says about a model: the one file of the census that calls it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import nn

import wellcond as wc
from wellcond.attention.find import from_structure
from wellcond.attention.observe import observe
from wellcond.errors import NoAttentionError


@dataclass(frozen=True)
class Found:
    """What the library found: views that it stands for, and by module what it does not stand for, with the reason."""

    verified: list[Any]
    refused: list[tuple[str, str]]


def find(model: nn.Module, inputs: dict[str, Any]) -> Found:
    """Ask the library for every attention layer that this pass shows."""
    try:
        layers = wc.attention_layers(model, inputs)
    except NoAttentionError:  # its message has the reasons, but not for every module
        layers = observe(model, from_structure(model), inputs).layers
    unclaimed = [(one.name, one.reason) for one in layers.unclaimed]
    refused = [(layer.path, layer.reason) for layer in layers if layer.standing == "refused"]
    return Found([layer for layer in layers if layer.standing == "verified"], [*refused, *unclaimed])
