"""All or nothing: put a model and its handle back as they were when a change of its conditioning fails."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor, nn

from wellcond._core.deferred_torch import is_dtensor
from wellcond.conditioning.correction_marks import marks_of, restore_marks_
from wellcond.conditioning.storage.live_parameter import live_weights
from wellcond.conditioning.storage.live_weight import LiveWeight
from wellcond.conditioning.storage.rule import computing
from wellcond.conditioning.target_weights import Entries

if TYPE_CHECKING:
    from wellcond.conditioning.handle import Conditioning

Written = Literal["none", "corrected", "all"]


@contextmanager
def all_or_nothing(handle: Conditioning, written: Written = "corrected") -> Iterator[None]:
    """Put model and handle back if the block fails, also by Ctrl-C or a warning that is an error.

    `written` says which numbers of the parameters may change: none, those that a correction changes, or all.
    """
    undo = handle.snapshot(written)
    try:
        yield
    except BaseException:
        for step in undo:
            step()
        raise


def attributes_of(*objects: object) -> Callable[[], None]:
    """Return what puts the attributes of some objects back."""
    found = [(each, dict(each.__dict__)) for each in objects]

    def restore() -> None:
        for each, before in found:
            each.__dict__.clear()
            each.__dict__.update(before)

    return restore


def numbers_of(parameter: Tensor, change: Entries | None) -> Callable[[], None]:
    """Return what puts the numbers of a parameter back: those at a correction's entries, or all of them."""
    local = parameter.detach()
    local = local.to_local() if is_dtensor(local) else local
    mine = None if change is None else change.local(parameter.detach())
    # Whole weights are kept outside the device's memory, which a second copy may not fit into.
    before = local.to("cpu", copy=True) if mine is None else mine.take(local)

    @torch.no_grad()
    def restore() -> None:
        if mine is None:
            local.copy_(before)
        else:
            mine.put_(local, before)

    return restore


def modules_of(owners: Sequence[nn.Module]) -> Callable[[], None]:
    """Return what puts classes, live weights, parameters and marks of some modules back."""
    found = [
        (owner, owner.__class__, owner.__dict__.get("_wellcond"), dict(owner._parameters), marks_of(owner))
        for owner in owners
    ]
    live = [(owner, name, _live(weight)) for owner in owners for name, weight in live_weights(owner).items()]

    def restore() -> None:
        for owner, cls, before, parameters, marks in found:
            owner.__class__ = cls
            owner.__dict__.pop("_wellcond", None)
            if before is not None:
                owner.__dict__["_wellcond"] = before
            owner._parameters.clear()  # the same dictionary: rules hold it
            owner._parameters.update(parameters)
            restore_marks_(owner, marks)
        for owner, name, put_back in live:
            parameter = owner._parameters[name]
            assert parameter is not None
            put_back(parameter)

    return restore


def _live(live: LiveWeight) -> Callable[[Tensor], None]:
    """Return what puts a live weight and its rule back, for the parameter as it is then."""
    attributes_back, revision = attributes_of(live, live.rule), live.rule.revision
    tensors = {name: tensor.clone() for name, tensor in live.rule.state().items()}
    written = live.kept.clone() if live.written and live.kept is not None else None

    @computing()
    def restore(parameter: Tensor) -> None:
        attributes_back()
        live.rule.load(tensors, parameter)
        live.rule.revision = revision
        if written is not None and live.kept is not None:
            live.kept.copy_(written)  # an average of models, written there by somebody else
            live._written = -1
        else:
            live.renew(parameter)

    return restore
