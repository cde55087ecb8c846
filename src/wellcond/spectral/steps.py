"""Be told of every optimizer step in the process, attached or not."""

from __future__ import annotations

from typing import Any, Protocol
from weakref import WeakSet

import torch
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from wellcond import live


class Listener(Protocol):
    """What is told."""

    def before(self, optimizer: Optimizer) -> None:
        """Called with the gradients of the step in place."""

    def after(self, optimizer: Optimizer) -> None:
        """Called when the step is done."""


_LISTENERS: WeakSet[Any] = WeakSet()
_INSTALLED: list[object] = []


def listen(listener: Listener | None = None) -> None:
    """Tell a listener (for as long as it lives) and every live weight of optimizer steps."""
    if listener is not None:
        _LISTENERS.add(listener)
    if not _INSTALLED:
        _INSTALLED.append(register_optimizer_step_pre_hook(_before))
        _INSTALLED.append(register_optimizer_step_post_hook(_after))


@torch.compiler.disable  # type: ignore[untyped-decorator]
def _before(optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    listeners = list(_LISTENERS)
    closure = kwargs.get("closure", args[1] if len(args) > 1 else None)
    if closure is None:
        for listener in listeners:
            listener.before(optimizer)
        return None

    # Gradients are made inside the step, perhaps more than once, with the weights as the model uses them.
    def told() -> Any:
        for listener in listeners:
            listener.after(optimizer)
        loss = closure()
        for listener in listeners:
            listener.before(optimizer)
        return loss

    if "closure" in kwargs:
        return args, kwargs | {"closure": told}
    return (args[0], told, *args[2:]), kwargs


@torch.compiler.disable  # type: ignore[untyped-decorator]
def _after(optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    for listener in reversed(list(_LISTENERS)):  # what the last one changed is put back first
        listener.after(optimizer)
    live.after_step(optimizer)
