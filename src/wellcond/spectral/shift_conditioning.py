"""`wc.condition_(model, "shift")`: folded or live, and told of every optimizer step while it is folded."""

from __future__ import annotations

import warnings
from collections.abc import Collection, Mapping
from types import MappingProxyType
from typing import Any, Self
from weakref import WeakSet

from torch import Tensor
from torch.optim import Optimizer

from wellcond.attention.storage import HALF
from wellcond.checked import checked, short
from wellcond.errors import CheckpointError, OptimizerError, SchemeError, WeightError
from wellcond.spectral.corrections import WeightConditioning
from wellcond.spectral.folded import FoldedWeight
from wellcond.spectral.guarantee import shift_bounds
from wellcond.spectral.optimizers import check_optimizer, decays, guard, inner, skipped
from wellcond.spectral.shift import ShiftRule, entries, identity
from wellcond.spectral.steps import listen
from wellcond.spectral.weights import Part, Weight, untied


class ShiftConditioning(WeightConditioning):
    """`λ I` for each head."""

    method = "shift"
    citation = "Spectral Conditioning of Attention, Theorem 3.8"
    modes = ("folded", "live")
    strength_default = 10.0
    defaults = MappingProxyType({"placement": "head"})

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        place = self.options["placement"]
        if not isinstance(place, str) or place not in ("head", "layer"):
            raise SchemeError(f"placement is 'head' or 'layer', got {short(place)}")
        self._folded: list[FoldedWeight] = []
        self._attached: WeakSet[Optimizer] = WeakSet()
        self._expected: WeakSet[Optimizer] = WeakSet()  # stepped without attach; after_step may still come
        self._forgotten: WeakSet[Optimizer] = WeakSet()

    @property
    def placement(self) -> str:
        """`"head"` or `"layer"`."""
        return str(self.options["placement"])

    def rule(self, weight: Weight) -> ShiftRule:
        """Add the identity."""
        return ShiftRule(entries(weight, self.placement))

    def bounds(self, part: Part, largest: Tensor) -> list[float]:
        """The sound form of Theorem 3.8."""
        return shift_bounds(largest, identity(part, part.projection.shape, self.placement))

    # Modes: folding changes a few entries of each parameter, and nothing else.

    def start_(self, mode: str, as_original: bool) -> None:
        """See `Conditioning.start_`."""
        if mode == "live":
            self._folded = [] if as_original else self._weights()
            super().start_(mode, as_original)
            return
        for weight in self.weights:
            if weight.stored.dtype in HALF:
                raise WeightError(
                    f"'{weight.path}' is stored in {weight.stored.dtype}, where a shift of "
                    f"{weight.parts[0].strength:g} rounds away the diagonal of W; keep the weights in float32 (use "
                    "autocast), or mode='live'"
                )
        self._folded = self._weights()
        for folded in self._folded if as_original else ():
            folded.add_()
        if not self.active:
            self._keep()
        self.mode = "folded"
        listen(self)

    def _weights(self) -> list[FoldedWeight]:
        return [FoldedWeight(weight, entries(weight, self.placement)) for weight in untied(self.weights)]

    def fold_(self) -> None:
        """W + C in the stored weight."""
        self._must_be("live", "fold_")
        self.uninstall_()
        self.start_("folded", as_original=True)

    def unfold_(self) -> None:
        """W in the stored weight, exactly."""
        self._must_be("folded", "unfold_")
        self._unshift_()
        self.install_()

    def remove_(self) -> None:
        """W in the stored weight, and nothing else."""
        if self.active and self.mode == "folded":
            self._unshift_()
            self._drop()
        else:
            super().remove_()

    def original_(self, loaded: Collection[int]) -> None:
        """See `Conditioning.original_`."""
        for folded in self._folded:
            if id(folded.weight.stored) in loaded:
                folded.add_()

    def _unshift_(self) -> None:
        for folded in self._folded:
            folded.take_away_()
        self._folded = []

    # Optimizers.

    def attach(self, optimizer: Any) -> Self:
        """See `Conditioning.attach`."""
        found = inner(optimizer)
        if self.mode == "live":
            return self
        if self._folded and not self._ours(found):
            raise OptimizerError(
                f"this {type(found).__name__} holds none of the {len(self.weights)} conditioned weights "
                f"('{self.weights[0].path}', …): build it from model.parameters() after wrapping or sharding"
            )
        check_optimizer(found)
        if found not in self._attached:
            guard(found, lambda: self.after(found))
        self._attached.add(found)
        return self

    def concerns(self, optimizer: Any) -> bool:
        """See `Conditioning.concerns`."""
        return self.mode == "folded" and bool(self._ours(inner(optimizer)))

    def after_step(self, optimizer: Any = None) -> None:
        """See `Conditioning.after_step`."""
        for found in list(self._expected) if optimizer is None else [inner(optimizer)]:
            self._expected.discard(found)

    def before(self, optimizer: Optimizer) -> None:
        """Called before every optimizer step in the process: show W to ours."""
        if not self.active or self.mode != "folded":
            return
        ours = self._ours(optimizer)
        if ours and (optimizer in self._attached or self._granted(optimizer, ours)):
            for folded in ours:
                folded.show_()

    def after(self, optimizer: Optimizer) -> None:
        """Called after every optimizer step in the process: use W + C again."""
        shown = [folded for folded in self._folded if folded.shown]
        for folded in shown:
            folded.add_()
        if shown and optimizer not in self._attached and not skipped(optimizer):
            self._expected.add(optimizer)

    def _ours(self, optimizer: Optimizer) -> list[FoldedWeight]:
        held = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
        return [folded for folded in self._folded if id(folded.weight.stored) in held]

    def _granted(self, optimizer: Optimizer, ours: list[FoldedWeight]) -> bool:
        """One step without attach, since its loop may call after_step; then a warning, once."""
        if optimizer in self._forgotten or not decays(optimizer, {id(folded.weight.stored) for folded in ours}):
            return False
        reason = "nothing was attached to it" if optimizer in self._expected else ""
        try:
            check_optimizer(optimizer)
        except OptimizerError as error:
            reason = str(error)
        if reason:
            self._forgotten.add(optimizer)
            warnings.warn(
                f"{type(optimizer).__name__} decays weights that hold W + C, so it pulls them towards zero instead of "
                f"towards C: {reason}; call c.attach(optimizer) on what wc.condition_ returned, once, or "
                "c.after_step(optimizer) after each step",
                stacklevel=2,
            )
        return not reason

    # State.

    def state_dict(self) -> dict[str, Any]:
        """Folded: the exact W at the entries that C changes."""
        state = super().state_dict()
        if self.mode == "folded":
            state["entries"] = {folded.weight.path: folded.gathered().clone() for folded in self._folded}
        return state

    @checked
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """See `Conditioning.load_state_dict`."""
        super().load_state_dict(state)
        saved = state.get("entries", {})
        if self.mode == "folded":
            if saved.keys() != {folded.weight.path for folded in self._folded}:
                raise CheckpointError("the state belongs to another model: its conditioned parameters have other names")
            for folded in self._folded:
                folded.restore(saved[folded.weight.path])
