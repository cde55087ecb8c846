"""Load effective weights into a model that holds W: every value is inverted before any is written.

The state dictionary of a live model holds effective weights, so loading inverts its rules, and a rule may refuse. Torch
loads module by module; a hook that sees the whole dictionary first makes a refusal leave the model as it was.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from wellcond._core.deferred_torch import is_dtensor
from wellcond.attention.paths import join, unwrap, walk
from wellcond.attention.storage import full, like
from wellcond.conditioning.storage.live_weight import LiveWeight

EFFECTIVE = "_wellcond_effective"  # marks a W that is to be held as it is, with its effective weight


@torch.no_grad()
def invert_before_load(
    root: nn.Module, state_dict: dict[str, Any], prefix: str, local_metadata: dict[str, Any], *rest: Any
) -> None:
    """Put W in the place of each effective weight of a module and all below it; a hook of `nn.Module`.

    Values that are missing or have another shape are left for torch to report.
    """
    assign = bool(local_metadata.get("assign_to_params_buffers"))
    canonical = {id(module): path for path, module in walk(root)}
    found: dict[str, Tensor] = {}
    for path, module in root.named_modules(remove_duplicate=False):
        for name, live in module.__dict__.get("_wellcond", {}).items():
            weight = module._parameters[name]
            # Activation checkpointing has its own level in the module's path, but not in the dictionary yet.
            for key in {prefix + join(way, name): None for way in (path, canonical.get(id(module), path))}:
                value = state_dict.get(key)
                if not isinstance(value, Tensor) or value.shape != weight.shape or hasattr(value, EFFECTIVE):
                    continue
                if assign or not weight.is_meta:  # torch copies nothing into a meta tensor
                    found[key] = to_hold(live, weight, value if assign else value.to(weight.device, weight.dtype))
    state_dict.update(found)


def to_hold(live: LiveWeight, weight: Tensor, effective: Tensor) -> Tensor:
    """Return the W that makes `effective`, in the precision it has, the effective weight: marked with `EFFECTIVE`."""
    whole = full(effective)
    # What is effective already needs no inversion: a model that loads its own state keeps its bits.
    same = not live.written and live.fresh(weight) and _equal(live.kept, whole)
    trained = weight.detach() if same else live.rule.invert(whole)
    if is_dtensor(effective) and not is_dtensor(trained):
        trained = like(effective, trained)
    setattr(trained, EFFECTIVE, None if same else effective)
    return trained


def settle(live: LiveWeight, weight: Tensor, trained: Any) -> None:
    """Tell a live weight that its parameter holds what `to_hold` gave; anything else was not loaded."""
    if not hasattr(trained, EFFECTIVE):
        return
    effective = getattr(trained, EFFECTIVE)
    if effective is not None:
        live.loaded(weight, effective)
    elif live.kept is not None:
        live.keep(weight, live.kept)  # loaded onto itself, which is no change


def guard_(root: nn.Module) -> None:
    """Hook `invert_before_load` onto each module with live parameters in or below it, and off every other.

    The hooks are copied and pickled with the model. A model that contains `root` loads what comes before it first.
    """
    for module in unwrap(root).modules():
        hooks = module._load_state_dict_pre_hooks
        mine = [key for key, hook in hooks.items() if getattr(hook, "hook", None) is invert_before_load]
        live = any(inner.__dict__.get("_wellcond") for inner in module.modules())
        if live and not mine:
            module.register_load_state_dict_pre_hook(invert_before_load)  # type: ignore[no-untyped-call]
        for key in [] if live else mine:
            del hooks[key]


def _equal(a: Tensor | None, b: Tensor) -> bool:
    return a is not None and (a.dtype, a.device) == (b.dtype, b.device) and torch.equal(a, b)
