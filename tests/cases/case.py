"""What a model case is: how to build it and its batch, and what its attention layers must say of themselves."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn


@dataclass(frozen=True)
class Shape:
    """What a view must say, written down from the configuration, never copied from what the code printed."""

    heads: int
    kv_heads: int
    width: int  # D of the query (of the value where there is no query)
    head_dim: int
    kind: str = "softmax"
    cross: bool = False
    storage: str = "fused block"


@dataclass(frozen=True)
class Case:
    """A tiny instance of a real class.

    Args:
        name: unique, `library-model`.
        build: makes the model in float32 on the CPU; called under a fixed seed.
        inputs: makes a float64 batch that reaches every layer: a tensor, a tuple, or a dict of keyword arguments.
        layers: expected layers in order, `(name, Shape)`.
    """

    name: str
    build: Callable[[], nn.Module]
    inputs: Callable[[], Any]
    layers: tuple[tuple[str, Shape], ...]

    def model(self) -> nn.Module:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            return self.build().eval()

    def batch(self) -> Any:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(1)
            return self.inputs()
