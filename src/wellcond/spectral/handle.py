"""What `wc.condition_` returns: one interface for every method."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Self

from torch import nn

from wellcond.attention.find import AttentionLayers
from wellcond.errors import CheckpointError, InapplicableError
from wellcond.spectral.cost import Cost
from wellcond.spectral.decay import Decay
from wellcond.spectral.guarantee import Summary


class Conditioning:
    """A conditioned model's handle: attach it to the optimizer, look at it, fold it, take it off, save it.

    The model keeps its handle alive; copies of the model have none, and need none to compute.

    Attributes:
        method: the name given to `wc.condition_`.
        mode: `"folded"` (the weight holds W + C) or `"live"` (the weight holds W and is used as W + C).
        model: the conditioned model.
        layers: its conditioned attention layers.

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

    method: ClassVar[str] = ""
    citation: ClassVar[str] = ""
    modes: ClassVar[tuple[str, ...]] = ("live",)  # the first is the default
    strength_default: ClassVar[float | None] = None  # None: the method has no strength
    defaults: ClassVar[Mapping[str, Any]] = {}  # its options

    def __init__(
        self, model: nn.Module, layers: AttentionLayers, strength: Mapping[str, float], options: Mapping[str, Any]
    ) -> None:
        self.model, self.layers = model, layers
        self.strength, self.options = dict(strength), dict(options)
        self.mode = self.modes[0]
        self.active = False

    def check(self) -> None:
        """Raise unless the model can be conditioned; nothing has been changed yet."""

    def start_(self, mode: str, as_original: bool) -> None:
        """Condition the model."""
        raise NotImplementedError

    def attach(self, optimizer: Any, decay: Decay | None = None) -> Self:
        """Have weight decay pull W towards zero, as if W were trained inside W + C; nothing to do for a live weight.

        Args:
            optimizer: a torch optimizer, or a wrapper with `.optimizer` (Accelerate's, Lightning's).
            decay: `"decoupled"` or `"coupled"`, for an optimizer that is not known.
        """
        return self

    def after_step(self, optimizer: Any = None) -> None:
        """What `attach` does after each step, for loops that want to see it."""

    def summary(self) -> Summary:
        """κ of W and of what is used instead, per head, and whether the guarantee holds; prints as a table."""
        raise NotImplementedError

    def cost(self, tokens: int = 197) -> Cost:
        """What the conditioning costs, by formula and measured; prints as a table.

        Args:
            tokens: N, the sequence length in the formulas.
        """
        raise NotImplementedError

    def fold_(self) -> None:
        """Make the weight that is used the weight that is stored: an ordinary model, at no cost."""
        raise self._refused("fold_")

    def unfold_(self) -> None:
        """The opposite of `fold_`: store W again."""
        raise self._refused("unfold_")

    def strength_(self, strength: Any) -> None:
        """Change the strength; W stays."""
        raise self._refused("strength_")

    def remove_(self) -> None:
        """Give the model its own weights back."""
        raise NotImplementedError

    def state_dict(self) -> dict[str, Any]:
        """What a bit-exact continuation needs beside the model's and the optimizer's state."""
        return {
            "method": self.method,
            "mode": self.mode,
            "strength": dict(self.strength),
            "options": dict(self.options),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where another process stopped; call it after `model.load_state_dict`."""
        for key, mine in Conditioning.state_dict(self).items():
            if state.get(key) != mine:
                raise CheckpointError(f"the state has {key} {state.get(key)!r}, this conditioning {mine!r}")

    def _refused(self, what: str) -> InapplicableError:
        return InapplicableError(f"'{self.method}' has no {what}: it does not correct stored weights")

    def _keep(self) -> None:
        self.active = True
        self.model.__dict__.setdefault("_wellcond_handles", _Handles()).append(self)

    def _drop(self) -> None:
        self.active = False
        handles = self.model.__dict__.get("_wellcond_handles", [])
        self.model.__dict__["_wellcond_handles"] = _Handles(h for h in handles if h is not self)

    def __str__(self) -> str:
        strength = ", ".join(f"{role} {value:g}" for role, value in self.strength.items())
        state = self.mode if self.active else "removed"
        return f"{self.method}{f' ({strength})' if strength else ''}, {state}, {len(self.layers)} layers"

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {self}>"


class _Handles(list[Conditioning]):
    """Kept by the model, so that a handle nobody holds still watches; a copy of the model starts with none."""

    def __deepcopy__(self, memo: dict[int, Any]) -> _Handles:
        return _Handles()

    def __reduce_ex__(self, protocol: Any) -> Any:
        return _Handles, ()
