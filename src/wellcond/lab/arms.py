"""What is compared: each scheme of a recipe, and the controls that separate spectrum from scale."""

from __future__ import annotations

import copy
import hashlib
import re
import warnings
from dataclasses import dataclass
from typing import Any

from torch import nn

import wellcond as wc
from wellcond.errors import WellcondError
from wellcond.lab.recipe import ONLY_SCALE, Recipe
from wellcond.lab.settings import Arm
from wellcond.spectral.handle import Conditioning


@dataclass(frozen=True)
class Scheme:
    """One scheme to train with.

    Args:
        name: in tables.
        arm: of the recipe.
        control_of: the scheme whose scale it has, if it is a control.
    """

    name: str
    arm: Arm
    control_of: str | None = None

    @property
    def folder(self) -> str:
        """A name for its folder: what a file system takes, and no two schemes share.

        >>> Scheme("shift 1", Arm()).folder
        'shift-1-7e1e04'
        """
        plain = re.sub(r"[^a-z0-9]+", "-", self.name.lower()).strip("-")[:40]
        return f"{plain}-{hashlib.sha256(self.name.encode(errors='surrogatepass')).hexdigest()[:6]}"

    def planned(self, model: nn.Module, seed: int) -> wc.Plan | None:
        """What it would write into a fresh model, from shapes alone; None if it leaves the model as it is."""
        init: Any = self.arm.init
        try:
            if self.control_of is not None:
                return wc.plan(model, "scale_matched", seed=seed, of=_with_options(init, self.arm.options))
            return None if init is None else wc.plan(model, init, seed=seed, **self.arm.options)
        except WellcondError as error:
            raise WellcondError(f"scheme '{self.name}': {error}") from error

    def initialise_(self, model: nn.Module, seed: int) -> None:
        """Give a fresh model its first weights, in place."""
        plan = self.planned(model, seed)
        if plan is not None:
            plan.apply_()

    def condition_(self, model: nn.Module) -> Conditioning | None:
        """Condition it, if the scheme does."""
        if self.arm.condition is None:
            return None
        strength: dict[str, Any] = {} if self.arm.strength is None else {"strength": self.arm.strength}
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # that attention starts one-hot is what is compared
                return wc.condition_(model, self.arm.condition, as_original=True, **strength)  # nothing was loaded yet
        except WellcondError as error:
            raise WellcondError(f"scheme '{self.name}': {error}") from error


def schemes_of(recipe: Recipe) -> list[Scheme]:
    """The recipe's schemes in order, each control behind its own, several strengths one by one.

    >>> from wellcond.lab.recipe import load_recipe
    >>> [scheme.name for scheme in schemes_of(load_recipe("digits"))][2:4]
    ['conditioned', 'conditioned, scale only']
    """
    found = []
    for name, arm in recipe.arms():
        found.append(Scheme(name, arm))
        if arm.control:
            found.append(Scheme(f"{name}{ONLY_SCALE}", arm, control_of=name))
    return found


def check_schemes(recipe: Recipe, model: nn.Module) -> None:
    """See that every scheme can be applied to the model, so that what cannot be is said before anything is trained.

    Nothing is drawn: of a model of a billion parameters that can take an hour.
    """
    for scheme in schemes_of(recipe):
        scheme.planned(model, seed=0)
        if scheme.arm.condition is not None:
            scheme.condition_(copy.deepcopy(model))


def _with_options(init: Any, options: dict[str, Any]) -> Any:
    return (init, options) if options else init
