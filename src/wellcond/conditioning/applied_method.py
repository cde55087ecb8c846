"""AppliedMethod: a method in the storage that a model keeps it in, and the ways from one to another."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, final

from wellcond.conditioning.correction_marks import mark_, unmark_
from wellcond.conditioning.method import Correction, FixedCorrection, Method
from wellcond.conditioning.storage.anchored_decay import AnchoredDecay
from wellcond.conditioning.storage.base import ModuleChange, Storage, WeightStorage
from wellcond.conditioning.storage.folded_storage import Folded, check_folded
from wellcond.conditioning.storage.live_storage import Live
from wellcond.conditioning.storage.loading import guard_
from wellcond.conditioning.storage.optimizer_hooks import check_trained, inner, parameter_ids
from wellcond.conditioning.target_weights import TargetWeight, untied
from wellcond.conditioning.transaction import Written, attributes_of, modules_of, numbers_of


@final
class AppliedMethod:
    """The method and the storage of one handle. Any of its changes may fail halfway: `all_or_nothing` puts it back.

    Attributes:
        method: what is used instead of W.
        storage: how the model keeps that.
        decay: what optimizers see of folded weights.
        chosen: how the strength was found, where nobody gave it.
    """

    def __init__(self, method: Method, mode: str, chosen: str = "") -> None:
        self.method, self.chosen, self.decay = method, chosen, AnchoredDecay()
        self.storage = self._storage(method, mode)

    def _storage(self, method: Method, mode: str) -> Storage:
        if isinstance(method, Correction):
            return Folded(method, self.decay) if mode == "folded" else Live(method)
        assert isinstance(method, ModuleChange)
        return method

    @property
    def weights(self) -> list[TargetWeight]:
        """The corrected parameters; none for a method that changes modules."""
        return self.method.weights if isinstance(self.method, Correction) else []

    def start_(self, as_original: bool) -> None:
        """Condition parameters that hold W, or (`as_original=False`) W + C already."""
        wanted = self.storage
        if isinstance(wanted, Folded):
            check_folded(wanted.correction)
        if as_original or not isinstance(self.method, Correction):
            wanted.enter_()
        else:
            self.storage = Folded(self.method, self.decay)
            self.storage.hold_()
            self.move_(wanted.mode)
        self.mark_()

    def mark_(self) -> None:
        """Have the modules know what their weights hold, for files and for copies."""
        if isinstance(self.method, Correction):
            for weight in self.method.weights:
                mark_(weight.owner, weight.name, self.method.record, follow=True)

    def move_(self, mode: str) -> None:
        """Keep the same effective weights in another way."""
        old, new = self.storage, self._storage(self.method, mode)
        if old.mode != mode and isinstance(old, WeightStorage):
            effective = old.effective()
            old.leave_()
            new.enter_(effective)
            self.storage = new

    def leave_(self) -> None:
        """Take the method off the model, which knows nothing of it any more."""
        self.storage.leave_()
        for weight in self.weights:
            unmark_(weight.owner, weight.name)

    def change_(self, method: Correction, chosen: str) -> None:
        """Put another strength on the same W."""
        self.leave_()
        self.method, self.chosen = method, chosen
        self.storage = self._storage(method, self.storage.mode)
        self.storage.enter_()
        self.mark_()

    def adopt_(self, method: Correction, chosen: str) -> None:
        """Take over the strength of a state: for the same W, or for the W + C that was loaded since."""
        if self.storage.mode == "live" or all(folded.untouched for folded in self.decay.folded):
            self.change_(method, chosen)
            return
        self.method, self.storage = method, Folded(method, self.decay)
        self.storage.hold_()
        self.mark_()

    def attach(self, optimizer: Any) -> None:
        """Show W to an optimizer of folded weights; check that another trains what is new."""
        if "folded" in self.method.modes:
            inner(optimizer)
        added = self.storage.added()
        if self.decay.folded:
            self.decay.attach(optimizer)
        elif added:
            check_trained(optimizer, self.method.name, added)

    def concerns(self, optimizer: Any) -> bool:
        """Return whether `attach` has anything to do."""
        ours = [folded.weight.parameter for folded in self.decay.folded] or [w for _, _, w in self.storage.added()]
        return bool(ours) and not parameter_ids(inner(optimizer)).isdisjoint(map(id, ours))

    def after_step(self, optimizer: Any) -> None:
        """Follow a step of a loop that says so itself."""
        if "folded" in self.method.modes:
            self.decay.after_step(optimizer)
        if isinstance(self.storage, Live):
            self.storage.stepped()

    def snapshot(self, written: Written) -> list[Callable[[], None]]:
        """Return what puts the model back as it is now: numbers first, since rules follow from them."""
        method, attributes = self.method, attributes_of(self, self.decay, *self.decay.folded)
        if not isinstance(method, Correction):
            return [attributes]
        reachable = method.reachable
        fixed = method if written == "corrected" and isinstance(method, FixedCorrection) else None
        changed = untied(reachable) if written != "none" else []
        numbers = [numbers_of(weight.parameter, fixed.entries(weight) if fixed else None) for weight in changed]
        owners = list({id(weight.owner): weight.owner for weight in reachable}.values())
        return [*numbers, modules_of(owners), lambda: guard_(method.model), attributes]
