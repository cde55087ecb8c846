"""LiveWeight: the effective weight of one parameter, computed by a rule and kept for as long as W is the same."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, final

import torch
from torch import Tensor, nn

from wellcond._core.deferred_torch import is_dtensor
from wellcond.attention.storage import full, like
from wellcond.conditioning.storage.rule import Rule, computing
from wellcond.errors import CheckpointError, WeightError


@final
class LiveWeight:
    """The tensor that a reader of a live parameter gets, and that a state dictionary holds.

    The last effective weight is kept, and state dictionaries alias it: code that averages models by writing into
    `state_dict()` writes here.

    Attributes:
        rule: how the effective weight follows from W.
        kept: the last effective weight.
        sharded: whether FSDP2 refills the parameter, without telling its version.
    """

    def __init__(self, rule: Rule) -> None:
        self.rule = rule
        self.kept: Tensor | None = None
        self.sharded = False
        self._written = 0  # version of `kept` when we wrote it
        self._source: Tensor | None = None  # what it was computed from
        self._versions: tuple[int, ...] = ()
        self._memory: torch.UntypedStorage | None = None  # its numbers: `weight.data = …` has no version

    def __call__(self, weight: Tensor) -> Tensor:
        """Return the effective weight; the kept one where no gradient flows through C and W has not changed."""
        rule = self.rule
        rule.settle(weight)
        if torch.compiler.is_compiling():
            return rule.compute(weight) if rule.traceable else self._traced(weight)
        written = self._as_written(weight)
        if written is not None:
            return written
        if not rule.fixed_gradient:
            return rule.compute(weight)
        if type(weight) is not nn.Parameter or weight.is_meta:
            # functional_call, a DTensor; what state_dict() gave is the effective weight already.
            return weight if weight is self.kept else rule.compute(weight)
        return _Straight.apply(weight, self.refreshed(weight))  # type: ignore[no-any-return]

    def _traced(self, weight: Tensor) -> Tensor:
        """Read the kept weight in a compiled graph; `stepped` brings it up to date between the graphs."""
        if self.kept is None:
            raise CheckpointError("run the model once before compiling it")
        return weight + (self.kept - weight.detach())

    @computing()
    def refreshed(self, weight: Tensor) -> Tensor:
        """Return the kept effective weight, brought up to date."""
        if self.fresh(weight):
            assert self.kept is not None
            return self.kept
        if self.kept is not None:
            self.rule.advance()
        return self.keep(weight, self.rule.effective(weight.detach()))

    @computing()
    def export(self, weight: Tensor) -> Tensor:
        """Return the effective weight for a state dictionary, sharded as the parameter is: the bits of a reader."""
        self.rule.settle(weight)
        if is_dtensor(weight):
            return like(weight, self.rule.compute(full(weight)))
        written = self._as_written(weight)
        return self.refreshed(weight) if written is None else written

    @property
    def written(self) -> bool:
        """Whether somebody wrote into the effective weight itself."""
        return self.kept is not None and self.kept._version != self._written

    def _as_written(self, weight: Tensor) -> Tensor | None:
        """Return the effective weight if it is `written`, to be used as it is; raise where W has changed since."""
        if not self.written:
            return None
        if self._source is None:
            self._source, self._versions = weight, self._versions_of(weight)
        if weight is not self._source or self._versions_of(weight) != self._versions:
            raise WeightError(
                f"an effective weight of shape {tuple(weight.shape)} was written in place, and then the weight that is "
                "trained changed too; write before wc.condition_, or load with load_state_dict"
            )
        return self.kept

    def _versions_of(self, weight: Tensor) -> tuple[int, ...]:
        """Return what shows a change of anything the effective weight follows from."""
        extras = (self.rule.extra(key)._version for key in self.rule.parameters)
        return weight._version, *extras, self.rule.revision

    def keep(self, weight: Tensor, effective: Tensor) -> Tensor:
        """Remember an effective weight and what it came from; return the tensor that now holds it."""
        kind = (effective.shape, effective.dtype, effective.device)
        if self.kept is not None and (self.kept.shape, self.kept.dtype, self.kept.device) == kind:
            self.kept.copy_(effective)  # in place: compiled graphs and state dictionaries hold this tensor
        else:
            self.kept = effective
        self._source, self._versions, self._written = weight, self._versions_of(weight), self.kept._version
        self._memory = weight.untyped_storage()
        return self.kept

    def fresh(self, weight: Tensor) -> bool:
        """Return whether the kept weight still belongs to W."""
        if self.kept is None or weight is not self._source or self._memory is None:
            return False
        same_memory = weight.untyped_storage().data_ptr() == self._memory.data_ptr()
        return same_memory and self._versions_of(weight) == self._versions

    def loaded(self, weight: Tensor, effective: Tensor | None = None) -> None:
        """Follow a weight that was loaded, see `Rule.loaded`."""
        self.rule.loaded(weight, effective)
        self.renew(weight)

    @computing()
    def renew(self, weight: Tensor) -> None:
        """Follow a change that is not a step; in the same tensor, since a compiled graph reads it without asking."""
        if not self.rule.fixed_gradient or is_dtensor(weight) or weight.is_meta or self.sharded:
            self.kept = None
        else:
            self.keep(weight, self.rule.effective(weight.detach()))

    @computing()
    def moved(self, weight: Tensor, move: Callable[[Tensor], Tensor]) -> None:
        """Follow the module to another device or precision."""
        if self.written:
            assert self.kept is not None
            self.kept, self._source, self._written = move(self.kept), None, -1
        elif self.kept is not None:
            self.renew(weight)

    def stepped(self, weight: Tensor, told: bool = False) -> None:
        """Follow a step of any optimizer; `told` where it held the parameter with a gradient.

        Optimizers that write into `weight.data` leave its version as it is.
        """
        told, sharded = told and not self.written, is_dtensor(weight) or self.sharded
        self.rule.stepped(weight, told, sharded)
        if told or (sharded and self.rule.fixed_gradient):
            self._source = None  # computed again when it is read; if sharded, when FSDP2 has gathered the weight
        if self.rule.fixed_gradient and not (sharded or weight.is_meta or self.written):
            self.refreshed(weight)  # now: a compiled graph reads it without asking

    def __getstate__(self) -> dict[str, Any]:
        """Have a copy compute anew, unless its effective weight was written."""
        kept = self.kept if self.written else None
        return self.__dict__ | {"kept": kept, "_source": None, "_versions": (), "_memory": None, "_written": -1}


class _Straight(torch.autograd.Function):
    """Hand out the effective weight; its gradient is that of the trained weight."""

    @staticmethod
    def forward(ctx: Any, weight: Tensor, effective: Tensor) -> Tensor:
        return effective

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return grads[0], None
