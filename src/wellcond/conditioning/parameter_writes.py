"""Writes into a model's parameters that can be taken back: all or nothing, and undone on request."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Self

import torch
from torch import Tensor, nn

from wellcond._core.deferred_torch import is_dtensor
from wellcond.attention.paths import resolve
from wellcond.attention.storage import assign_, fetch, full, reshard, split_path
from wellcond.conditioning.correction_marks import followed
from wellcond.errors import WeightError


class ParameterWrites:
    """Keeps what parameters held before they were first written; a block that fails puts them back.

    A model that FSDP2 shards has its shards before and after, for a copy that a pass has left gathered is not kept.

    Args:
        root: the model.

    >>> model = nn.Linear(2, 2)
    >>> with ParameterWrites(model) as writes, torch.no_grad():
    ...     _ = writes.open("bias").fill_(7.0)
    >>> model.bias.tolist(), writes.undo_(), float(model.bias.max()) < 1
    ([7.0, 7.0], None, True)
    """

    def __init__(self, root: nn.Module) -> None:
        reshard(root)
        self.root = root
        self._shards: dict[tuple[int, str], Any] = {
            (id(module), name): parameter
            for module in root.modules()
            for name, parameter in module._parameters.items()
            if is_dtensor(parameter)
        }
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

    @contextmanager
    def at_rest(self, path: str) -> Iterator[None]:
        """Have the shards of a parameter in the place of the copy that a running FSDP2 module has gathered.

        The copy, which may have another dtype, is then given what was written, so that the same pass goes on with it.
        """
        owner, name = split_path(path)
        module = resolve(self.root, owner)
        shards, copy = self._shards.get((id(module), name)), module._parameters.get(name)
        if shards is None or copy is None or getattr(copy, "device_mesh", None) == shards.device_mesh:
            yield
            return
        module._parameters[name] = shards
        try:
            yield
            assign_(copy, full(shards))
        finally:
            module._parameters[name] = copy

    @torch.no_grad()
    def undo_(self) -> None:
        """Put back everything that was written."""
        reshard(self.root)
        for path, value in self.before.items():
            with self.at_rest(path):  # gathered still, where a pass has failed
                fetch(self.root, path).copy_(value)
        for step in reversed(self._more):  # what two of them changed is put back to before the first
            step()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            reshard(self.root)  # after passes that were part of the work
        else:
            self.undo_()
