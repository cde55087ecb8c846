"""Checks and guards of the optimizers that train folded weights."""

from __future__ import annotations

import functools
from collections.abc import Callable, Container
from types import MethodType
from typing import Any

from torch.optim import Optimizer

from wellcond.errors import OptimizerError

BY_NORM = {
    "lamb": "the norm of the weight",
    "lars": "the norm of the weight",
    "adafactor": "the size of the weight",
}


def check_optimizer(optimizer: Optimizer) -> None:
    """Refuse an optimizer whose step depends on the norm of a weight; transformers' Adafactor can do without.

    Entry by entry it makes no difference where C is kept. A norm is a statement about the whole weight, and often about
    a copy of it that the optimizer keeps for itself: what is trained must then be W.
    """
    for cls in type(optimizer).__mro__:
        for name, what in BY_NORM.items():
            groups = optimizer.param_groups
            by_size = any(group.get("scale_parameter", True) or group.get("relative_step") for group in groups)
            if name in cls.__name__.lower() and by_size:
                raise OptimizerError(
                    f"{type(optimizer).__name__} scales its step by {what}, so what it is given must be W itself: "
                    "condition with mode='live'"
                )


def decays(optimizer: Optimizer, parameters: Container[int]) -> bool:
    """Return whether an optimizer decays some of these parameters (by id)."""
    return any(
        float(group.get("weight_decay") or 0.0) and any(id(p) in parameters for p in group["params"])
        for group in optimizer.param_groups
    )


def skipped(optimizer: Optimizer) -> bool:
    """Return whether a step did nothing: a fused one is called even if GradScaler found an inf."""
    infinite = getattr(optimizer, "found_inf", None)
    return infinite is not None and bool(float(infinite))


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


def inner(optimizer: Any) -> Optimizer:
    """Return the torch optimizer inside Accelerate's, Lightning's or another library's wrapper."""
    while not isinstance(optimizer, Optimizer) or hasattr(optimizer, "optimizer"):
        wrapped = getattr(optimizer, "optimizer", None)
        if wrapped is None:
            raise OptimizerError(
                f"attach takes a torch optimizer or a wrapper with .optimizer; got {type(optimizer).__name__}"
            )
        optimizer = wrapped
    return optimizer
