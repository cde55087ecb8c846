"""Conditioning: the handle that `wc.condition_` returns, one for every method and every way to keep it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterator, Mapping
from typing import Any, Literal, Self, final

import torch
from torch import Tensor

from wellcond._core.argument_types import Count, Folder
from wellcond._core.checked import checked
from wellcond.attention.roles import QKV
from wellcond.conditioning.applied_method import AppliedMethod
from wellcond.conditioning.cost import ConditioningCost
from wellcond.conditioning.existing_handles import keep_handle, snapshot_of_handles
from wellcond.conditioning.guarantee import ConditioningSummary
from wellcond.conditioning.method import Correction, FixedCorrection, Method
from wellcond.conditioning.safe_strength import CHOSEN, SAFE
from wellcond.conditioning.storage.base import WeightStorage
from wellcond.conditioning.storage.folded_storage import check_folded
from wellcond.conditioning.target_weights import Strength, TargetHeads, TargetWeight, strengths
from wellcond.conditioning.transaction import Written, all_or_nothing, attributes_of
from wellcond.errors import CheckpointError, InapplicableError, SchemeError

ConditioningMode = Literal["folded", "live"]
"""How `W + C` is kept: the weight holds it, or holds W and is used as `W + C`."""


@final
class Conditioning:
    """A conditioned model's handle: attach it to the optimizer, look at it, fold it, take it off, save it.

    It joins a method (what is used instead of W) and a storage (how the model keeps that). The model keeps its handle
    alive; copies of the model have none, and need none to compute.

    Attributes:
        method: the name given to `wc.condition_`.
        citation: the paper that it is from.
        model: the conditioned model.
        layers: its conditioned attention layers.
        options: the method's own.
        active: whether the model is conditioned; `remove_` ends it.

    >>> import torch, wellcond as wc
    >>> model = torch.nn.TransformerEncoderLayer(8, 2, batch_first=True)
    >>> before = model.self_attn.in_proj_weight.detach().clone()
    >>> c = wc.condition_(model, "shift", strength=1.5, roles="v")
    >>> optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.05)
    >>> c.attach(optimizer).mode
    'folded'
    >>> c.remove_()
    >>> torch.equal(model.self_attn.in_proj_weight, before)
    True
    """

    def __init__(self, method: Method, mode: str, chosen: str = "") -> None:
        self.method, self.citation, self.options = method.name, method.citation, method.options
        self.model, self.layers, self.active = method.model, method.layers, False
        self._applied = AppliedMethod(method, mode, chosen)

    @property
    def mode(self) -> str:
        """`"folded"` (the parameter holds W + C) or `"live"` (it holds W, and its readers get W + C)."""
        return self._applied.storage.mode

    @property
    def strength(self) -> dict[str, float]:
        """The strength of each role."""
        return self._applied.method.strength

    @property
    def chosen(self) -> str:
        """In words, how a strength that nobody gave was found."""
        return self._applied.chosen

    @property
    def weights(self) -> list[TargetWeight]:
        """The corrected parameters; none for a method that changes modules."""
        return self._applied.weights

    def claims(self) -> Mapping[Hashable, Hashable]:
        """Return what only one conditioning can have, see `Method.claims`."""
        return self._applied.method.claims(self.active)

    @torch.no_grad()
    def start_(self, as_original: bool) -> None:
        """Condition parameters that hold W, or (`as_original=False`) W + C already."""
        self.active = True
        keep_handle(self)
        self._applied.start_(as_original)

    def fold_(self) -> None:
        """Have the parameters hold W + C: an ordinary model, at no cost."""
        self._move_("live", "folded", "fold_")

    def unfold_(self) -> None:
        """Have the parameters hold W again, and their readers get W + C: the opposite of `fold_`."""
        self._move_("folded", "live", "unfold_")

    @torch.no_grad()
    def _move_(self, old: str, new: str, what: str) -> None:
        correction = self._correction(what)
        if not self.active or self.mode != old:
            state = self.mode if self.active else "removed"
            raise InapplicableError(f"{what} takes a {old} conditioning; this one ({self.method}) is {state}")
        if new == "folded":
            check_folded(correction)
        with all_or_nothing(self):
            self._applied.move_(new)

    @torch.no_grad()
    def remove_(self) -> None:
        """Give the model its own weights back."""
        if not self.active:
            raise InapplicableError(f"this conditioning ({self.method}) was removed already")
        with all_or_nothing(self, "corrected" if self.mode == "folded" else "none"):
            self._applied.leave_()
            self.active = False
            keep_handle(self, False)

    @checked
    @torch.no_grad()
    def strength_(self, strength: Strength | Literal["safe"] | None) -> None:
        """Change the strength for the same W; `"safe"` chooses it as `wc.condition_` does."""
        correction = self._correction("strength_")
        if correction.strength_default is None:
            raise InapplicableError(f"'{self.method}' has no strength")
        if not self.active:
            raise InapplicableError(f"this conditioning ({self.method}) was removed; condition the model again")
        if strength is not None and strength != SAFE:
            wanted, chosen = strengths(strength, tuple(self.strength), 1.0), ""  # type: ignore[arg-type]
        elif isinstance(correction, FixedCorrection):
            wanted = dict.fromkeys(self.strength, correction.safe_strength(held=self.strength))
            chosen = CHOSEN
        else:
            raise SchemeError(f"'{self.method}' has no strength called '{SAFE}'; it takes a number")
        method = correction.with_strength(wanted)
        method.check_strength()
        with all_or_nothing(self, "corrected" if self.mode == "folded" else "none"):
            self._applied.change_(method, chosen)

    @checked
    def attach(self, optimizer: Any) -> Self:
        """Have an optimizer train W inside W + C (weight decay pulls W + C towards C); a live weight needs nothing.

        Args:
            optimizer: a torch optimizer, or a wrapper with `.optimizer` (Accelerate's, Lightning's).
        """
        self._applied.attach(optimizer)
        return self

    @checked
    def concerns(self, optimizer: Any) -> bool:
        """Return whether `attach` has anything to do for an optimizer, one of several of a model."""
        return self._applied.concerns(optimizer)

    @checked
    def after_step(self, optimizer: Any = None) -> None:
        """Tell the handle of a step, in a loop that would rather say so each time than `attach`."""
        self._applied.after_step(optimizer)

    @torch.no_grad()
    def summary(self) -> ConditioningSummary:
        """Return κ of W and of W + C per head, and whether the guarantee holds; prints as a table."""
        return ConditioningSummary(str(self), tuple(self._applied.storage.heads()))

    @checked
    def cost(self, tokens: Count = 197) -> ConditioningCost:
        """Return what the conditioning costs, by formula and measured; prints as a table.

        Args:
            tokens: N, the sequence length in the formulas.
        """
        return ConditioningCost(f"{self} with {tokens} tokens", tuple(self._applied.storage.cost(tokens)))

    @torch.no_grad()
    def trained_and_effective(self) -> Iterator[tuple[TargetHeads, Tensor, Tensor]]:
        """Yield W and W + C, `(heads, D, d)` each, of every role of every layer whose weights are corrected."""
        if isinstance(self._applied.storage, WeightStorage):
            yield from self._applied.storage.trained_and_effective()

    @checked
    def load_weights_(self, weights: Folder | Mapping[str, Tensor], as_original: bool = False) -> None:
        """Load the model's weights: W + C or, with `as_original=True`, W; all of them or none.

        Args:
            weights: a path as for `wc.load_weights_`, or a state dictionary.
            as_original: whether `weights` holds W, which is conditioned now.
        """
        from wellcond.checkpoint.files import load_weights_  # which knows handles

        self._correction("load_weights_")
        load_weights_(self.model, weights, as_original=as_original)

    def trained_loaded_(self, loaded: Collection[int]) -> None:
        """Follow parameters (by `id`) that have just become W."""
        self._applied.storage.trained_loaded_(loaded)

    def _description(self) -> dict[str, Any]:
        named = {"method": self.method, "mode": self.mode}
        return named | {"strength": dict(self.strength), "options": dict(self.options)}

    def state_dict(self) -> dict[str, Any]:
        """Return what a bit-exact continuation needs beside the model's and the optimizer's state."""
        return self._description() | self._applied.storage.state()

    @checked
    @torch.no_grad()
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where another process stopped, before or after `model.load_state_dict`; all or nothing.

        Before is the order that always works: with a correction that is older than its weight (`every` > 1), W + C
        alone may be refused. Method, mode and options must be the same, and the strength, unless it was chosen here.
        """
        with all_or_nothing(self, "all" if self.mode == "live" else "corrected"):
            if self.chosen and isinstance(state.get("strength"), Mapping) and state["strength"] != self.strength:
                strength = strengths(state["strength"], QKV, 1.0)
                if strength.keys() == self.strength.keys():
                    method = self._correction("strength_").with_strength(strength)
                    method.check_strength()
                    self._applied.adopt_(method, CHOSEN)
            for key, mine in self._description().items():
                if state.get(key) != mine:
                    raise CheckpointError(f"the state has {key} {state.get(key)!r}, this conditioning {mine!r}")
            self._applied.storage.load_state(state)

    def snapshot(self, written: Written) -> list[Callable[[], None]]:
        """Return what puts the model and the handle back as they are now, see `all_or_nothing`."""
        return [*self._applied.snapshot(written), attributes_of(self), snapshot_of_handles(self)]

    def _correction(self, what: str) -> Correction:
        if not isinstance(self._applied.method, Correction):
            raise InapplicableError(f"'{self.method}' has no {what}: it does not correct weights")
        return self._applied.method

    def __str__(self) -> str:
        plain = self._applied.method.strength_default is None
        strength = ", ".join(role if plain else f"{role} {value:g}" for role, value in self.strength.items())
        strength += f"; {self.chosen}" if strength and self.chosen else ""
        state = self.mode if self.active else "removed"
        return f"{self.method}{f' ({strength})' if strength else ''}, {state}, {len(self.layers)} layers"

    def __repr__(self) -> str:
        return f"<Conditioning: {self}>"
