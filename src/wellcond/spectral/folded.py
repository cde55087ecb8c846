"""A shift inside the stored weights, with weight decay anchored at it: `wc.condition_(model, "shift")`."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from types import MappingProxyType
from typing import Any, Self
from weakref import WeakSet

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer

from wellcond.errors import OptimizerError, SchemeError, WeightError
from wellcond.live import uninstall
from wellcond.spectral import decay as anchoring
from wellcond.spectral.corrections import WeightConditioning
from wellcond.spectral.decay import Decay
from wellcond.spectral.guarantee import shift_bounds
from wellcond.spectral.shift import Entries, ShiftRule, entries, identity, local_entries
from wellcond.spectral.steps import inner, listen
from wellcond.spectral.weights import Part, Weight, untied


class ShiftConditioning(WeightConditioning):
    """`λ I` for each head: a rule while live; folded, a few changed entries and an anchor for the decay."""

    method = "shift"
    citation = "Spectral Conditioning of Attention, Theorem 3.8"
    modes = ("folded", "live")
    strength_default = 10.0
    defaults = MappingProxyType({"placement": "head"})

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        if self.placement not in ("head", "layer"):
            raise SchemeError(f"placement is 'head' or 'layer', got {self.placement!r}")
        self._whole: dict[str, Entries] = {}
        self._local: dict[tuple[str, Any], Entries] = {}
        self._folded: dict[str, tuple[Tensor, Tensor]] = {}  # the entries before and after they were shifted
        self._decay: dict[int, Decay | None] = {}
        self._attached: WeakSet[Optimizer] = WeakSet()
        self._expected: WeakSet[Optimizer] = WeakSet()  # stepped without attach; after_step may still come
        self._forgotten: WeakSet[Optimizer] = WeakSet()
        self._restore: dict[int, Callable[[], None]] = {}

    @property
    def placement(self) -> str:
        """`"head"` or `"layer"`."""
        return str(self.options["placement"])

    def rule(self, weight: Weight) -> ShiftRule:
        """Add the identity."""
        return ShiftRule(self._entries(weight))

    def bounds(self, part: Part, stored: Tensor) -> list[float]:
        """The sound form of Theorem 3.8."""
        return shift_bounds(stored, identity(part, part.projection.shape, self.placement))

    def start_(self, mode: str, as_original: bool) -> None:
        """Fold without a detour: only a few entries of each parameter change."""
        if mode == "live":
            super().start_(mode, as_original)
            return
        for weight in self.weights:
            if weight.stored.dtype in (torch.bfloat16, torch.float16):
                raise WeightError(
                    f"'{weight.path}' is stored in {weight.stored.dtype}, where a shift of "
                    f"{weight.parts[0].strength:g} rounds away the diagonal of W; keep the weights in float32 (use "
                    "autocast), or mode='live'"
                )
        if as_original:
            self._shift_(1.0)
        if not self.active:
            self._keep()
        self.mode = "folded"
        listen(self)

    def remove_(self) -> None:
        """W in the stored weight, and nothing else."""
        if self.active and self.mode == "folded":
            self._shift_(-1.0)
            self._drop()
        else:
            super().remove_()

    @torch.no_grad()
    def fold_(self) -> None:
        """W + C in the stored weight."""
        self._must_be("live", "fold_")
        for weight in self.weights:
            uninstall(weight.owner, weight.name)
        self.start_("folded", as_original=True)

    @torch.no_grad()
    def unfold_(self) -> None:
        """W in the stored weight, exactly as it was if nothing has changed since."""
        self._must_be("folded", "unfold_")
        self._shift_(-1.0)
        self.install_()

    def attach(self, optimizer: Any, decay: Decay | None = None) -> Self:
        """See `Conditioning.attach`. Checks every group that holds a conditioned weight, decaying or not."""
        found = inner(optimizer)
        if self.mode == "live":
            return self
        mine = {id(weight.stored): weight.path for weight in self.weights}
        held = [group for group in found.param_groups if any(id(p) in mine for p in group["params"])]
        if not held:
            raise OptimizerError(
                f"this {type(found).__name__} holds none of the {len(mine)} conditioned weights "
                f"('{next(iter(mine.values()), '')}', …): build it from model.parameters() after wrapping or sharding"
            )
        for group in held:
            anchoring.decay_kind(found, group, decay)
        self._attached.add(found)
        self._decay[id(found)] = decay
        return self

    def after_step(self, optimizer: Any = None) -> None:
        """See `Conditioning.after_step`; gradients that include the decay were seen to before the step."""
        if self.mode != "folded" or optimizer is None:
            return
        found = inner(optimizer)
        if found not in self._attached:
            anchoring.after_step(found, self._found, None)
            self._expected.discard(found)
            self._forgotten.discard(found)

    def before(self, optimizer: Optimizer) -> None:
        """Called before every optimizer step in the process."""
        if self.mode != "folded" or not self.active or optimizer in self._forgotten:
            return
        if optimizer not in self._attached and not self._trusted(optimizer):
            return
        self._restore[id(optimizer)] = anchoring.before_step(optimizer, self._found, self._decay.get(id(optimizer)))

    def after(self, optimizer: Optimizer) -> None:
        """Called after every optimizer step in the process."""
        restore = self._restore.pop(id(optimizer), None)
        if restore is None:
            return
        restore()
        if optimizer in self._attached:
            anchoring.after_step(optimizer, self._found, self._decay.get(id(optimizer)))
        else:
            self._expected.add(optimizer)

    def _trusted(self, optimizer: Optimizer) -> bool:
        """Whether a step without attach may be one whose loop calls after_step: one such step is granted."""
        try:
            kinds = [anchoring.decay_kind(optimizer, g) for g, _, _ in anchoring.anchored(optimizer, self._found)]
            reason = "" if not kinds or optimizer not in self._expected else "nothing was attached to it"
        except OptimizerError as error:
            kinds, reason = [], str(error)
        if reason:
            self._forgotten.add(optimizer)
            warnings.warn(
                f"{type(optimizer).__name__} decays weights that hold W + C, so it pulls them towards zero instead of "
                f"towards C: {reason}; call c.attach(optimizer) on what wc.condition_ returned, once, or "
                "c.after_step(optimizer) after each step",
                stacklevel=2,
            )
        return bool(kinds) and not reason

    def _found(self, parameter: Tensor) -> Entries | None:
        """The entries of one of our parameters, in this rank's shard."""
        weight = self._by_id().get(id(parameter))
        if weight is None:
            return None
        return self._here(weight)

    def _by_id(self) -> dict[int, Weight]:
        return {id(weight.stored): weight for weight in self.weights}

    def _entries(self, weight: Weight) -> Entries:
        if weight.path not in self._whole:
            self._whole[weight.path] = entries(weight, self.placement)
        return self._whole[weight.path]

    def _here(self, weight: Weight) -> Entries:
        stored = weight.stored
        if not isinstance(stored, DTensor):
            return self._entries(weight)
        key = weight.path, (stored.device_mesh, stored.placements)
        if key not in self._local:
            self._local[key] = local_entries(stored, self._entries(weight))
        return self._local[key]

    @torch.no_grad()
    def _shift_(self, sign: float) -> None:
        """Add or take away C; taken from entries nobody has touched, it leaves the bits that were there before."""
        for weight in untied(self.weights):
            stored, change = weight.stored.detach(), self._here(weight)
            numbers = stored.to_local() if isinstance(stored, DTensor) else stored
            now = change.take(numbers)
            before, after = self._folded.pop(weight.path, (None, None))
            if sign < 0 and before is not None and after is not None and torch.equal(now, after.to(now)):
                change.put_(numbers, before.to(now))
            else:
                change.add_(numbers, sign)
            if sign > 0:
                self._folded[weight.path] = now, change.take(numbers)

    def _forget(self) -> None:
        self._whole.clear()
        self._local.clear()
