r"""FoldedWeight: a parameter that holds W + C, with the exact W that an optimizer is shown.

Training W inside `W + C` with a fixed C is training `V = W + C`, but for weight decay, which would pull V towards zero
instead of W. So the optimizer is shown W: before each step the few entries that C changes are put back to W, and after
it they are W + C again. Their exact W is kept between steps (V has fewer digits left for it), so a folded model trains
bit for bit as a live one does, whatever the optimizer makes of a weight.
"""

from __future__ import annotations

from typing import final

import torch
from torch import Tensor

from wellcond._core.deferred_torch import is_dtensor
from wellcond.attention.storage import full, like
from wellcond.conditioning.target_weights import Entries, TargetWeight
from wellcond.errors import CheckpointError, OptimizerError


@final
class FoldedWeight:
    """The entries of one parameter that a fixed correction changes, in this rank's shard.

    Attributes:
        shown: whether an optimizer is being shown W.
    """

    def __init__(self, weight: TargetWeight, change: Entries) -> None:
        self.weight, self._whole = weight, change
        self._local: tuple[object, Entries] = (None, change)
        self._exact: tuple[Tensor, Tensor] | None = None  # W and W + C at the entries, as last written
        self.shown = False

    @torch.no_grad()
    def add_(self) -> None:
        """Put W + C where W was."""
        numbers, change = self._here()
        trained = change.take(numbers)
        if self.shown and self._exact is not None:
            self._check(trained, change)
        change.add_(numbers)
        self._exact, self.shown = (trained, change.take(numbers)), False

    @torch.no_grad()
    def take_away_(self) -> Tensor:
        """Put W where W + C was, with the very bits if nobody else has written there; return W at the entries."""
        numbers, change = self._here()
        trained = self.trained()
        change.put_(numbers, trained)
        return trained

    def show_(self) -> None:
        """Put W there for the time of a step."""
        if not self.shown:
            trained = self.take_away_()
            self._exact, self.shown = (trained, trained), True

    def trained(self) -> Tensor:
        """Return W at the entries."""
        numbers, change = self._here()
        now = change.take(numbers)
        if self._exact is not None and torch.equal(now, self._exact[1].to(now)):
            return self._exact[0].to(now)
        return now - change.on(now).value

    def gathered(self) -> Tensor:
        """Return W at the entries of the whole parameter, on every rank."""
        parameter, trained = self.weight.parameter, self.trained()
        if not is_dtensor(parameter):
            return trained
        numbers, change = self._here()
        local = torch.zeros_like(numbers)
        change.put_(local, trained)
        return self._whole.take(full(type(parameter).from_local(local, parameter.device_mesh, parameter.placements)))

    @property
    def untouched(self) -> bool:
        """Whether the parameter holds at the entries what was last written there."""
        numbers, change = self._here()
        return self._exact is not None and torch.equal(change.take(numbers), self._exact[1].to(numbers))

    def check_state(self, trained: Tensor) -> None:
        """Raise unless numbers belong to these entries."""
        if trained.shape != self._whole.value.shape:
            raise CheckpointError(
                f"'{self.weight.path}' has {trained.numel()} conditioned entries in the state, "
                f"{self._whole.value.numel()} here"
            )

    @torch.no_grad()
    def restore(self, trained: Tensor) -> bool:
        """Take over what `gathered` gave in another process, before or after the model's own state is loaded.

        It counts where the parameter holds the W + C that belongs to it, and nowhere else. Where it holds W + 2 C,
        since W + C was loaded before the model was conditioned, W + C is put back; return whether it was so.
        """
        parameter = self.weight.parameter
        if is_dtensor(parameter):
            whole = torch.zeros(parameter.shape, dtype=trained.dtype, device=parameter.device)
            self._whole.put_(whole, trained.to(whole))
            trained = self._here()[1].take(like(parameter, whole).to_local())
        numbers, change = self._here()
        trained, value = trained.to(numbers), change.on(numbers).value
        now, effective = change.take(numbers), trained + value
        twice = bool(len(now)) and torch.equal(now, effective + value) and not torch.equal(now, effective)
        if twice:
            change.put_(numbers, effective)
        self._exact = trained, effective
        return twice

    def _check(self, trained: Tensor, change: Entries) -> None:
        """Raise where an optimizer wrote its own copy of W + C back: a step cannot move every entry by C."""
        assert self._exact is not None
        moved = ((trained - self._exact[0].to(trained)) / change.on(trained).value).mean()
        if float(moved) > 0.5:
            self._exact, self.shown = None, False
            raise OptimizerError(
                f"the optimizer keeps its own copy of '{self.weight.path}' and wrote that back, so it decays W + C; "
                "condition with mode='live', before the optimizer is built"
            )

    def _here(self) -> tuple[Tensor, Entries]:
        """Return this rank's numbers, and the entries in them."""
        parameter = self.weight.parameter.detach()
        if not is_dtensor(parameter):
            return parameter, self._whole
        key = parameter.device_mesh, parameter.placements
        if self._local[0] != key:
            self._local = key, self._whole.local(parameter)
        return parameter.to_local(), self._local[1]
