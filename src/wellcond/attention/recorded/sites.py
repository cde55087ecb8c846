"""Sites of attention in a pass: two products, of queries with keys and with values, head by head."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from wellcond.attention.recorded.columns import LinearMap, Undescribed
from wellcond.attention.recorded.operands import Operand, Operands
from wellcond.attention.recorded.origins import Origins
from wellcond.attention.recorded.sources import Origin, Source
from wellcond.attention.recorded.tape import Step


@dataclass(frozen=True, eq=False)
class Products:
    """The two products of a site.

    Args:
        kind: `"softmax"` (scores of queries and keys are normalised, and average values), `"channel"` (the same between
            channels), `"linear"` (keys and values first, then queries).
        scores: the first product; of queries and keys, or of keys and values.
        mixture: the second one, with the values, or with the queries.
        weights: the origin of the first product in the second.
        left: whether that is its left factor.
        over: the axis of the scores, 1 or 2, over which they are normalised; 0 for linear attention.
        at_mixture: the role that the second product reads.
        quotient: the step that divides the mixture by the sum that normalises it, if any does.
    """

    kind: str
    scores: Source
    mixture: Source
    weights: Origin
    left: bool
    over: int
    at_mixture: str
    quotient: Step | None = None


class Site:
    """One attention of a pass: its two products, and its operands head by head.

    Query heads that share a key lie next to each other.

    Args:
        products: the two products.
        given: numbers of each role as `(entries, positions, width)`.
        operands: of the pass.

    Attributes:
        query, key, value: the operands, with the entries of the product that reads them.
        head: query head of each entry of the mixture.
        entries: the entry of the scores that each entry of the mixture reads; −1 where it is not one.
    """

    def __init__(self, products: Products, given: Mapping[str, Origin], operands: Operands) -> None:
        self.products, self.operands = products, operands
        self.origins: Origins = operands.origins
        self.scores, self.mixture, self.weights = products.scores, products.mixture, products.weights
        self.left, self.over, self.channel = products.left, products.over, products.kind == "channel"
        self.query, self.key, self.value = (
            self.operands.operand(role, given[role], padded=products.kind == "linear")
            for role in ("query", "key", "value")
        )
        self.entries = self._entries()
        self._sort()

    @property
    def softmax_module(self) -> str:
        """Path of the module that was running when the scores were normalised."""
        return softmax_module(self.mixture)

    @property
    def transposed(self) -> bool:
        """Whether the mixture has tokens in its columns."""
        return self.left if self.products.kind == "linear" else self.left == self.channel

    def operand(self, role: str) -> Operand:
        """Return the operand of a role."""
        found: Operand = getattr(self, role)
        return found

    def map(self, index: int) -> LinearMap:
        """Return a linear map by its index among the sources."""
        return self.operands.map(index)

    def _entries(self) -> Tensor:
        """The entry of the scores of each entry of the mixture; of several, −1 if they are of one head."""
        numbers = batched(self.weights.first).flatten(1)
        low, high = numbers.amin(1), numbers.amax(1)
        one = (high - self.scores.first) // self.scores.area
        if int(low.min()) >= 0 and torch.equal((low - self.scores.first) // self.scores.area, one):  # nearly always
            self.head = self.query.head if self.products.at_mixture == "query" else self.query.head[one]
            return one
        if self.products.at_mixture == "query":
            raise Undescribed("one product mixes by several products of keys and values")
        entry = torch.where(numbers >= 0, (numbers - self.scores.first) // self.scores.area, -1)
        heads = torch.where(entry >= 0, self.query.head[entry], -1)
        self.head = heads.amax(1)
        if bool(((entry >= 0) & (heads != self.head[:, None])).any()) or bool((self.head < 0).any()):
            raise Undescribed("one product mixes by the scores of several heads")
        return torch.where(((entry >= 0) & (entry != one[:, None])).any(1), -1, one)

    def _sort(self) -> None:
        """Number heads so that query heads which share a key, or a value, lie next to each other."""
        heads = len(self.query.columns)
        if self.products.at_mixture == "query":
            key = _shared(self.head, self.key.head[self.entries], heads)
            value = _shared(self.head, self.value.head[self.entries], heads)
        else:
            key = _shared(self.query.head, self.key.head, heads)
            value = _shared(self.head, self.value.head, heads)
        order = sorted(range(heads), key=lambda head: (key[head], value[head], head))
        self.query = self.query.renumbered(order)
        self.head = torch.tensor(order).argsort()[self.head]
        self.key = self.key.renumbered(list(dict.fromkeys(key[head] for head in order)))
        self.value = self.value.renumbered(list(dict.fromkeys(value[head] for head in order)))
        for role, of in (("key", key), ("value", value)):
            counts = {head: of.count(head) for head in of}
            if len(set(counts.values())) > 1:
                raise Undescribed(f"its {role}s are shared by different numbers of query heads")
            found = [of[head] for head in order]
            if found != [head for head in dict.fromkeys(found) for _ in range(found.count(head))]:
                raise Undescribed("query heads that share a key have values of their own")


def _shared(query: Tensor, other: Tensor, heads: int) -> list[int]:
    """The key or value head of each query head."""
    found: list[set[int]] = [set() for _ in range(heads)]
    for head, partner in zip(query.tolist(), other.tolist(), strict=True):
        found[head].add(partner)
    if any(len(partners) != 1 for partners in found):
        raise Undescribed("a query head is scored against several keys, or averages several values")
    return [partners.pop() for partners in found]


def batched(x: Tensor) -> Tensor:
    """Return matrices as a batch with one axis; one matrix as a batch of one."""
    return x[None] if x.ndim == 2 else x.flatten(0, -3)


def matrices(origin: Origin, *, turn: bool) -> Origin:
    """Return numbers as `(entries, positions, width)`: a batch of matrices, turned where positions lie in columns."""

    def turned(numbers: Tensor) -> Tensor:
        return batched(numbers).mT if turn else batched(numbers)

    return replace(origin, first=turned(origin.first), second=None if origin.second is None else turned(origin.second))


def projected(role: str, origin: Origin | None, tensor: Tensor, origins: Origins) -> Origin:
    """Return the origin of a factor, or raise `Undescribed` if it has none."""
    if origins.is_weight(tensor):
        raise Undescribed(f"the {role} is a parameter, no projection of tokens")
    if origin is None:
        raise Undescribed(f"the {role} comes from no linear map")
    return origin


def softmax_module(mixture: Source) -> str:
    """Return the path of the module that was running when the scores of a mixture were normalised."""
    steps = (origin.softmax for origin in mixture.origins if origin is not None and origin.over)
    return next((step.module for step in steps if step is not None), mixture.step.module)
