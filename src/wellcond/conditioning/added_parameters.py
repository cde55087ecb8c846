"""Checks of model and optimizer for methods that add or take away parameters."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch import Tensor, nn

from wellcond._core.deferred_torch import is_dtensor
from wellcond.conditioning.storage.optimizer_hooks import inner
from wellcond.errors import InapplicableError, OptimizerError

_FIXED = ("DistributedDataParallel", "FullyShardedDataParallel", "DeepSpeedEngine")


def check_unwrapped(model: nn.Module, method: str) -> None:
    """Raise where the set of parameters is fixed already: a new one would be trained apart on every rank."""
    wrappers = [type(m).__name__ for m in model.modules() if any(c.__name__ in _FIXED for c in type(m).__mro__)]
    wrappers += ["fully_shard" for parameter in model.parameters() if is_dtensor(parameter)]
    if wrappers:
        raise InapplicableError(
            f"'{method}' changes the set of parameters, which {wrappers[0]} has fixed: apply it first, then wrap or "
            "shard the model and build the optimizer"
        )


def check_trained(optimizer: Any, method: str, added: Iterable[tuple[str, Tensor, Tensor]]) -> None:
    """Raise unless an optimizer trains what a method has added.

    Args:
        optimizer: a torch optimizer, or a wrapper with `.optimizer`.
        method: its name, for the message.
        added: `(name, parameter, weight)`, each new parameter with the weight it belongs to.
    """
    found = inner(optimizer)
    held = {id(p) for group in found.param_groups for p in group["params"]}
    mine = [item for item in added if id(item[2]) in held or id(item[1]) in held]
    missing = [name for name, parameter, _ in mine if id(parameter) not in held]
    if missing or not mine:
        what = f"trains the conditioned weights but not '{missing[0]}'" if missing else "holds no conditioned weight"
        raise OptimizerError(
            f"this {type(found).__name__} {what}: build it from model.parameters() after wc.condition_ and after "
            f"wrapping or sharding ('{method}' adds parameters)"
        )


def holds_any(optimizer: Any, tensors: Iterable[Tensor]) -> bool:
    """Return whether an optimizer has one of these parameters."""
    held = {id(p) for group in inner(optimizer).param_groups for p in group["params"]}
    return any(id(tensor) in held for tensor in tensors)
