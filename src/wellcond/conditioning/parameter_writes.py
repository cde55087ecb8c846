"""Writes into a model's parameters that can be taken back: all or nothing, and undone on request."""

from __future__ import annotations

from collections.abc import Callable
from typing import Self

import torch
from torch import Tensor, nn

from wellcond.attention.paths import resolve
from wellcond.attention.storage import fetch, split_path
from wellcond.conditioning.correction_marks import followed
from wellcond.errors import WeightError


class ParameterWrites:
    """Keeps what parameters held before they were first written; a block that fails puts them back.

    Args:
        root: the model.

    >>> model = nn.Linear(2, 2)
    >>> with ParameterWrites(model) as writes, torch.no_grad():
    ...     _ = writes.open("bias").fill_(7.0)
    >>> model.bias.tolist(), writes.undo_(), float(model.bias.max()) < 1
    ([7.0, 7.0], None, True)
    """

    def __init__(self, root: nn.Module) -> None:
        self.root = root
        self.before: dict[str, Tensor] = {}
        self._more: list[Callable[[], None]] = []

    def also_undo(self, step: Callable[[], None]) -> None:
        """Add what else puts things back."""
        self._more.append(step)

    def open(self, path: str) -> Tensor:
        """Return a parameter that is about to be written."""
        target = fetch(self.root, path)
        owner, name = split_path(path)
        if followed(resolve(self.root, owner), name):
            raise WeightError(
                f"'{path}' holds W + C of wc.condition_, and its handle would take the new numbers for that: "
                "initialise first and condition then, after [c.remove_() for c in wc.handles_of(model)]"
            )
        if target.is_meta:
            raise WeightError(f"'{path}' is on the meta device: materialise the model (to_empty) first")
        if path not in self.before:
            self.before[path] = target.detach().clone()
        return target

    @torch.no_grad()
    def undo_(self) -> None:
        """Put back everything that was written."""
        for path, value in self.before.items():
            fetch(self.root, path).copy_(value)
        for step in self._more:
            step()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            self.undo_()
