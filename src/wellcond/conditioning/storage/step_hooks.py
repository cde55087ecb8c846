"""Hear of every optimizer step in the process, attached or not.

Note [Steps of every optimizer in the process]: torch calls hooks of `register_optimizer_step_pre_hook` for optimizers
that nobody gave us, and we need that twice. A compiled graph reads the kept effective weight without asking, and an
optimizer that writes into `weight.data` leaves no version: without the hook it would train on the weight of the last
step. And W + C decays towards zero in an optimizer that was not attached: without the hook silently. The hooks come
with the first conditioning, ask every live or folded weight of the process, and stay. `with unheard_steps():` switches
them off: then call `c.after_step()` after a step, and expect no warning.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol
from weakref import WeakSet

from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from wellcond._core.deferred_torch import not_compiled
from wellcond.conditioning.storage.live_parameter import after_step


class StepListener(Protocol):
    """An object that hears of steps."""

    def before(self, optimizer: Optimizer) -> None:
        """Follow the gradients of a step, which are in place."""

    def after(self, optimizer: Optimizer) -> None:
        """Follow a step that is done."""


_LISTENERS: WeakSet[Any] = WeakSet()
_INSTALLED: list[Any] = []  # torch's handles of the two hooks


def hear_steps(listener: StepListener | None = None) -> None:
    """Tell a listener (for as long as it lives) and every live weight of optimizer steps."""
    if listener is not None:
        _LISTENERS.add(listener)
    if not _INSTALLED:
        _INSTALLED.append(register_optimizer_step_pre_hook(_before))
        _INSTALLED.append(register_optimizer_step_post_hook(_after))


@contextmanager
def unheard_steps() -> Iterator[None]:
    """Leave optimizer steps alone in a block, see Note [Steps of every optimizer in the process]."""
    for hook in _INSTALLED:
        hook.remove()
    _INSTALLED.clear()
    try:
        yield
    finally:
        hear_steps()


@not_compiled
def _before(optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    listeners = list(_LISTENERS)
    closure = kwargs.get("closure", args[1] if len(args) > 1 else None)
    if closure is None:
        for listener in listeners:
            listener.before(optimizer)
        return None

    # Gradients are made inside the step, perhaps more than once, with the effective weights.
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


@not_compiled
def _after(optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    for listener in reversed(list(_LISTENERS)):  # what the last one changed is put back first
        listener.after(optimizer)
    after_step(optimizer)
