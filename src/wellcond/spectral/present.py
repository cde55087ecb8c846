"""The conditioning that is on a model already: a second one on the same weights would add to W + C."""

from __future__ import annotations

from contextlib import suppress

from wellcond.errors import WeightError
from wellcond.spectral.handle import Conditioning, active_handles


def present(handle: Conditioning) -> list[Conditioning]:
    """The active handles, of any model, that correct something this one would correct."""
    mine, found = handle.claims().keys(), []
    for other in active_handles():
        with suppress(KeyError):  # a module that it conditioned is no longer in its model
            if mine & other.claims().keys():
                found.append(other)
    return found


def same(handle: Conditioning, other: Conditioning, mode: str | None, safe: bool) -> bool:
    """Whether a handle does what another would: None is any mode, and a strength that is chosen was chosen before."""
    alike = (handle.method, handle.options) == (other.method, other.options) and mode in (None, other.mode)
    if safe and other.chosen:
        handle = handle.with_strength(other.strength)
    return alike and handle.claims() == other.claims()


def refuse(handle: Conditioning, others: list[Conditioning]) -> None:
    """Say what is there and how to go on."""
    there = others[0]
    at = there.layers[0].name or type(there.layers[0].module).__name__
    more = f" and {len(others) - 1} more" if len(others) > 1 else ""
    raise WeightError(
        f"'{at}' is conditioned already: {there}{more}. With the handle c that wc.condition_ returned, c.strength_(…) "
        f"changes its strength and c.remove_() takes it off, then '{handle.method}' can be put on; roles that share a "
        "weight are conditioned in one call, strength={'query': …, 'value': …}"
    )
