"""Conditioning by stored weights: folded into them, or live through a rule."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterator, Mapping, Sequence
from time import perf_counter
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from wellcond.attention.find import AttentionLayers
from wellcond.attention.storage import HALF, assign_, full
from wellcond.checked import Count, Folder, checked
from wellcond.errors import CheckpointError, InapplicableError, SchemeError, WeightError
from wellcond.files import load_weights_
from wellcond.linalg import singular_values
from wellcond.live import install, live_rules, uninstall
from wellcond.loading import guard_
from wellcond.rules import Rule
from wellcond.spectral.cost import Cost
from wellcond.spectral.guarantee import HeadCondition, Summary, measure
from wellcond.spectral.handle import Conditioning, Written, all_or_nothing
from wellcond.spectral.marks import Record, followed, mark_, unmark_
from wellcond.spectral.memory import check_memory, used_elsewhere
from wellcond.spectral.shift import Entries
from wellcond.spectral.steps import listen
from wellcond.spectral.undo import modules_of, numbers_of
from wellcond.spectral.weights import Part, Strength, Weight, check_weights, strengths, untied, weights_of

TABLE_9 = "the same as X W + X C (the paper's Table 9)"


class WeightConditioning(Conditioning):
    """A rule for each stored parameter; the modes, and everything that follows from the rule alone."""

    def __init__(
        self, model: nn.Module, layers: AttentionLayers, strength: Mapping[str, float], options: Mapping[str, Any]
    ) -> None:
        super().__init__(model, layers, strength, options)
        self.weights = weights_of(layers, strength)

    @property
    def record(self) -> Record:
        """What the weights hold, for a file."""
        return Record(self.method, {role: value for role, value in self.strength.items() if value}, self.options)

    def claims(self) -> Mapping[Hashable, Hashable]:
        """Each stored parameter, with the heads and strengths in it; a module that was replaced is not conditioned."""
        found: dict[Hashable, frozenset[Hashable]] = {}
        for weight in self.weights:
            if self.active and not followed(weight.owner, weight.name):
                continue
            parts = frozenset((part.layout, part.strength) for part in weight.parts)
            found[id(weight.stored)] = found.get(id(weight.stored), frozenset()) | parts
        return found

    def check(self) -> None:
        """Every parameter can be written and is not conditioned yet."""
        check_weights(self.weights)
        check_memory(self.weights)
        self.check_strength(self.weights)

    def check_strength(self, weights: Sequence[Weight]) -> None:
        """Raise for a strength that the arithmetic of a weight cannot do: at 1/eps a W of unit size is rounded away."""
        for weight in weights:
            limit = 1 / torch.finfo(weight.stored.dtype).eps
            for part in weight.parts:
                if not abs(part.strength) <= limit:
                    raise SchemeError(
                        f"the strength of '{part.name}' is at most {limit:.3g} in {weight.stored.dtype}, above which W "
                        f"is rounded away in W + C; got {part.strength:g}"
                    )

    def check_folded(self) -> None:
        """Raise unless W + C can take the place of W in every parameter."""
        elsewhere = used_elsewhere(self.weights)
        if elsewhere:
            raise WeightError(f"{elsewhere}, and would hold W + C too; condition that as well, or use mode='live'")

    @property
    def foldable(self) -> bool:
        """Whether folding changes nothing but the conditioned weights, and loses none of their digits."""
        return not used_elsewhere(self.weights) and not any(w.stored.dtype in HALF for w in self.weights)

    def _reachable(self) -> list[Weight]:
        """The parameters of every role, also of one whose strength is zero now."""
        return weights_of(self.layers, dict.fromkeys(self.strength, 1.0))

    def corrected(self, weight: Weight) -> Entries | None:
        """The entries of a parameter that a correction changes; None for all."""
        return None

    def snapshot(self, written: Written) -> list[Callable[[], None]]:
        """See `Conditioning.snapshot`: numbers first, since rules follow from them."""
        weights = untied(self._reachable()) if written != "none" else []
        numbers = [numbers_of(w.stored, self.corrected(w) if written == "corrected" else None) for w in weights]
        owners = list({id(weight.owner): weight.owner for weight in self._reachable()}.values())
        return [*numbers, modules_of(owners), *super().snapshot(written), lambda: guard_(self.model)]

    # What a method says.

    def rule(self, weight: Weight) -> Rule:
        """The rule of one stored parameter."""
        raise NotImplementedError

    def bounds(self, part: Part, largest: Tensor) -> list[float] | None:
        """The promised κ of each head of one role, from its σ_max(W)."""
        return None

    # Modes.

    @torch.no_grad()
    def start_(self, mode: str, as_original: bool) -> None:
        """Condition weights that hold W, or (`as_original=False`) what is used already."""
        if mode == "folded":
            self.check_folded()
        self._keep()
        self.mode = "folded"
        self.install_() if as_original else self.unfold_()
        if mode == "folded":
            self.fold_()
        self.mark_()

    def mark_(self) -> None:
        """Have the modules know what their weights hold, for files and for copies."""
        for weight in self.weights:
            mark_(weight.owner, weight.name, self.record, follow=True)

    def install_(self) -> None:
        """Make the weights live."""
        for weight in self.weights:
            install(weight.owner, weight.name, self.rule(weight))
        self.mode = "live"
        guard_(self.model)
        listen()

    def uninstall_(self) -> None:
        """Have the weights used as they are stored."""
        for weight in self.weights:
            uninstall(weight.owner, weight.name)
        guard_(self.model)

    def _live_rule(self, weight: Weight) -> Rule:
        return live_rules(weight.owner)[weight.name]

    @torch.no_grad()
    def fold_(self) -> None:
        """Store what is used; the model is an ordinary one from now on."""
        self._must_be("live", "fold_")
        self.check_folded()
        folded = [(weight, full(self._live_rule(weight).export(weight.stored)).clone()) for weight in self.weights]
        with all_or_nothing(self):
            self.uninstall_()
            for weight, effective in folded:
                assign_(weight.stored, effective)
            self.mode = "folded"

    @torch.no_grad()
    def unfold_(self) -> None:
        """Store W again, and use it through the rule."""
        self._must_be("folded", "unfold_")
        effective = {id(weight.stored): full(weight.stored).clone() for weight in self.weights}
        values = [(weight, self.rule(weight).invert(effective[id(weight.stored)])) for weight in untied(self.weights)]
        with all_or_nothing(self):
            for weight, value in values:
                assign_(weight.stored, value)
            self.install_()
            for weight in self.weights:
                self._live_rule(weight).loaded(weight.stored, effective[id(weight.stored)])

    @torch.no_grad()
    def remove_(self) -> None:
        """Store W and use it as it is."""
        if not self.active:
            raise InapplicableError(f"this conditioning ({self.method}) was removed already")
        with all_or_nothing(self, "corrected" if self.mode == "folded" else "none"):
            if self.mode == "folded":
                self.unfold_()
            self.uninstall_()
            self._forget()

    def _forget(self) -> None:
        """The weights hold W, and nobody watches them."""
        for weight in self.weights:
            unmark_(weight.owner, weight.name)
        self._drop()

    @checked
    def strength_(self, strength: Strength) -> None:
        """Another strength for the same W."""
        if self.strength_default is None:
            raise InapplicableError(f"'{self.method}' has no strength")
        if not self.active:
            raise InapplicableError(f"this conditioning ({self.method}) was removed; condition the model again")
        self._change_(strengths(strength, tuple(self.strength), 1.0))

    def _change_(self, strength: dict[str, float], chosen: str = "") -> None:
        """Change the strength of each role."""
        weights, mode = weights_of(self.layers, strength), self.mode
        self.check_strength(weights)
        with all_or_nothing(self, "corrected" if mode == "folded" else "none"):
            if mode == "folded":
                self.unfold_()
            self.uninstall_()
            for weight in self.weights:
                unmark_(weight.owner, weight.name)
            self.strength, self.weights, self.chosen = strength, weights, chosen
            self.install_()
            if mode == "folded":
                self.fold_()
            self.mark_()

    def _must_be(self, mode: str, what: str) -> None:
        if not self.active or self.mode != mode:
            state = self.mode if self.active else "removed"
            raise InapplicableError(f"{what} takes a {mode} conditioning; this one ({self.method}) is {state}")

    # State.

    @checked
    def load_weights_(self, weights: Folder | Mapping[str, Tensor], as_original: bool = False) -> None:
        """See `Conditioning.load_weights_`."""
        load_weights_(self.model, weights, as_original=as_original)

    def original_(self, loaded: Collection[int]) -> None:
        """Folded weights have become W: store what is used."""
        for weight in untied(self.weights) if self.mode == "folded" else ():
            if id(weight.stored) in loaded:
                assign_(weight.stored, full(self.rule(weight).export(weight.stored)))

    def state_dict(self) -> dict[str, Any]:
        """The stored weights and what the rules remember, where a model's own state has only what is used."""
        state = super().state_dict()
        if self.mode == "live":
            state["weights"] = {weight.path: full(weight.stored).clone() for weight in untied(self.weights)}
            state["rules"] = {weight.path: self._live_rule(weight).state() for weight in self.weights}
        return state

    @checked
    @torch.no_grad()
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where another process stopped: same method, mode, strength and model, or nothing is changed."""
        super().load_state_dict(state)
        mine = self.state_dict()
        stored = state.get("weights", {})
        if any(state.get(part, {}).keys() != mine.get(part, {}).keys() for part in ("weights", "rules")):
            raise CheckpointError("the state belongs to another model: its conditioned parameters have other names")
        for path, value in stored.items():
            if value.shape != mine["weights"][path].shape:
                here = tuple(mine["weights"][path].shape)
                raise CheckpointError(f"'{path}' is {tuple(value.shape)} in the state, {here} here")
        with all_or_nothing(self, "all" if self.mode == "live" else "none"):
            for weight in self.weights if self.mode == "live" else ():
                if weight.path in stored:
                    assign_(weight.stored, stored[weight.path])
                rule = self._live_rule(weight)
                rule.load(state["rules"][weight.path])
                rule.renew(weight.stored)  # the change of W is no step

    # What people look at.

    @torch.no_grad()
    def stored_and_used(self) -> Iterator[tuple[Part, Tensor, Tensor]]:
        """W and what is used instead, `(heads, D, d)` each, of every role of every layer that is conditioned."""
        for weight in self.weights:
            whole = full(weight.stored)
            if self.mode == "live":
                stored, used = whole, full(self._live_rule(weight).export(weight.stored))
            else:
                stored, used = self.rule(weight).invert(whole), whole
            for part in weight.parts:
                yield part, part.layout.read(stored), part.layout.read(used)

    @torch.no_grad()
    def summary(self) -> Summary:
        """See `Conditioning.summary`."""
        found: list[HeadCondition] = []
        for part, stored, used in self.stored_and_used():
            sigma = singular_values(stored)
            found += measure(part.layer.name, part.role, sigma, used, self.bounds(part, sigma[:, 0]))
        order = {layer.name: index for index, layer in enumerate(self.layers)}
        found.sort(key=lambda head: order[head.layer])
        return Summary(str(self), tuple(found))

    @checked
    def cost(self, tokens: Count = 197) -> Cost:
        """See `Conditioning.cost`. Live weights are measured once: the rule is applied to every parameter."""
        shapes = [part.projection.shape for weight in self.weights for part in weight.parts]
        entries = sum(h * w * d for h, w, d in shapes)
        plain, added = 2 * tokens * entries, tokens * sum(h * d for h, _, d in shapes)
        size = sum(weight.stored.element_size() * weight.stored.numel() for weight in untied(self.weights))
        live = self.mode == "live"
        seconds, flops, kept = self._measured() if live else (0.0, 0.0, 0.0)
        aspects = "FLOPs of the projections, forward", "parameters", "gradient, entries", "activations, entries"
        extras = sum(
            p.numel() for weight in self.weights for p in (self._live_rule(weight).parameters if live else {}).values()
        )
        outputs = tokens * sum(h * d for h, _, d in shapes)
        rows: list[tuple[str, float, float, float | None]] = [
            (aspects[0], plain, plain, None),
            *([(TABLE_9, plain, plain + added, None)] if self.strength_default else []),
            (aspects[1], entries, entries + extras, entries + extras),
            (aspects[2], entries, entries + extras, None),
            (aspects[3], outputs, outputs, None),
            ("memory of what is used instead, bytes", 0, size if live else 0, kept),
            ("FLOPs of matrix products per step", 0, flops, flops),
            ("seconds per step", 0, seconds, seconds),
        ]
        return Cost(f"{self} with {tokens} tokens", tuple(rows))

    @torch.no_grad()
    def _measured(self) -> tuple[float, float, float]:
        kept = 0
        rules = [(self._live_rule(weight), full(weight.stored)) for weight in untied(self.weights)]
        start = perf_counter()
        for rule, weight in rules:
            rule.compute(weight)
            kept += 0 if rule.kept is None else rule.kept.element_size() * rule.kept.numel()
        seconds = perf_counter() - start
        with FlopCounterMode(display=False) as counter:  # which takes time itself
            for rule, weight in rules:
                rule.compute(weight)
        return seconds, counter.get_total_flops(), kept
