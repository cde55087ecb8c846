"""`wc.condition_(model, "shift")`: folded or live, and told of every optimizer step while it is folded."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from types import MappingProxyType
from typing import Any, Literal, Self
from weakref import WeakSet

import torch
from torch import Tensor
from torch.optim import Optimizer

from wellcond.attention.layouts import Layout
from wellcond.attention.storage import HALF
from wellcond.callers import warn_user
from wellcond.checked import checked, short
from wellcond.errors import CheckpointError, OptimizerError, SchemeError, WeightError
from wellcond.spectral.corrections import WeightConditioning
from wellcond.spectral.folded import FoldedWeight
from wellcond.spectral.guarantee import shift_bounds
from wellcond.spectral.handle import Written, all_or_nothing
from wellcond.spectral.optimizers import check_optimizer, decays, guard, inner, skipped
from wellcond.spectral.safe import PAPER, Logits, safe_strength
from wellcond.spectral.shift import Entries, ShiftRule, entries, identity
from wellcond.spectral.steps import listen
from wellcond.spectral.weights import ROLES, Part, Strength, Weight, strengths, untied, weights_of

SAFE = "safe"  # the strength that is chosen here
CHOSEN = "the largest safe strength"


class ShiftConditioning(WeightConditioning):
    """`λ I` for each head."""

    method = "shift"
    citation = "Spectral Conditioning of Attention, Theorem 3.8"
    modes = ("folded", "live")
    strength_default = PAPER
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

    def check_folded(self) -> None:
        """Also: the digits of W are not lost beside λ."""
        for weight in self.weights:
            if weight.stored.dtype in HALF:
                raise WeightError(
                    f"'{weight.path}' is stored in {weight.stored.dtype}, where a shift of "
                    f"{weight.parts[0].strength:g} rounds away the diagonal of W; keep the weights in float32 (use "
                    "autocast), or mode='live'"
                )
        super().check_folded()

    def start_(self, mode: str, as_original: bool) -> None:
        """See `Conditioning.start_`."""
        if mode == "live":
            self._folded = [] if as_original else self._weights()
            super().start_(mode, as_original)
            return
        self.check_folded()
        self._folded = self._weights()
        for folded in self._folded if as_original else ():
            folded.add_()
        if not self.active:
            self._keep()
        self.mode = "folded"
        listen(self)
        self.mark_()

    def _weights(self) -> list[FoldedWeight]:
        return [FoldedWeight(weight, entries(weight, self.placement)) for weight in untied(self.weights)]

    def corrected(self, weight: Weight) -> Entries:
        """Only the entries of the identity."""
        return entries(weight, self.placement)

    def snapshot(self, written: Written) -> list[Callable[[], None]]:
        """Also what is remembered of each folded weight."""
        kept = [(folded, dict(folded.__dict__)) for folded in self._folded]

        def restore() -> None:
            for folded, before in kept:
                folded.__dict__.update(before)

        return [*super().snapshot(written), restore]

    def fold_(self) -> None:
        """W + C in the stored weight."""
        self._must_be("live", "fold_")
        self.check_folded()
        with all_or_nothing(self):
            self.uninstall_()
            self.start_("folded", as_original=True)

    def unfold_(self) -> None:
        """W in the stored weight, exactly."""
        self._must_be("folded", "unfold_")
        with all_or_nothing(self):
            self._unshift_()
            self.install_()

    def remove_(self) -> None:
        """W in the stored weight, and nothing else."""
        if self.active and self.mode == "folded":
            with all_or_nothing(self):
                self._unshift_()
                self._forget()
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

    # Strength.

    @checked
    def strength_(self, strength: Strength | Literal["safe"] | None) -> None:
        """Another strength for the same W; `"safe"` chooses it as `wc.condition_` does."""
        if self.active and (strength is None or strength == SAFE):
            self._change_(dict.fromkeys(self.strength, self.safe_strength()), CHOSEN)
        else:
            super().strength_(strength)  # type: ignore[arg-type]

    @torch.no_grad()
    def safe_strength(self) -> float:
        """The largest strength, one for every role, that leaves attention to other tokens; values set no limit."""
        if self.strength.keys() <= {"value"}:
            return PAPER
        return safe_strength(self.logits(dict.fromkeys(self.strength, 1.0)))

    def logits(self, strength: Mapping[str, float]) -> Iterator[Logits]:
        """What the logits of each layer follow from: W and C of queries and keys, for a strength of each role."""
        wanted, now = self._identities(strength), self._identities(self.strength if self.active else {})
        for layer in self.layers:
            found: list[tuple[Tensor, Tensor]] = []
            for _, projection in layer.projections("query", "key"):
                used, key = projection.read().double(), (projection.weight.path, projection.weight.layout)
                zero = torch.zeros_like(used)
                change, present = (parts[key].to(used) if key in parts else zero for parts in (wanted, now))
                found.append((used - present, change))
            if len(found) == 2:
                yield layer, found[0], found[1]

    def _identities(self, strength: Mapping[str, float]) -> dict[tuple[str, Layout], Tensor]:
        return {
            (weight.path, part.layout): identity(part, part.projection.shape, self.placement)
            for weight in weights_of(self.layers, strength)
            for part in weight.parts
        }

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
            warn_user(
                f"{type(optimizer).__name__} decays weights that hold W + C, so it pulls them towards zero instead of "
                f"towards C: {reason}; call c.attach(optimizer) on what wc.condition_ returned, once, or "
                "c.after_step(optimizer) after each step"
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
        """See `Conditioning.load_state_dict`; a strength that was chosen here becomes that of the state."""
        with all_or_nothing(self, "all" if self.mode == "live" else "corrected"):
            if self.chosen and isinstance(state.get("strength"), Mapping) and state["strength"] != self.strength:
                self._adopt_(strengths(state["strength"], ROLES, 1.0))
            super().load_state_dict(state)
            if self.mode == "folded":
                self._restore_(state.get("entries", {}))

    def _adopt_(self, strength: dict[str, float]) -> None:
        """Take over the strength of a state: for the same W, or for the W + C that was loaded since."""
        if strength.keys() != self.strength.keys():
            return  # refused as another conditioning
        if self.mode == "live" or all(folded.untouched for folded in self._folded):
            self._change_(strength, CHOSEN)
            return
        weights = weights_of(self.layers, strength)
        self.check_strength(weights)
        self.strength, self.weights = strength, weights
        self._folded = self._weights()
        self.mark_()

    def _restore_(self, saved: Mapping[str, Tensor]) -> None:
        if saved.keys() != {folded.weight.path for folded in self._folded}:
            raise CheckpointError("the state belongs to another model: its conditioned parameters have other names")
        for folded in self._folded:
            folded.check_state(saved[folded.weight.path])
        twice = [folded.weight.path for folded in self._folded if folded.restore(saved[folded.weight.path])]
        if twice:
            warn_user(
                f"'{twice[0]}' held W + C when the model was conditioned, and the state shows that C was added once "
                "more: W + C was put back"
            )
