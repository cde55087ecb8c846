"""Folded: the parameter holds W + C, and the model is an ordinary one, at no cost."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, final

from torch import Tensor

from wellcond._core.user_warnings import warn_user
from wellcond.attention.storage import HALF_DTYPES, assign_, full
from wellcond.conditioning.method import Correction, FixedCorrection
from wellcond.conditioning.model_checks import tied_elsewhere
from wellcond.conditioning.storage.anchored_decay import AnchoredDecay
from wellcond.conditioning.storage.base import Added, Effective, WeightStorage
from wellcond.conditioning.storage.folded_weight import FoldedWeight
from wellcond.conditioning.storage.live_weight import LiveWeight
from wellcond.conditioning.target_weights import TargetWeight, untied
from wellcond.errors import CheckpointError, WeightError


def fold_refusal(correction: Correction) -> str:
    """Say why W + C cannot take the place of W in every parameter; empty if it can."""
    for weight in correction.weights if isinstance(correction, FixedCorrection) else ():
        if weight.parameter.dtype in HALF_DTYPES:
            return (
                f"'{weight.path}' is stored in {weight.parameter.dtype}, where a {correction.name} of "
                f"{weight.parts[0].strength:g} rounds away the diagonal of W; keep the weights in float32 (use "
                "autocast), or mode='live'"
            )
    elsewhere = tied_elsewhere(correction.weights)
    return elsewhere and f"{elsewhere}, and would hold W + C too; condition that as well, or use mode='live'"


def check_folded(correction: Correction) -> None:
    """Raise unless W + C can take the place of W in every parameter."""
    reason = fold_refusal(correction)
    if reason:
        raise WeightError(reason)


@final
class Folded(WeightStorage):
    """W + C in each parameter. A fixed C leaves the exact W at its entries, any other is inverted by its rule."""

    mode = "folded"

    def __init__(self, correction: Correction, decay: AnchoredDecay) -> None:
        super().__init__(correction)
        self.decay = decay

    def hold_(self) -> None:
        """Take the parameters as they are: they hold W + C already."""
        if self.fixed:
            self.decay.anchor([FoldedWeight(weight, self.fixed.entries(weight)) for weight in untied(self.weights)])

    def enter_(self, effective: Effective | None = None) -> None:
        """See `Storage.enter_`."""
        self.hold_()
        for folded in self.decay.folded:
            folded.add_()
        for weight in [] if self.fixed else untied(self.weights):
            assign_(weight.parameter, self._applied(weight) if effective is None else effective[id(weight.parameter)])

    def leave_(self) -> None:
        """See `Storage.leave_`: with the very bits of W if C is fixed and nobody else has written there."""
        for folded in self.decay.folded:
            folded.take_away_()
        self.decay.anchor([])
        inverted = [] if self.fixed else [(w.parameter, self.pair(w)[0]) for w in untied(self.weights)]
        for parameter, trained in inverted:
            assign_(parameter, trained)

    def effective(self) -> Effective | None:
        """See `WeightStorage.effective`."""
        return None if self.fixed else {id(w.parameter): full(w.parameter).clone() for w in self.weights}

    def pair(self, weight: TargetWeight) -> tuple[Tensor, Tensor]:
        """See `WeightStorage.pair`."""
        effective = full(weight.parameter)
        return self.correction.rule(weight).invert(effective), effective

    def _applied(self, weight: TargetWeight) -> Tensor:
        """Return W + C of a parameter that holds W."""
        return full(LiveWeight(self.correction.rule(weight)).export(weight.parameter))

    def added(self) -> Added:
        """Return nothing: no parameter is new."""
        return []

    def measured(self) -> tuple[float, float, float, float]:
        """Return zeros: C is in the weight."""
        return 0, 0, 0, 0

    def trained_loaded_(self, loaded: Collection[int]) -> None:
        """Put W + C where W was loaded, into parameters given by `id`."""
        for folded in self.decay.folded:
            if id(folded.weight.parameter) in loaded:
                folded.add_()
        for weight in [] if self.fixed else untied(self.weights):
            if id(weight.parameter) in loaded:
                assign_(weight.parameter, self._applied(weight))

    def state(self) -> dict[str, Any]:
        """Return the exact W at the entries that a fixed C changes."""
        if not self.fixed:
            return {}
        return {"entries": {folded.weight.path: folded.gathered().clone() for folded in self.decay.folded}}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """See `Storage.load_state`."""
        saved, weights = state.get("entries", {}), {folded.weight.path: folded for folded in self.decay.folded}
        if saved.keys() != weights.keys():
            raise CheckpointError("the state belongs to another model: its conditioned parameters have other names")
        for path, folded in weights.items():
            folded.check_state(saved[path])
        twice = [path for path, folded in weights.items() if folded.restore(saved[path])]
        if twice:
            warn_user(
                f"'{twice[0]}' held W + C when the model was conditioned, and the state shows that C was added once "
                "more: W + C was put back"
            )
