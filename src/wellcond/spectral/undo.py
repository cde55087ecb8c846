"""What puts a model back as it was when a change of its conditioning fails: numbers, modules, rules."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from wellcond.live import live_rules
from wellcond.rules import Rule, computing
from wellcond.spectral.marks import marks_of, restore_marks_
from wellcond.spectral.shift import Entries, local_entries


def numbers_of(stored: Tensor, change: Entries | None) -> Callable[[], None]:
    """What puts the numbers of a parameter back: those at a correction's entries, or all of them."""
    local = stored.detach()
    local = local.to_local() if isinstance(local, DTensor) else local
    mine = None if change is None else local_entries(stored.detach(), change)
    before = local.clone() if mine is None else mine.take(local)

    @torch.no_grad()
    def restore() -> None:
        if mine is None:
            local.copy_(before)
        else:
            mine.put_(local, before)

    return restore


def modules_of(owners: Sequence[nn.Module]) -> Callable[[], None]:
    """What puts classes, rules, parameters and marks of some modules back."""
    found = [
        (owner, owner.__class__, owner.__dict__.get("_wellcond"), dict(owner._parameters), marks_of(owner))
        for owner in owners
    ]
    rules = [(owner, name, rule, _rule(rule)) for owner in owners for name, rule in live_rules(owner).items()]

    def restore() -> None:
        for owner, cls, live, parameters, marks in found:
            owner.__class__ = cls
            owner.__dict__.pop("_wellcond", None)
            if live is not None:
                owner.__dict__["_wellcond"] = live
            owner._parameters.clear()  # the same dictionary: rules hold it
            owner._parameters.update(parameters)
            restore_marks_(owner, marks)
        for owner, name, rule, state in rules:
            _restore_rule(rule, state, owner._parameters[name])

    return restore


def _rule(rule: Rule) -> tuple[dict[str, object], dict[str, Tensor], Tensor | None]:
    written = rule.kept.clone() if rule.written and rule.kept is not None else None
    return dict(rule.__dict__), {name: tensor.clone() for name, tensor in rule.state().items()}, written


@computing()
def _restore_rule(
    rule: Rule, state: tuple[dict[str, object], dict[str, Tensor], Tensor | None], weight: Tensor | None
) -> None:
    before, tensors, written = state
    rule.__dict__.clear()
    rule.__dict__.update(before)
    rule.load(tensors)
    if written is not None and rule.kept is not None:
        rule.kept.copy_(written)  # an average of models, written there by somebody else
        rule._written = -1
    elif weight is not None:
        rule.renew(weight)
