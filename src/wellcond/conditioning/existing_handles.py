"""The handles that are on models already: kept by their models, found again, and not doubled."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

from torch import nn

from wellcond._core.checked import checked
from wellcond.attention.paths import unwrap
from wellcond.conditioning.method import Method
from wellcond.errors import CheckpointError, WeightError

if TYPE_CHECKING:
    from wellcond.conditioning.handle import Conditioning

HANDLES = "_wellcond_handles"  # in the root module of a conditioned model
ACTIVE: WeakSet[Conditioning] = WeakSet()


class ModelHandles(list["Conditioning"]):
    """Kept by the model, so that a handle nobody holds still watches; a copy of the model starts with none.

    Attributes:
        lost: whether the model is a copy of a folded one.
    """

    def __init__(self, handles: Iterable[Conditioning] = (), lost: bool = False) -> None:
        super().__init__(handles)
        self.lost = lost

    def __reduce_ex__(self, protocol: Any) -> Any:
        return ModelHandles, ((), self.lost or any(handle.mode == "folded" for handle in self))


def keep_handle(handle: Conditioning, keep: bool = True) -> None:
    """Have a model keep or forget a handle; the model without wrappers, since one may be gone before the model is."""
    root = unwrap(handle.model).__dict__
    others = [each for each in root.get(HANDLES, []) if each is not handle]
    _set_handles(handle, keep, ModelHandles([*others, handle] if keep else others))


def snapshot_of_handles(handle: Conditioning) -> Callable[[], None]:
    """Return what has a model keep or forget a handle as it does now."""
    return partial(_set_handles, handle, handle in ACTIVE, unwrap(handle.model).__dict__.get(HANDLES))


def _set_handles(handle: Conditioning, active: bool, handles: ModelHandles | None) -> None:
    (ACTIVE.add if active else ACTIVE.discard)(handle)
    root = unwrap(handle.model).__dict__
    root.pop(HANDLES, None)
    root |= {} if handles is None else {HANDLES: handles}


@checked
def handles_of(model: nn.Module) -> list[Conditioning]:
    """Return the handles of a model, of what it contains and of what contains it; raise for a copy of a folded one.

    A folded model that was copied holds W + C, and nobody knows C any more.

    >>> import wellcond as wc
    >>> model = nn.TransformerEncoderLayer(8, 2, batch_first=True)
    >>> _ = wc.condition_(model, "polar")
    >>> [handle.method for handle in wc.handles_of(model)]
    ['polar']
    """
    if any(getattr(module.__dict__.get(HANDLES), "lost", False) for module in model.modules()):
        raise CheckpointError(
            "this model is a copy of a folded one, so it holds W + C without knowing C: load into the original and "
            "copy that, or call wc.condition_(copy, …, as_original=False) first"
        )
    return handles_around(model)


def handles_around(model: nn.Module) -> list[Conditioning]:
    """Return the handles of a model, of what it contains and of what contains it; none for a copy."""
    inside, root = {id(module) for module in model.modules()}, unwrap(model)
    return [
        handle
        for handle in ACTIVE
        if id(unwrap(handle.model)) in inside or any(module is root for module in handle.model.modules())
    ]


def handles_with_claims_of(method: Method) -> list[Conditioning]:
    """Return the active handles, of any model, that correct something a method would correct."""
    mine, found = method.claims().keys(), []
    for other in ACTIVE:
        with suppress(KeyError):  # a module that it conditioned is no longer in its model
            if other.active and mine & other.claims().keys():
                found.append(other)
    return found


def does_the_same(handle: Conditioning, method: Method, mode: str | None, safe: bool) -> bool:
    """Return whether a handle does what a method would: None is any mode, a chosen strength was chosen before."""
    alike = (method.name, method.options) == (handle.method, handle.options) and mode in (None, handle.mode)
    if safe and handle.chosen:
        method = method.with_strength(handle.strength)
    return alike and method.claims() == handle.claims()


def refuse_second(method: Method, others: list[Conditioning]) -> None:
    """Raise for a conditioning of what is conditioned already, and say how to go on."""
    there = others[0]
    at = there.layers[0].name or type(there.layers[0].module).__name__
    more = f" and {len(others) - 1} more" if len(others) > 1 else ""
    raise WeightError(
        f"'{at}' is conditioned already: {there}{more}. With the handle c that wc.condition_ returned, c.strength_(…) "
        f"changes its strength and c.remove_() takes it off, then '{method.name}' can be put on; roles that share a "
        "weight are conditioned in one call, strength={'query': …, 'value': …}"
    )
