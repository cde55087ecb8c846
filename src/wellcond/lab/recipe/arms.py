"""Arms of a comparison: each line of a recipe, and the controls that show what its gain is due to."""

from __future__ import annotations

import copy
import hashlib
import re
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

import wellcond as wc
from wellcond.attention.layers import LayerFilter
from wellcond.conditioning.handle import Conditioning
from wellcond.errors import WellcondError
from wellcond.init.compose import as_scheme
from wellcond.lab.models import OwnModel, lab_model
from wellcond.lab.recipe.controls import CONTROLS, Control, control_name
from wellcond.lab.recipe.recipe import Recipe
from wellcond.lab.recipe.settings import ArmSettings
from wellcond.lab.tasks.base import Task
from wellcond.scale.measure_scales import measure_scales
from wellcond.scale.scaled_coordinates import scale_coordinates_

Shown = Callable[[nn.Module], LayerFilter]  # the attention layers of a model; None for those of known classes


def by_class(model: nn.Module) -> LayerFilter:
    """Leave it to each function to find attention by its classes."""
    return None


@dataclass(frozen=True)
class Arm:
    """One line of a comparison: what its settings change about the recipe's model and training."""

    name: str
    settings: ArmSettings
    control_of: str | None = None  # the arm that it is a control of, if it is one
    control: Control | None = None  # which one

    @property
    def folder(self) -> str:
        """Return a name for its folder: what a file system takes, and no two arms share.

        >>> Arm("shift 1", ArmSettings()).folder
        'shift-1-7e1e04'
        """
        plain = re.sub(r"[^a-z0-9]+", "-", self.name.lower()).strip("-")[:40]
        return f"{plain}-{hashlib.sha256(self.name.encode(errors='surrogatepass')).hexdigest()[:6]}"

    def built(self, recipe: Recipe, task: Task, seed: int, own: OwnModel | None = None) -> nn.Module:
        """Build a fresh model: the user's own if there is one, else with the arm's own options beside the recipe's."""
        if own is not None:
            return own.built(seed)
        return lab_model(recipe.model.name, recipe.model.options | self.settings.model, task, seed)

    def planned(self, model: nn.Module, seed: int, shown: Shown = by_class) -> wc.Plan | None:
        """Plan what it writes into a fresh model, from shapes alone; None if it leaves the model as it is.

        Of a calibrated control it is what the arm itself writes, which is measured and not kept.
        """
        init: Any = self.settings.init
        options = self.settings.options
        try:
            scheme = None if self.control is None else CONTROLS[self.control].scheme
            if scheme is not None:
                return wc.plan(model, scheme, seed=seed, layers=shown(model), of=as_scheme(init, options))
            return None if init is None else wc.plan(model, init, seed=seed, layers=shown(model), **options)
        except WellcondError as error:
            raise WellcondError(f"arm '{self.name}': {error}") from error

    def initialise_(
        self,
        model: nn.Module,
        seed: int,
        batch: Callable[[nn.Module], Any] | None = None,
        shown: Shown = by_class,
    ) -> None:
        """Give a fresh model its first weights, in place; what is calibrated needs what makes a batch for it."""
        plan = self.planned(model, seed, shown)
        if plan is not None and self.control != "calibrated":
            plan.apply_()
        targets = self._targets(model, seed, batch, shown)
        try:
            if targets is not None:
                assert batch is not None
                wc.calibrate_(model, batch(model), **targets)
            if self.settings.coordinates != 1:
                scale_coordinates_(model, self.settings.coordinates, shown(model))
            if self.settings.balance:
                wc.balance_(model, layers=shown(model))
        except WellcondError as error:
            raise WellcondError(f"arm '{self.name}': {error}") from error

    def _targets(
        self, model: nn.Module, seed: int, batch: Callable[[nn.Module], Any] | None, shown: Shown
    ) -> dict[str, Any] | None:
        """What the weights are calibrated to, as `wc.calibrate_` takes it; None if they are not."""
        if self.control != "calibrated":
            wanted = self.settings.calibrate
            return None if wanted is False else {} if wanted is True else wanted.model_dump()
        assert batch is not None
        own = copy.deepcopy(model)
        self.planned(own, seed, shown).apply_()  # type: ignore[union-attr]
        scales = measure_scales(own, batch(model))
        return {
            "beta": {name: list(s.beta) for name, s in scales.items() if s.beta and None not in s.beta},
            "branch": {name: s.branch for name, s in scales.items() if s.branch},
        }

    def condition_(self, model: nn.Module, shown: Shown = by_class) -> Conditioning | None:
        """Condition a model, if the arm does."""
        if self.settings.condition is None:
            return None
        strength: dict[str, Any] = {} if self.settings.strength is None else {"strength": self.settings.strength}
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # that attention starts one-hot is what is compared
                # As original: nothing was loaded yet.
                layers = shown(model)
                return wc.condition_(model, self.settings.condition, as_original=True, layers=layers, **strength)
        except WellcondError as error:
            raise WellcondError(f"arm '{self.name}': {error}") from error

    def control_(
        self, model: nn.Module, optimizer: torch.optim.Optimizer, shown: Shown = by_class
    ) -> wc.Control | None:
        """Keep a model's attention within the arm's bands, if it has some."""
        if self.settings.bands is None:
            return None
        try:
            # What it cannot act on is compared as it is.
            return wc.control_(model, optimizer, **{"alarms": False, "layers": shown(model), **self.settings.bands})
        except (WellcondError, TypeError) as error:
            raise WellcondError(f"arm '{self.name}': bands: {error}") from error

    def penalty(self, model: nn.Module, shown: Shown = by_class) -> Callable[[], Tensor] | None:
        """What the arm adds to the loss of a model that is being trained, if anything."""
        strength = self.settings.penalty
        if not strength:
            return None
        try:
            penalty = wc.optim.OrthogonalityPenalty(model, layers=shown(model))
        except WellcondError as error:
            raise WellcondError(f"arm '{self.name}': penalty: {error}") from error
        return lambda: strength * penalty()


def arms_of(recipe: Recipe) -> list[Arm]:
    """Return the recipe's arms in order, controls behind their own, several strengths one by one.

    >>> from wellcond.lab.recipe.recipe import load_recipe
    >>> [arm.name for arm in arms_of(load_recipe("digits"))][1:4]
    ['mimetic', 'mimetic, scale only', 'mimetic, rotated']
    """
    found = []
    for name, settings in recipe.arm_settings():
        found.append(Arm(name, settings))
        found += [Arm(control_name(name, kind), settings, name, kind) for kind in settings.control]
    return found


def check_arms(recipe: Recipe, shared: nn.Module, task: Task, shown: Shown = by_class) -> None:
    """Refuse an arm that cannot be applied to the model that arms share, or to its own, before anything is trained.

    No scheme draws: of a model of a billion parameters that can take an hour.
    """
    for arm in arms_of(recipe):
        try:
            model = arm.built(recipe, task, seed=0) if arm.settings.model else shared
        except WellcondError as error:
            raise WellcondError(f"arm '{arm.name}': {error}") from error
        arm.planned(model, 0, shown)
        if arm.settings.condition is not None:
            arm.condition_(copy.deepcopy(model), shown)
        arm.penalty(model, shown)
        if arm.settings.bands is not None:
            arm.control_(model, torch.optim.SGD(model.parameters(), lr=0.0), shown).remove_()  # type: ignore[union-attr]
