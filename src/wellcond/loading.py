"""Load what a model uses into a model that stores something else: every value is inverted before any is written.

The state dictionary of a live model holds effective weights, so loading inverts its rules, and a rule may refuse. Torch
loads module by module; a hook that sees the whole dictionary first makes a refusal leave the model as it was.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from wellcond.attention.paths import join, unwrap, walk
from wellcond.attention.storage import full, like
from wellcond.rules import Rule

EFFECTIVE = "_wellcond_effective"  # marks a tensor that is to be stored as it is, with what will be used


@torch.no_grad()
def prepare(
    root: nn.Module, state_dict: dict[str, Any], prefix: str, local_metadata: dict[str, Any], *rest: Any
) -> None:
    """Put what to store in the place of each effective weight of a module and all below it; a hook of `nn.Module`.

    Values that are missing or have another shape are left for torch to report.
    """
    assign = bool(local_metadata.get("assign_to_params_buffers"))
    canonical = {id(module): path for path, module in walk(root)}
    found: dict[str, Tensor] = {}
    for path, module in root.named_modules(remove_duplicate=False):
        for name, rule in module.__dict__.get("_wellcond", {}).items():
            weight = module._parameters[name]
            # Activation checkpointing has its own level in the module's path, but not in the dictionary yet.
            for key in {prefix + join(way, name): None for way in (path, canonical.get(id(module), path))}:
                value = state_dict.get(key)
                if not isinstance(value, Tensor) or value.shape != weight.shape or hasattr(value, EFFECTIVE):
                    continue
                if assign or not weight.is_meta:  # torch copies nothing into a meta tensor
                    found[key] = to_store(rule, weight, value if assign else value.to(weight.device, weight.dtype))
    state_dict.update(found)


def to_store(rule: Rule, weight: Tensor, effective: Tensor) -> Tensor:
    """What to store so that `effective`, in the precision it is stored in, is used: marked with `EFFECTIVE`.

    Args:
        rule: of the parameter.
        weight: what is stored now.
        effective: whole, or sharded as the result is to be.
    """
    whole = full(effective)
    # What is used already needs no inversion: a model that loads its own state keeps its bits.
    same = not rule.written and rule.fresh(weight) and _equal(rule.kept, whole)
    stored = weight.detach() if same else rule.invert(whole)
    if isinstance(effective, DTensor) and not isinstance(stored, DTensor):
        stored = like(effective, stored)
    setattr(stored, EFFECTIVE, None if same else effective)
    return stored


def settle(rule: Rule, weight: Tensor, stored: Any) -> None:
    """Tell a rule that what `to_store` gave has been stored; anything else was not loaded."""
    if not hasattr(stored, EFFECTIVE):
        return
    effective = getattr(stored, EFFECTIVE)
    if effective is not None:
        rule.loaded(weight, effective)
    elif rule.kept is not None:
        rule.keep(weight, rule.kept)  # stored onto itself, which is no change


def guard_(root: nn.Module) -> None:
    """Hook `prepare` onto each module with live parameters in or below it, and off every other.

    The hooks are copied and pickled with the model. A model that contains `root` loads what comes before it first.
    """
    for module in unwrap(root).modules():
        hooks = module._load_state_dict_pre_hooks
        mine = [key for key, hook in hooks.items() if getattr(hook, "hook", None) is prepare]
        live = any(inner.__dict__.get("_wellcond") for inner in module.modules())
        if live and not mine:
            module.register_load_state_dict_pre_hook(prepare)  # type: ignore[no-untyped-call]
        for key in [] if live else mine:
            del hooks[key]


def _equal(a: Tensor | None, b: Tensor) -> bool:
    return a is not None and (a.dtype, a.device) == (b.dtype, b.device) and torch.equal(a, b)
