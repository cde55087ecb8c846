r"""A correction inside a stored weight, which an optimizer does not see.

Training W inside `W + C` with a fixed C is training `V = W + C`, but for weight decay, which would pull V towards zero
instead of W. So the optimizer is shown W: before each step the few entries that C changes are put back to W, and after
it they are W + C again. Their exact W is kept between steps (V has fewer digits left for it), so a folded model trains
bit for bit as a live one does, whatever the optimizer makes of a weight.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from wellcond.attention.storage import full, like
from wellcond.errors import CheckpointError, OptimizerError
from wellcond.spectral.shift import Entries, local_entries
from wellcond.spectral.weights import Weight


class FoldedWeight:
    """The entries of one stored parameter that a correction changes, in this rank's shard."""

    def __init__(self, weight: Weight, change: Entries) -> None:
        self.weight, self._whole = weight, change
        self._local: tuple[object, Entries] = (None, change)
        self._exact: tuple[Tensor, Tensor] | None = None  # W and W + C at the entries, as last written
        self.shown = False  # whether an optimizer is being shown W

    @torch.no_grad()
    def add_(self) -> None:
        """W + C where W was."""
        numbers, change = self._here()
        original = change.take(numbers)
        if self.shown and self._exact is not None:
            self._check(original, change)
        change.add_(numbers)
        self._exact, self.shown = (original, change.take(numbers)), False

    @torch.no_grad()
    def take_away_(self) -> Tensor:
        """W where W + C was: with the very bits, if nobody else has written there; return W at the entries."""
        numbers, change = self._here()
        original = self.original()
        change.put_(numbers, original)
        return original

    def show_(self) -> None:
        """`take_away_` for the time of a step."""
        if not self.shown:
            original = self.take_away_()
            self._exact, self.shown = (original, original), True

    def original(self) -> Tensor:
        """W at the entries."""
        numbers, change = self._here()
        now = change.take(numbers)
        if self._exact is not None and torch.equal(now, self._exact[1].to(now)):
            return self._exact[0].to(now)
        return now - change.on(now).value

    def gathered(self) -> Tensor:
        """W at the entries of the whole parameter, on every rank."""
        stored, original = self.weight.stored, self.original()
        if not isinstance(stored, DTensor):
            return original
        numbers, change = self._here()
        local = torch.zeros_like(numbers)
        change.put_(local, original)
        return self._whole.take(full(DTensor.from_local(local, stored.device_mesh, stored.placements)))

    @property
    def untouched(self) -> bool:
        """Whether the parameter holds at the entries what was last written there."""
        numbers, change = self._here()
        return self._exact is not None and torch.equal(change.take(numbers), self._exact[1].to(numbers))

    def check_state(self, original: Tensor) -> None:
        """Raise unless numbers belong to these entries."""
        if original.shape != self._whole.value.shape:
            raise CheckpointError(
                f"'{self.weight.path}' has {original.numel()} conditioned entries in the state, "
                f"{self._whole.value.numel()} here"
            )

    @torch.no_grad()
    def restore(self, original: Tensor) -> bool:
        """Take over what `gathered` gave in another process, before or after the model's own state is loaded.

        It counts where the parameter holds the W + C that belongs to it, and nowhere else. Where it holds W + 2 C,
        since W + C was loaded before the model was conditioned, W + C is put back; return whether it was so.
        """
        stored = self.weight.stored
        if isinstance(stored, DTensor):
            whole = torch.zeros(stored.shape, dtype=original.dtype, device=stored.device)
            self._whole.put_(whole, original.to(whole))
            original = self._here()[1].take(like(stored, whole).to_local())
        numbers, change = self._here()
        original, value = original.to(numbers), change.on(numbers).value
        now, used = change.take(numbers), original + value
        twice = bool(len(now)) and torch.equal(now, used + value) and not torch.equal(now, used)
        if twice:
            change.put_(numbers, used)
        self._exact = original, used
        return twice

    def _check(self, original: Tensor, change: Entries) -> None:
        """A step cannot move every entry by C; an optimizer that wrote its own copy of W + C back can."""
        assert self._exact is not None
        moved = ((original - self._exact[0].to(original)) / change.on(original).value).mean()
        if float(moved) > 0.5:
            self._exact, self.shown = None, False
            raise OptimizerError(
                f"the optimizer keeps its own copy of '{self.weight.path}' and wrote that back, so it decays W + C; "
                "condition with mode='live', before the optimizer is built"
            )

    def _here(self) -> tuple[Tensor, Entries]:
        """This rank's numbers, and the entries in them."""
        stored = self.weight.stored.detach()
        if not isinstance(stored, DTensor):
            return stored, self._whole
        key = stored.device_mesh, stored.placements
        if self._local[0] != key:
            self._local = key, local_entries(stored, self._whole)
        return stored.to_local(), self._local[1]
