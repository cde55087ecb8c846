"""Optimizers of conditioned weights: checked, guarded, and every step in the process heard, attached or not.

Note [Steps of every optimizer in the process]: torch calls hooks of `register_optimizer_step_pre_hook` for optimizers
that nobody gave us, and we need that twice. A compiled graph reads the kept effective weight without asking, and an
optimizer that writes into `weight.data` leaves no version: without the hook it would train on the weight of the last
step. And W + C decays towards zero in an optimizer that was not attached: without the hook silently. The hooks come
with the first conditioning, ask every live or folded weight of the process, and stay. `with unheard_steps():` switches
them off: then call `c.after_step()` after a step, and expect no warning.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import MethodType
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

from torch import Tensor
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from wellcond._core.deferred_torch import not_compiled
from wellcond.conditioning.storage.live_parameter import after_step
from wellcond.errors import OptimizerError

if TYPE_CHECKING:
    from wellcond.conditioning.storage.anchored_decay import AnchoredDecay

BY_NORM = {
    "lamb": "the norm of the weight",
    "lars": "the norm of the weight",
    "adafactor": "the size of the weight",
}
_LISTENERS: WeakSet[AnchoredDecay] = WeakSet()
_INSTALLED: list[Any] = []  # torch's handles of the two hooks


def inner(optimizer: Any) -> Optimizer:
    """Return the torch optimizer inside Accelerate's, Lightning's or another library's wrapper."""
    while not isinstance(optimizer, Optimizer) or hasattr(optimizer, "optimizer"):
        wrapped = getattr(optimizer, "optimizer", None)
        if wrapped is None:
            raise OptimizerError(
                f"this takes a torch optimizer or a wrapper with .optimizer; got {type(optimizer).__name__}"
            )
        optimizer = wrapped
    return optimizer


def parameter_ids(optimizer: Optimizer, *, decayed: bool = False) -> set[int]:
    """Return the `id` of each parameter that an optimizer has, or of those that it decays."""
    groups = [group for group in optimizer.param_groups if not decayed or float(group.get("weight_decay") or 0.0)]
    return {id(parameter) for group in groups for parameter in group["params"]}


def check_trained(optimizer: Any, method: str, added: list[tuple[str, Tensor, Tensor]]) -> None:
    """Raise unless an optimizer trains what a method has added: `(name, new parameter, the weight it belongs to)`."""
    found = inner(optimizer)
    has = parameter_ids(found)
    mine = [item for item in added if id(item[2]) in has or id(item[1]) in has]
    missing = [name for name, parameter, _ in mine if id(parameter) not in has]
    if missing or not mine:
        what = f"trains the conditioned weights but not '{missing[0]}'" if missing else "holds no conditioned weight"
        raise OptimizerError(
            f"this {type(found).__name__} {what}: build it from model.parameters() after wc.condition_ and after "
            f"wrapping or sharding ('{method}' adds parameters)"
        )


def check_optimizer(optimizer: Optimizer) -> None:
    """Refuse an optimizer whose step depends on the norm of a weight; transformers' Adafactor can do without.

    Entry by entry it makes no difference where C is kept. A norm is a statement about the whole weight, and often about
    a copy of it that the optimizer keeps for itself: what is trained must then be W.
    """
    groups = optimizer.param_groups
    by_size = any(group.get("scale_parameter", True) or group.get("relative_step") for group in groups)
    for cls in type(optimizer).__mro__ if by_size else ():
        for name, what in BY_NORM.items():
            if name in cls.__name__.lower():
                raise OptimizerError(
                    f"{type(optimizer).__name__} scales its step by {what}, so what it is given must be W itself: "
                    "condition with mode='live'"
                )


def guard(optimizer: Optimizer, restore: Callable[[], None]) -> None:
    """Have a step that fails (out of memory, Ctrl-C) put the weights back before anybody uses them.

    Note [An optimizer's own step is wrapped]: torch calls the hook after a step only if the step returns. One that
    fails would leave W where the model expects W + C, and a loop that catches the error (a smaller batch after "out of
    memory") would train on. Only optimizers that were given to `c.attach` are wrapped; `c.after_step(optimizer)` after
    each step instead leaves them alone.
    """
    step = optimizer.step

    @functools.wraps(step)
    def guarded(self: Optimizer, *args: Any, **kwargs: Any) -> Any:
        try:
            return step(*args, **kwargs)
        except BaseException:
            restore()
            raise

    optimizer.step = MethodType(guarded, optimizer)  # type: ignore[method-assign]


def hear_steps(listener: AnchoredDecay | None = None) -> None:
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
