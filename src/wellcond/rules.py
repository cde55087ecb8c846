"""Rules: how the weight that is used follows from the weight that is stored.

`live.py` puts them to work; nothing here knows of modules.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from wellcond.attention.storage import full, like
from wellcond.errors import WeightError


@contextmanager
def computing() -> Iterator[None]:
    """No gradients, and ordinary tensors even inside `torch.inference_mode`: they outlive it."""
    with torch.inference_mode(False), torch.no_grad():
        yield


class Rule:
    """How the weight that is used follows from the weight that is stored.

    Subclasses say `compute` (and `invert`, what to store so that a given effective weight is used). The last result is
    kept, and state dictionaries alias it: code that averages models by writing into `state_dict()` writes here.

    Attributes:
        parameters: further trainable tensors of the rule, registered beside the weight as `NAME_KEY`.
    """

    def __init__(self) -> None:
        self.parameters: dict[str, nn.Parameter] = {}
        self._holder: tuple[dict[str, Any], str] | None = None  # the owner's parameters, and the weight's name
        self.kept: Tensor | None = None  # the last effective weight
        self._written = 0  # version of `kept` when we wrote it
        self._source: Tensor | None = None  # what it was computed from
        self._version: tuple[int, ...] = ()
        self._memory: torch.UntypedStorage | None = None  # its numbers: `weight.data = …` has no version
        self._sharded = False  # FSDP2 refills the parameter without telling its version

    def extra(self, key: str) -> Tensor:
        """One of `parameters` as the model holds it now: sharding and `functional_call` put another in its place."""
        if self._holder is None:
            return self.parameters[key]
        registered, name = self._holder
        found: Tensor = registered[f"{name}_{key}"]
        return found

    def versions(self, weight: Tensor) -> tuple[int, ...]:
        """A change of anything the effective weight follows from shows here."""
        return (weight._version, *(self.extra(key)._version for key in self.parameters))

    def compute(self, weight: Tensor) -> Tensor:
        """The effective weight, with its gradient; runs inside compiled graphs too."""
        raise NotImplementedError

    def invert(self, effective: Tensor) -> Tensor:
        """What to store so that `effective` is used; raise `CheckpointError` where nothing would give it.

        Changes nothing: another rule may refuse what belongs to the same checkpoint.
        """
        raise NotImplementedError

    def state(self) -> dict[str, Tensor]:
        """Tensors beyond the weight itself that a bit-exact continuation needs."""
        return {}

    def load(self, state: dict[str, Tensor]) -> None:
        """Take over `state()` of another process."""

    def loaded(self, weight: Tensor, effective: Tensor | None = None) -> None:
        """Called when another weight was loaded: not a step, and nothing that is remembered belongs to it.

        Args:
            weight: the parameter, which now holds the loaded numbers.
            effective: what is to be used, where W was found by `invert`.
        """
        self.renew(weight)

    def renew(self, weight: Tensor) -> None:
        """Bring the kept weight up to date with a change that is not a step."""
        self.kept = None

    @computing()
    def moved(self, weight: Tensor, move: Callable[[Tensor], Tensor]) -> None:
        """Called when the module went to another device or precision."""
        if self.written:
            assert self.kept is not None
            self.kept, self._source, self._written = move(self.kept), None, -1
        elif self.kept is not None:
            self.renew(weight)

    @property
    def written(self) -> bool:
        """Whether somebody wrote into the effective weight itself."""
        return self.kept is not None and self.kept._version != self._written

    def __call__(self, weight: Tensor) -> Tensor:
        """The effective weight for the stored one."""
        if torch.compiler.is_compiling() or not self._is_kept(weight):
            return self.compute(weight)
        assert self.kept is not None
        return self.kept

    def _is_kept(self, weight: Tensor) -> bool:
        """Whether somebody wrote into the effective weight itself (an average of models), so that it is used as is."""
        if not self.written:
            return False
        if self._source is None:
            self._source, self._version = weight, self.versions(weight)
        if weight is not self._source or self.versions(weight) != self._version:
            raise WeightError(
                f"an effective weight of shape {tuple(weight.shape)} was written in place, and then the weight that is "
                "trained changed too; write before wc.condition_, or load with load_state_dict"
            )
        return True

    def keep(self, weight: Tensor, effective: Tensor) -> Tensor:
        """Remember an effective weight and what it came from; return the tensor that now holds it."""
        same = self.kept is not None and (self.kept.shape, self.kept.dtype, self.kept.device) == (
            effective.shape,
            effective.dtype,
            effective.device,
        )
        if same and self.kept is not None:
            self.kept.copy_(effective)  # in place: compiled graphs and state dictionaries hold this tensor
        else:
            self.kept = effective
        self._source, self._version, self._written = weight, self.versions(weight), self.kept._version
        self._memory = weight.untyped_storage()
        return self.kept

    def fresh(self, weight: Tensor) -> bool:
        """Whether the remembered weight still belongs to the stored one."""
        if self.kept is None or weight is not self._source or self._memory is None:
            return False
        same_memory = weight.untyped_storage().data_ptr() == self._memory.data_ptr()
        return same_memory and self.versions(weight) == self._version

    def __getstate__(self) -> dict[str, Any]:
        """A copy computes anew, unless its effective weight was written."""
        kept = self.kept if self.written else None
        return self.__dict__ | {"kept": kept, "_source": None, "_version": (), "_memory": None, "_written": -1}

    @computing()
    def export(self, weight: Tensor) -> Tensor:
        """The effective weight for a state dictionary, sharded as the stored one is."""
        if isinstance(weight, DTensor):
            return like(weight, self.compute(full(weight)))
        if self._is_kept(weight) or self.fresh(weight):
            assert self.kept is not None
            return self.kept
        return self.keep(weight, self.compute(weight.detach()).detach())

    def stepped(self, weight: Tensor) -> None:
        """Called after each step of any optimizer."""


class FixedGradient(Rule):
    """`W + C` where no gradient flows through C: computed once per change of W, then handed out without a copy."""

    def corrected(self, weight: Tensor) -> Tensor:
        """`W + C` in a new tensor; W is a whole, plain, detached tensor."""
        raise NotImplementedError

    def compute(self, weight: Tensor) -> Tensor:
        """Differentiable in W as the identity, whatever kind of tensor W is."""
        if isinstance(weight, DTensor):
            whole = full(weight)
            return weight + like(weight, self.corrected(whole) - whole)
        return weight + (self.corrected(weight.detach()) - weight.detach())

    def __call__(self, weight: Tensor) -> Tensor:
        """The effective weight; the kept one where W is the model's own parameter and has not changed."""
        if torch.compiler.is_compiling():
            return self.traced(weight)
        if self._is_kept(weight):
            assert self.kept is not None
            return self.kept
        if type(weight) is not nn.Parameter or weight.is_meta:
            # functional_call, a DTensor; what state_dict() gave is the effective weight already.
            return weight if weight is self.kept else self.compute(weight)
        return _Straight.apply(weight, self.refreshed(weight))  # type: ignore[no-any-return]

    def traced(self, weight: Tensor) -> Tensor:
        """What a compiled graph does."""
        return self.compute(weight)

    @computing()
    def refreshed(self, weight: Tensor) -> Tensor:
        """The kept effective weight, brought up to date."""
        if self.fresh(weight):
            assert self.kept is not None
            return self.kept
        if self.kept is not None:
            self.advance()
        return self.keep(weight, self.corrected(weight.detach()))

    def export(self, weight: Tensor) -> Tensor:
        """See `Rule.export`: the very bits that a forward pass uses, whichever of the two comes first."""
        if isinstance(weight, DTensor) or self._is_kept(weight):
            return super().export(weight)
        return self.refreshed(weight)

    @computing()
    def renew(self, weight: Tensor) -> None:
        """Computed now, in the same tensor: a compiled graph reads it without asking."""
        if isinstance(weight, DTensor) or weight.is_meta or self._sharded:
            self.kept = None
        else:
            self.keep(weight, self.corrected(weight.detach()))

    def advance(self) -> None:
        """Called when W has changed, before `corrected`."""

    def stepped(self, weight: Tensor) -> None:
        """Bring the kept weight up to date now: a compiled graph reads it without asking."""
        if isinstance(weight, DTensor) or self._sharded:
            self._source = None  # computed when FSDP2 has gathered the weight
        elif not weight.is_meta and not self.written:
            self.refreshed(weight)


class _Straight(torch.autograd.Function):
    """Hand out the effective weight; its gradient is that of the stored weight."""

    @staticmethod
    def forward(ctx: Any, weight: Tensor, effective: Tensor) -> Tensor:
        return effective

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return grads[0], None
