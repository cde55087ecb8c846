"""AnchoredDecay: show W to the optimizers of folded weights, so that decay pulls W + C towards C."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, final
from weakref import WeakSet

from torch.optim import Optimizer

from wellcond._core.user_warnings import warn_user
from wellcond.conditioning.storage.folded_weight import FoldedWeight
from wellcond.conditioning.storage.optimizer_hooks import check_optimizer, guard, hear_steps, inner, parameter_ids
from wellcond.errors import OptimizerError


@final
class AnchoredDecay:
    """The folded weights of one handle and the optimizers that are shown W; it outlives a change of mode or strength.

    Attributes:
        folded: the weights; none while the handle is not folded.
        attached: optimizers that `Conditioning.attach` was given.
        expected: optimizers that stepped without; `Conditioning.after_step` may still come.
    """

    def __init__(self) -> None:
        self.folded: list[FoldedWeight] = []
        self.attached: WeakSet[Optimizer] = WeakSet()
        self.expected: WeakSet[Optimizer] = WeakSet()
        self._forgotten: WeakSet[Optimizer] = WeakSet()

    def anchor(self, folded: Sequence[FoldedWeight]) -> None:
        """Watch these weights from now on, and no others."""
        self.folded = list(folded)
        if folded:
            hear_steps(self)

    def attach(self, optimizer: Any) -> None:
        """Show W to an optimizer at each step; raise where it holds none of the weights, or needs W itself."""
        found = inner(optimizer)
        if self.folded and not self._ours(found):
            raise OptimizerError(
                f"this {type(found).__name__} holds none of the {len(self.folded)} conditioned weights "
                f"('{self.folded[0].weight.path}', …): build it from model.parameters() after wrapping or sharding"
            )
        check_optimizer(found)
        if found not in self.attached:
            guard(found, lambda: self.after(found))
        self.attached.add(found)

    def after_step(self, optimizer: Any = None) -> None:
        """Note that a loop says so after its steps, instead of `attach`."""
        for found in list(self.expected) if optimizer is None else [inner(optimizer)]:
            self.expected.discard(found)

    def before(self, optimizer: Optimizer) -> None:
        """Show W, before every optimizer step in the process, to ours."""
        ours = self._ours(optimizer)
        if ours and (optimizer in self.attached or self._granted(optimizer, ours)):
            for folded in ours:
                folded.show_()

    def after(self, optimizer: Optimizer) -> None:
        """Use W + C again, after every optimizer step in the process."""
        shown = [folded for folded in self.folded if folded.shown]
        for folded in shown:
            folded.add_()
        # A fused step is called even if GradScaler found an inf, and then does nothing.
        if shown and optimizer not in self.attached and not float(getattr(optimizer, "found_inf", None) or 0):
            self.expected.add(optimizer)

    def _ours(self, optimizer: Optimizer) -> list[FoldedWeight]:
        has = parameter_ids(optimizer)
        return [folded for folded in self.folded if id(folded.weight.parameter) in has]

    def _granted(self, optimizer: Optimizer, ours: list[FoldedWeight]) -> bool:
        """Allow one step without attach, since its loop may call after_step; then warn, once."""
        decayed = parameter_ids(optimizer, decayed=True)
        if optimizer in self._forgotten or decayed.isdisjoint(id(folded.weight.parameter) for folded in ours):
            return False
        reason = "nothing was attached to it" if optimizer in self.expected else ""
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
