"""What `wc.condition_` returns: one interface for every method."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, ClassVar, Literal, Self
from weakref import WeakSet

from torch import nn

from wellcond.attention.find import AttentionLayers
from wellcond.attention.paths import unwrap
from wellcond.checked import Count, Folder, checked
from wellcond.errors import CheckpointError, InapplicableError
from wellcond.spectral.cost import Cost
from wellcond.spectral.guarantee import Summary

Written = Literal["none", "corrected", "all"]


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
        self.chosen = ""  # how the strength was found, where nobody gave it

    def with_strength(self, strength: Mapping[str, float]) -> Self:
        """The same for another strength of each role, not started."""
        return type(self)(self.model, self.layers, strength, self.options)

    def claims(self) -> Mapping[Hashable, Hashable]:
        """What only one conditioning can correct, each with what this one does to it."""
        return {}

    def check(self) -> None:
        """Raise unless the model can be conditioned; nothing has been changed yet."""

    def start_(self, mode: str, as_original: bool) -> None:
        """Condition the model."""
        raise NotImplementedError

    @checked
    def attach(self, optimizer: Any) -> Self:
        """Have an optimizer train W inside W + C (weight decay pulls W + C towards C); a live weight needs nothing.

        Args:
            optimizer: a torch optimizer, or a wrapper with `.optimizer` (Accelerate's, Lightning's).
        """
        return self

    @checked
    def concerns(self, optimizer: Any) -> bool:
        """Whether `attach` has anything to do for an optimizer, one of several of a model."""
        return False

    @checked
    def after_step(self, optimizer: Any = None) -> None:
        """Instead of `attach`, in a loop that would rather say so at each step."""

    def summary(self) -> Summary:
        """κ of W and of what is used instead, per head, and whether the guarantee holds; prints as a table."""
        raise NotImplementedError

    @checked
    def cost(self, tokens: Count = 197) -> Cost:
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

    @checked
    def strength_(self, strength: Any) -> None:
        """Change the strength; W stays."""
        raise self._refused("strength_")

    def remove_(self) -> None:
        """Give the model its own weights back."""
        raise NotImplementedError

    @checked
    def load_weights_(self, weights: Folder | Mapping[str, Any], as_original: bool = False) -> None:
        """Load the model's weights: what is used or, with `as_original=True`, W; all of them or none.

        Args:
            weights: a path as for `wc.load_weights_`, or a state dictionary.
            as_original: whether `weights` holds W, which is conditioned now.
        """
        raise self._refused("load_weights_")

    def original_(self, loaded: Collection[int]) -> None:
        """Called when stored tensors (by `id`) have just become W, for a mode that stores something else."""

    def state_dict(self) -> dict[str, Any]:
        """What a bit-exact continuation needs beside the model's and the optimizer's state."""
        return {
            "method": self.method,
            "mode": self.mode,
            "strength": dict(self.strength),
            "options": dict(self.options),
        }

    @checked
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where another process stopped, before or after `model.load_state_dict`.

        Before is the order that always works: with a correction that is older than its weight (`every` > 1), W + C
        alone may be refused.
        """
        for key, mine in Conditioning.state_dict(self).items():
            if state.get(key) != mine:
                raise CheckpointError(f"the state has {key} {state.get(key)!r}, this conditioning {mine!r}")

    def snapshot(self, written: Written) -> list[Callable[[], None]]:
        """What puts the model and the handle back as they are now, see `all_or_nothing`."""
        mine, active, root = dict(self.__dict__), self in _ACTIVE, unwrap(self.model)
        handles = root.__dict__.get("_wellcond_handles")

        def restore() -> None:
            self.__dict__.clear()
            self.__dict__.update(mine)
            (_ACTIVE.add if active else _ACTIVE.discard)(self)
            root.__dict__.pop("_wellcond_handles", None)
            if handles is not None:
                root.__dict__["_wellcond_handles"] = handles

        return [restore]

    def _refused(self, what: str) -> InapplicableError:
        return InapplicableError(f"'{self.method}' has no {what}: it does not correct stored weights")

    def _keep(self) -> None:
        self.active = True
        _ACTIVE.add(self)
        root = unwrap(self.model)  # a wrapper may be gone before the model is
        root.__dict__["_wellcond_handles"] = _Handles([*root.__dict__.get("_wellcond_handles", []), self])

    def _drop(self) -> None:
        self.active = False
        _ACTIVE.discard(self)
        root = unwrap(self.model)
        root.__dict__["_wellcond_handles"] = _Handles(
            h for h in root.__dict__.get("_wellcond_handles", []) if h is not self
        )

    def __str__(self) -> str:
        plain = self.strength_default is None
        strength = ", ".join(role if plain else f"{role} {value:g}" for role, value in self.strength.items())
        strength += f"; {self.chosen}" if strength and self.chosen else ""
        state = self.mode if self.active else "removed"
        return f"{self.method}{f' ({strength})' if strength else ''}, {state}, {len(self.layers)} layers"

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {self}>"


_ACTIVE: WeakSet[Conditioning] = WeakSet()


@contextmanager
def all_or_nothing(handle: Conditioning, written: Written = "corrected") -> Iterator[None]:
    """Put model and handle back if the block fails, also by Ctrl-C or a warning that is an error.

    Args:
        handle: it says itself what it may change, see `Conditioning.snapshot`.
        written: which numbers of the stored weights may be: none, those that a correction changes, or all.
    """
    undo = handle.snapshot(written)
    try:
        yield
    except BaseException:
        for step in undo:
            step()
        raise


def active_handles() -> list[Conditioning]:
    """Every handle of the process that conditions something."""
    return [handle for handle in _ACTIVE if handle.active]


@checked
def handles_of(model: nn.Module) -> list[Conditioning]:
    """The handles of a model, of what it contains and of what contains it; raise where only a copy's original has one.

    A folded model that was copied holds W + C, and nobody knows C any more.

    >>> import wellcond as wc
    >>> model = nn.TransformerEncoderLayer(8, 2, batch_first=True)
    >>> _ = wc.condition_(model, "polar")
    >>> [handle.method for handle in wc.handles_of(model)]
    ['polar']
    """
    if any(getattr(module.__dict__.get("_wellcond_handles"), "lost", False) for module in model.modules()):
        raise CheckpointError(
            "this model is a copy of a folded one, so it holds W + C without knowing C: load into the original and "
            "copy that, or call wc.condition_(copy, …, as_original=False) first"
        )
    return handles_around(model)


def handles_around(model: nn.Module) -> list[Conditioning]:
    """The handles of a model, of what it contains and of what contains it."""
    inside, root = {id(module) for module in model.modules()}, unwrap(model)
    return [
        handle
        for handle in _ACTIVE
        if id(unwrap(handle.model)) in inside or any(module is root for module in handle.model.modules())
    ]


class _Handles(list[Conditioning]):
    """Kept by the model, so that a handle nobody holds still watches; a copy of the model starts with none.

    Attributes:
        lost: whether the model is a copy of a folded one.
    """

    def __init__(self, handles: Iterable[Conditioning] = (), lost: bool = False) -> None:
        super().__init__(handles)
        self.lost = lost

    def __deepcopy__(self, memo: dict[int, Any]) -> _Handles:
        return _Handles((), self.lost or any(handle.mode == "folded" for handle in self))

    def __reduce_ex__(self, protocol: Any) -> Any:
        return _Handles, ((), self.__deepcopy__({}).lost)
