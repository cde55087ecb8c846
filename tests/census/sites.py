"""What the oracle notes of one place where normalised scores mix something."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Tensor

Place = tuple[str, int]  # path of a module, and which softmax of one of its calls


@dataclass(eq=False)
class Product:
    """A product of two activations, as it was; `number` counts the products of a pass."""

    number: int
    a: Tensor
    b: Tensor
    result: Tensor


@dataclass(eq=False)
class Mixture:
    """A sum of values weighted by probabilities; `number` counts the mixtures of a pass.

    Attributes:
        value: what is averaged, None where the weighted values are summed apart from their product.
        result: the average as it was computed, also where the pass went on with another one.
    """

    number: int
    value: Tensor | None
    result: Tensor


@dataclass(eq=False)
class Site:
    """A softmax whose probabilities mix something that depends on the input.

    Attributes:
        place: the same in every call of a module, so that a module which is called twice has its places once.
        how: the function that normalised: `"softmax"`, `"sdpa"` or `"exp"`.
        logits: what was normalised, along `dim`.
        products: products of two activations that the logits come from, entry by entry.
    """

    place: Place
    how: str
    logits: Tensor
    dim: int
    products: tuple[Product, ...]
    mixtures: list[Mixture] = field(default_factory=list)

    @property
    def path(self) -> str:
        """Path of the innermost module that was running at the softmax."""
        return self.place[0]

    @property
    def scored(self) -> bool:
        """Whether the scores come from a product of two activations, as those of queries and keys do."""
        return bool(self.products)

    @property
    def heads(self) -> int | None:
        """Size of the axis before the two of the scores, None where there is none."""
        return int(self.logits.shape[-3]) if self.logits.ndim >= 4 else None

    def __repr__(self) -> str:
        return f"Site({self.path!r}, {self.how}, {'scored' if self.scored else 'unscored'}, {tuple(self.logits.shape)})"
