"""A parameter that is used through a rule: the model stores `W`, every reader of `module.weight` gets `rule(W)`.

The parameter keeps its name, its identity and its place, so optimizers, DDP, FSDP2, EMA, `functional_call` and groups
of parameters by name see an ordinary model. Only reading the attribute differs, and what a state dictionary holds: the
effective weight, under the ordinary key. One class is made per module class, not per module, so that compiled graphs
are shared; `torch.nn.utils.parametrize` renames the parameter and fails on all of these points.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Any, Self
from weakref import WeakSet

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer

from wellcond.errors import WeightError
from wellcond.loading import prepare, settle
from wellcond.rules import Rule


class Live(nn.Module):
    """Mixed into the class of a module with live parameters."""

    _wellcond: dict[str, Rule]

    def _save_to_state_dict(self, destination: dict[str, Any], prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        for name, rule in self._wellcond.items():
            for extra in rule.parameters:
                destination.pop(f"{prefix}{name}_{extra}", None)
            destination[prefix + name] = rule.export(stored_weight(self, name))

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, metadata: Any, *rest: Any) -> None:
        prepare(self, state_dict, prefix, metadata)  # done already unless this module was asked itself
        for name, rule in self._wellcond.items():
            for extra in rule.parameters:
                state_dict.setdefault(f"{prefix}{name}_{extra}", self._parameters[f"{name}_{extra}"])
        super()._load_from_state_dict(state_dict, prefix, metadata, *rest)
        for name, rule in self._wellcond.items():
            settle(rule, stored_weight(self, name), state_dict.get(prefix + name))

    def register_parameter(self, name: str, param: nn.Parameter | None) -> None:
        """Set a stored parameter; torch would ask for the attribute first, which computes it."""
        if name in self._wellcond and param is not None:
            self._parameters[name] = param
        else:
            super().register_parameter(name, param)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        for name, rule in self._wellcond.items():
            rule.moved(stored_weight(self, name), fn)
        return self

    def __reduce_ex__(self, protocol: Any) -> Any:
        return _revive, (type(self)._wellcond_base, type(self)._wellcond_names), self.__dict__  # type: ignore[attr-defined]

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)  # type: ignore[no-untyped-call]
        OWNERS.add(self)


OWNERS: WeakSet[Live] = WeakSet()
_CLASSES: dict[tuple[type[nn.Module], tuple[str, ...]], type[nn.Module]] = {}


def install(owner: nn.Module, name: str, rule: Rule) -> None:
    """Have a parameter used through a rule from now on."""
    known = live_rules(owner)
    if name in known:
        raise WeightError(f"'{name}' of {type(owner).__name__} is live already; remove_ the first conditioning")
    owner.__dict__["_wellcond"] = known | {name: rule}
    for extra, parameter in rule.parameters.items():
        owner.register_parameter(f"{name}_{extra}", parameter)
    rule._holder = owner._parameters, name
    base = type(owner)._wellcond_base if _is_ours(owner) else type(owner)  # type: ignore[attr-defined]
    names = tuple(owner.__dict__["_wellcond"])
    owner.__class__ = _live_class(base, names)
    assert isinstance(owner, Live)
    OWNERS.add(owner)
    rule.stepped(stored_weight(owner, name))


def uninstall(owner: nn.Module, name: str) -> None:
    """Have the parameter used as it is stored; under another wrapper's class the rule is gone, the class stays."""
    rules = live_rules(owner)
    rule = rules.pop(name)
    rule._holder = None
    for extra in rule.parameters:
        del owner._parameters[f"{name}_{extra}"]
    owner.__dict__["_wellcond"] = rules
    if _is_ours(owner):
        base: type[nn.Module] = type(owner)._wellcond_base  # type: ignore[attr-defined]
        owner.__class__ = _live_class(base, tuple(rules)) if rules else base


def live_rules(owner: nn.Module) -> dict[str, Rule]:
    """The rules of a module's live parameters by name, in a new dictionary."""
    return dict(owner.__dict__.get("_wellcond", {}))


def stored_weight(owner: nn.Module, name: str) -> Tensor:
    """What the module stores, live or not."""
    weight = owner._parameters[name]
    assert weight is not None
    return weight


def live_owners(root: nn.Module) -> Iterator[tuple[str, nn.Module, str, Rule]]:
    """`(path, module, name, rule)` of each live parameter in a model."""
    for path, module in root.named_modules():
        for name, rule in live_rules(module).items():
            yield path, module, name, rule


def _is_ours(owner: nn.Module) -> bool:
    return "_wellcond_base" in type(owner).__dict__


def _live_class(base: type[nn.Module], names: tuple[str, ...]) -> type[nn.Module]:
    if (base, names) not in _CLASSES:
        space: dict[str, Any] = {name: property(_reader(name)) for name in names}
        space |= {"_wellcond_base": base, "_wellcond_names": names, "__module__": base.__module__}
        space |= {"__qualname__": base.__qualname__, "__doc__": base.__doc__}
        _CLASSES[base, names] = type(base.__name__, (Live, base), space)
    return _CLASSES[base, names]


def _reader(name: str) -> Callable[[Any], Tensor]:
    def read(self: Any) -> Tensor:
        weight: Tensor = self._parameters[name]
        rule = self._wellcond.get(name)
        if rule is None:
            return weight
        if isinstance(weight, DTensor):
            rule._sharded = True
            if sys._getframe(1).f_globals["__name__"].startswith("torch.distributed.fsdp"):
                return weight  # FSDP2 looks its own parameter up by attribute, and must find it
        effective: Tensor = rule(weight)
        return effective

    return read


def _revive(base: type[nn.Module], names: tuple[str, ...]) -> nn.Module:
    cls = _live_class(base, names)
    return cls.__new__(cls)


@torch.compiler.disable  # type: ignore[untyped-decorator]
def after_step(optimizer: Optimizer) -> None:
    """Bring every live parameter up to date; called after each step of any optimizer."""
    taken = {id(p) for group in optimizer.param_groups for p in group["params"] if p.grad is not None}
    for owner in list(OWNERS):
        for name, rule in live_rules(owner).items():
            weight = stored_weight(owner, name)
            if id(weight) in taken and not rule.written:
                rule._source = None  # optimizers that write into `weight.data` leave its version as it is
            rule.stepped(weight)
