"""A model of the user's own from a function of no arguments: a new one each time, the same for equal seeds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from wellcond._core.global_generators import restored_generators, seed_generators
from wellcond._core.short_repr import short_repr
from wellcond.errors import ModelNameError
from wellcond.inputs.own_functions import refusing


@dataclass(frozen=True)
class OwnModel:
    """A function that builds a model, or a class whose constructor needs no arguments.

    >>> own = OwnModel(lambda: nn.Linear(2, 2))
    >>> first, again, other = (own.built(seed).weight for seed in (0, 0, 1))
    >>> bool((first == again).all()), bool((first == other).all())
    (True, False)
    """

    build: Callable[[], nn.Module]

    @property
    def name(self) -> str:
        """What it is called in messages and tables."""
        name = str(getattr(self.build, "__name__", type(self.build).__name__))
        return name if name.isidentifier() else "build_model"

    def built(self, seed: int) -> nn.Module:
        """Build a model, the global generators being seeded meanwhile and put back."""
        devices = range(torch.cuda.device_count())
        with restored_generators(), torch.random.fork_rng(devices), refusing(f"{self.name}() raised", ModelNameError):
            seed_generators("model", seed)
            torch.cuda.manual_seed_all(seed)
            model = self.build()
        if not isinstance(model, nn.Module):
            raise ModelNameError(f"{self.name}() returns {short_repr(model)}; it must return a torch.nn.Module")
        for name, parameter in model.named_parameters():
            if is_lazy(parameter) or parameter.is_meta:
                why = (
                    "on the meta device" if not is_lazy(parameter) else "lazy: run the model once before it is returned"
                )
                raise ModelNameError(f"{self.name}() returns a model whose '{name}' has no numbers, as it is {why}")
        return model

    def checked(self) -> nn.Module:
        """Build it for seed 0, and refuse a function that returns one model twice, or others for equal seeds."""
        model, again = self.built(0), self.built(0)
        places = {p.data_ptr() for p in model.parameters() if p.numel()}
        if model is again or any(p.data_ptr() in places for p in again.parameters() if p.numel()):
            raise ModelNameError(
                f"{self.name}() returns the same weights twice, and every run trains its own: build one each time"
            )
        first, second = model.state_dict(), again.state_dict()
        other = [name for name in first if name not in second or not _same(first[name], second[name])]
        if other or len(first) != len(second):
            what = f"'{other[0]}'" if other else "parameters"
            raise ModelNameError(
                f"{self.name}() returns other {what} each time, and arms are paired by equal seeds: draw from the "
                "global generators of torch, NumPy or Python, which are seeded"
            )
        return model


def _same(a: object, b: object) -> bool:
    if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor):
        return a.shape == b.shape and a.dtype == b.dtype and torch.equal(a.nan_to_num(), b.nan_to_num())
    return True  # extra state of a module
