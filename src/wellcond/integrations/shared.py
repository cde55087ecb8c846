"""Checks and messages that the callbacks of all training loops share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import nn

from wellcond.conditioning.handle import Conditioning
from wellcond.errors import WeightError

NAME = "wellcond"  # under which a checkpoint has the state


def missing_library(library: str, extra: str, error: ImportError) -> ImportError:
    """Return the error to raise where an optional library cannot be imported."""
    return ImportError(f"{library} cannot be imported ({error}): pip install 'wellcond[{extra}]'", name=library)


def check_model(own: nn.Module, model: nn.Module, what: str = "conditioned") -> None:
    """Raise unless the conditioned or monitored network is what is trained, however either is wrapped.

    >>> import wellcond as wc
    >>> block = nn.TransformerEncoderLayer(8, 2, batch_first=True)
    >>> check_model(wc.condition_(block, "polar").model, nn.Sequential(block))
    """
    if {id(module) for module in own.modules()}.isdisjoint(id(module) for module in model.modules()):
        raise WeightError(
            f"the {type(model).__name__} in training is not the {type(own).__name__} that was {what}: give the very "
            "object that is trained (a model_init or a deep copy makes another)"
        )


def attach(handle: Conditioning, optimizers: Sequence[Any]) -> None:
    """Attach a handle to those of a loop's optimizers that hold its weights; to none is an error, as `attach` says."""
    concerned = [optimizer for optimizer in optimizers if handle.concerns(optimizer)]
    for optimizer in concerned or optimizers[:1]:
        handle.attach(optimizer)
