"""Live parameters: the module holds W, and every reader of `module.weight` gets the effective weight.

Note [The class of a live module is swapped]: only reading the attribute differs, and what a state dictionary holds (the
effective weight, under the ordinary key), and an attribute of one object is computed only by its class. So the
parameter keeps its name, its identity and its place, and optimizers, DDP, FSDP2, EMA, `functional_call` and groups of
parameters by name see an ordinary model; `torch.nn.utils.parametrize`, which renames the parameter, fails all of them.
One class is made per module class, not per module, so that compiled graphs are shared. `mode="folded"`, `c.fold_()` and
`c.remove_()` leave, or give back, the class that the module had.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Any, Self
from weakref import WeakSet

from torch import Tensor, nn
from torch.optim import Optimizer

from wellcond._core.deferred_torch import is_dtensor, not_compiled
from wellcond.conditioning.storage.live_weight import LiveWeight
from wellcond.conditioning.storage.loading import invert_before_load, settle
from wellcond.errors import WeightError


class LiveModule(nn.Module):
    """Mixed into the class of a module with live parameters."""

    _wellcond: dict[str, LiveWeight]

    def _save_to_state_dict(self, destination: dict[str, Any], prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        for name, live in self._wellcond.items():
            for extra in live.rule.parameters:
                destination.pop(f"{prefix}{name}_{extra}", None)
            destination[prefix + name] = live.export(parameter_of(self, name))

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, metadata: Any, *rest: Any) -> None:
        invert_before_load(self, state_dict, prefix, metadata)  # done already unless this module was asked itself
        for name, live in self._wellcond.items():
            for extra in live.rule.parameters:
                state_dict.setdefault(f"{prefix}{name}_{extra}", self._parameters[f"{name}_{extra}"])
        super()._load_from_state_dict(state_dict, prefix, metadata, *rest)
        for name, live in self._wellcond.items():
            settle(live, parameter_of(self, name), state_dict.get(prefix + name))

    def register_parameter(self, name: str, param: nn.Parameter | None) -> None:
        """Set a live parameter; torch would ask for the attribute first, which computes it."""
        if name in self._wellcond and param is not None:
            self._parameters[name] = param
        else:
            super().register_parameter(name, param)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        for name, live in self._wellcond.items():
            live.moved(parameter_of(self, name), fn)
        return self

    def __reduce_ex__(self, protocol: Any) -> Any:
        return _revive, (type(self)._wellcond_base, type(self)._wellcond_names), self.__dict__  # type: ignore[attr-defined]

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)  # type: ignore[no-untyped-call]
        OWNERS.add(self)


OWNERS: WeakSet[LiveModule] = WeakSet()
_CLASSES: dict[tuple[type[nn.Module], tuple[str, ...]], type[nn.Module]] = {}


def install(owner: nn.Module, name: str, live: LiveWeight) -> None:
    """Have the readers of a parameter get its effective weight from now on."""
    known = live_weights(owner)
    if name in known:
        raise WeightError(f"'{name}' of {type(owner).__name__} is live already; remove_ the first conditioning")
    owner.__dict__["_wellcond"] = known | {name: live}
    for extra, parameter in live.rule.parameters.items():
        owner.register_parameter(f"{name}_{extra}", parameter)
    live.rule.holder = owner._parameters, name
    base = type(owner)._wellcond_base if _is_ours(owner) else type(owner)  # type: ignore[attr-defined]
    names = tuple(owner.__dict__["_wellcond"])
    owner.__class__ = _live_class(base, names)
    assert isinstance(owner, LiveModule)
    OWNERS.add(owner)
    live.stepped(parameter_of(owner, name))


def uninstall(owner: nn.Module, name: str) -> None:
    """Have the parameter used as it is; under another wrapper's class the live weight is gone, the class stays."""
    known = live_weights(owner)
    live = known.pop(name)
    live.rule.holder = None
    for extra in live.rule.parameters:
        del owner._parameters[f"{name}_{extra}"]
    owner.__dict__["_wellcond"] = known
    if _is_ours(owner):
        base: type[nn.Module] = type(owner)._wellcond_base  # type: ignore[attr-defined]
        owner.__class__ = _live_class(base, tuple(known)) if known else base


def live_weights(owner: nn.Module) -> dict[str, LiveWeight]:
    """Return the live weights of a module by parameter name, in a new dictionary."""
    return dict(owner.__dict__.get("_wellcond", {}))


def parameter_of(owner: nn.Module, name: str) -> Tensor:
    """Return a parameter itself, live or not."""
    weight = owner._parameters[name]
    assert weight is not None
    return weight


def live_owners(root: nn.Module) -> Iterator[tuple[str, nn.Module, str, LiveWeight]]:
    """Yield `(path, module, name, live weight)` of each live parameter in a model."""
    for path, module in root.named_modules():
        for name, live in live_weights(module).items():
            yield path, module, name, live


def _is_ours(owner: nn.Module) -> bool:
    return "_wellcond_base" in type(owner).__dict__


def _live_class(base: type[nn.Module], names: tuple[str, ...]) -> type[nn.Module]:
    if (base, names) not in _CLASSES:
        space: dict[str, Any] = {name: property(_reader(name)) for name in names}
        space |= {"_wellcond_base": base, "_wellcond_names": names, "__module__": base.__module__}
        space |= {"__qualname__": base.__qualname__, "__doc__": base.__doc__}
        _CLASSES[base, names] = type(base.__name__, (LiveModule, base), space)
    return _CLASSES[base, names]


def _reader(name: str) -> Callable[[Any], Tensor]:
    def read(self: Any) -> Tensor:
        weight: Tensor = self._parameters[name]
        live = self._wellcond.get(name)
        if live is None:
            return weight
        if is_dtensor(weight):
            live.sharded = True
            # Note [FSDP2 reads its parameters by attribute]: to swap shards for gathered weights it looks each up as
            # anybody does, and must find the parameter itself, or it would keep a computed tensor in its place. Who
            # asks shows in the caller's frame alone. Only sharded weights come here; `c.fold_()` switches it off.
            if sys._getframe(1).f_globals["__name__"].startswith("torch.distributed.fsdp"):
                return weight
        effective: Tensor = live(weight)
        return effective

    return read


def _revive(base: type[nn.Module], names: tuple[str, ...]) -> nn.Module:
    cls = _live_class(base, names)
    return cls.__new__(cls)


@not_compiled
def after_step(optimizer: Optimizer) -> None:
    """Bring every live parameter up to date; called after each step of any optimizer."""
    taken = {id(p) for group in optimizer.param_groups for p in group["params"] if p.grad is not None}
    for owner in list(OWNERS):
        for name, live in live_weights(owner).items():
            weight = parameter_of(owner, name)
            live.stepped(weight, told=id(weight) in taken)
