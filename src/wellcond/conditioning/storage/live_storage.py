"""Live: the parameter holds W, and every reader of it gets the effective weight."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from time import perf_counter
from typing import Any, final

import torch
from torch import Tensor

from wellcond.attention.layouts import AnyLayout
from wellcond.attention.storage import assign_, full
from wellcond.conditioning.model_checks import check_unwrapped
from wellcond.conditioning.storage.base import Added, Effective, WeightStorage
from wellcond.conditioning.storage.live_parameter import install, live_weights, uninstall
from wellcond.conditioning.storage.live_weight import LiveWeight
from wellcond.conditioning.storage.loading import guard_
from wellcond.conditioning.storage.optimizer_hooks import hear_steps
from wellcond.conditioning.target_weights import TargetWeight, untied
from wellcond.errors import CheckpointError


@final
class Live(WeightStorage):
    """A rule at work in each parameter, see `live_parameter.py`."""

    mode = "live"

    def live(self, weight: TargetWeight) -> LiveWeight:
        """Return the effective weight of a parameter."""
        return live_weights(weight.owner)[weight.name]

    def enter_(self, effective: Effective | None = None) -> None:
        """See `Storage.enter_`."""
        if self.correction.adds_parameters:
            check_unwrapped(self.correction.model, self.correction.name)
        shared: dict[tuple[int, tuple[AnyLayout, ...]], LiveWeight] = {}
        for weight in self.weights:
            key = id(weight.parameter), tuple(part.layout for part in weight.parts)
            live = shared.get(key) or LiveWeight(self.correction.rule(weight))
            if live.rule.parameters:
                shared[key] = live  # tied weights share what is trained beside them
            install(weight.owner, weight.name, live)
        guard_(self.correction.model)
        hear_steps()
        for weight in self.weights if effective is not None else ():
            self.live(weight).loaded(weight.parameter, (effective or {})[id(weight.parameter)])

    def leave_(self) -> None:
        """See `Storage.leave_`."""
        for weight in self.weights:
            uninstall(weight.owner, weight.name)
        guard_(self.correction.model)

    def effective(self) -> Effective | None:
        """See `WeightStorage.effective`."""
        if self.fixed:
            return None
        return {id(w.parameter): full(self.live(w).export(w.parameter)).clone() for w in self.weights}

    def pair(self, weight: TargetWeight) -> tuple[Tensor, Tensor]:
        """See `WeightStorage.pair`."""
        return full(weight.parameter), full(self.live(weight).export(weight.parameter))

    def added(self) -> Added:
        """Return what the rules train."""
        rules = [(weight, self.live(weight).rule) for weight in self.weights]
        return [(f"{w.path}_{key}", rule.extra(key), w.parameter) for w, rule in rules for key in rule.parameters]

    def trained_loaded_(self, loaded: Collection[int]) -> None:
        """Do nothing: the parameters hold W."""

    def stepped(self) -> None:
        """Tell the rules of a step, in a loop that changes the weights without a torch optimizer."""
        for weight in self.weights:
            self.live(weight).stepped(weight.parameter)

    def state(self) -> dict[str, Any]:
        """Return W, since a model's own state has the effective weights, and what the rules remember."""
        for weight in self.weights:
            self.live(weight).rule.settle(weight.parameter)
        return {
            "weights": {weight.path: full(weight.parameter).clone() for weight in untied(self.weights)},
            "rules": {weight.path: self.live(weight).rule.state() for weight in self.weights},
        }

    def load_state(self, state: Mapping[str, Any]) -> None:
        """See `Storage.load_state`."""
        mine, trained = self.state(), state.get("weights", {})
        if any(state.get(part, {}).keys() != mine[part].keys() for part in ("weights", "rules")):
            raise CheckpointError("the state belongs to another model: its conditioned parameters have other names")
        for path, value in trained.items():
            if value.shape != mine["weights"][path].shape:
                here = tuple(mine["weights"][path].shape)
                raise CheckpointError(f"'{path}' is {tuple(value.shape)} in the state, {here} here")
        for weight in self.weights:
            if weight.path in trained:
                assign_(weight.parameter, trained[weight.path])
            live = self.live(weight)
            live.rule.load(state["rules"][weight.path], weight.parameter)
            live.renew(weight.parameter)  # the change of W is no step

    @torch.no_grad()
    def measured(self) -> tuple[float, float, float, float]:
        """See `WeightStorage.measured`: every rule is applied once to its parameter."""
        rules = [(self.live(weight), full(weight.parameter)) for weight in untied(self.weights)]
        start = perf_counter()
        for live, weight in rules:
            live.rule.compute(weight)
        seconds = perf_counter() - start
        from torch.utils.flop_counter import FlopCounterMode  # brings triton

        with FlopCounterMode(display=False) as counter:  # which takes time itself
            for live, weight in rules:
                live.rule.compute(weight)
        kept = sum(live.kept.nbytes for live, _ in rules if live.kept is not None)
        return sum(weight.nbytes for _, weight in rules), kept, counter.get_total_flops(), seconds
