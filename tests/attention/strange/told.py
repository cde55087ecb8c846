"""What a module says of its own attention while it runs, for those who listen: the truth that a view is held to."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from torch import Tensor, nn

_listeners: list[list[Told]] = []


@dataclass(frozen=True, eq=False)
class Told:
    """One attention of one call.

    Args:
        module: whose it is.
        q: queries as they leave their linear map, `(B, H, N, d)`: before norms, rotations, scales.
        k: the same of the keys, `(B, G, T, d)`.
        v: and of the values, `(B, G, T, d_v)`.
        logits: what is normalised, `(B, H, N, T)`.
        p: what the values are averaged by, `(B, H, N, T)`, before anything mixes heads.
        out: the output of each head, `(B, H, N, d_v)`, before gates.
        visible: which keys a query may see, broadcasting to `p`; all if None.
        site: which of the module's attentions.
    """

    module: nn.Module
    q: Tensor
    k: Tensor
    v: Tensor
    logits: Tensor
    p: Tensor
    out: Tensor
    visible: Tensor | None = None
    site: int = 0


def tell(what: Callable[[], Told]) -> None:
    """Tell those who listen; nothing is computed where nobody does."""
    if _listeners:
        told = what()
        for listener in _listeners:
            listener.append(told)


@contextmanager
def listening() -> Iterator[list[Told]]:
    """Collect what is told while the context is open."""
    heard: list[Told] = []
    _listeners.append(heard)
    try:
        yield heard
    finally:
        _listeners.remove(heard)


Parameters = Callable[[str], Tensor]  # a parameter of the module by its name, or numbers in its place


@dataclass(frozen=True, eq=False)
class Truth:
    """Where the weights of one attention are, as a re-arrangement of parameters.

    Args:
        query: `(H, D, d)`.
        key: `(G, D, d)`.
        value: `(G, D, d_v)`.
        output: `(H, D, d_v)`; None where nothing reads the heads alone.
        share: key head of each query head; by neighbours if None.
        averaged: value head of each query head; as the keys if None.
        anywhere: whether the output may be any columns of the model, as one above the module reads its heads.
        partial: whether a part of the query or key (what heads share, a rotary part) may be left out of the view.
    """

    query: Tensor
    key: Tensor
    value: Tensor
    output: Tensor | None = None
    share: tuple[int, ...] | None = None
    anywhere: bool = False
    partial: bool = False
    averaged: tuple[int, ...] | None = None

    @property
    def groups(self) -> tuple[int, ...]:
        """Key head of each query head."""
        heads, groups = len(self.query), len(self.key)
        return self.share or tuple(h // (heads // groups) for h in range(heads))


def rows(weight: Tensor, heads: int) -> Tensor:
    """Heads one after the other in the rows of an `nn.Linear`: `(heads, D, d)`."""
    return weight.unflatten(0, (heads, -1)).mT


def columns(weight: Tensor, heads: int) -> Tensor:
    """Heads one after the other in the columns that an `nn.Linear` reads: `(heads, D, d)`."""
    return weight.unflatten(1, (heads, -1)).movedim(1, 0)


def split(x: Tensor, heads: int) -> Tensor:
    """`(B, N, heads · d)` to `(B, heads, N, d)`."""
    return x.unflatten(-1, (heads, -1)).transpose(1, 2)


def merge(x: Tensor) -> Tensor:
    """`(B, heads, N, d)` to `(B, N, heads · d)`."""
    return x.transpose(1, 2).flatten(2)
