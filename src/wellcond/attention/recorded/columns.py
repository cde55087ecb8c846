"""Linear maps of a pass in one form: rows are tokens, columns are what heads are made of."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from wellcond.attention.recorded.origins import Origins
from wellcond.attention.recorded.sources import Source


class Undescribed(Exception):
    """A site whose operands are not columns of linear maps, with the reason."""


@dataclass(frozen=True, eq=False)
class LinearMap:
    """A linear map of a pass: `result[row, column] = tokens[row] · weight[:, column] + bias[column]`.

    Args:
        sources: its results; several where the same parameters are used again for other tokens of one site.
        tokens: what it reads, `(rows, D)`.
        elements: returns which elements of parameters the matrix is, `(D, columns)`; made anew, since it is large.
        bias: the same of the bias, `(columns,)`; None if there is none.
        numbers: of the elements of the results, `(rows, columns)`.
    """

    sources: tuple[Source, ...]
    tokens: Tensor
    elements: Callable[[], Tensor]
    bias: Tensor | None
    numbers: Tensor

    @property
    def weight(self) -> Tensor:
        """Which elements of parameters the matrix is, `(D, columns)`."""
        return self.elements()

    @cached_property
    def _in_order(self) -> bool:
        """Whether numbers run along rows, one after the other: they do if they do between the corners."""
        rows, columns = self.numbers.shape
        first, across, down = (int(self.numbers[at]) for at in ((0, 0), (0, -1), (-1, 0)))
        return len(self.sources) == 1 and across - first == columns - 1 and down - first == (rows - 1) * columns

    @cached_property
    def _spots(self) -> dict[Source, Tensor]:
        """Row times the number of columns plus column of each element of each result, in the order of its numbers."""
        found, flat = {}, self.numbers.flatten()
        spots = torch.arange(len(flat))
        for source in self.sources:
            local = flat - source.first
            size = source.result.numel()
            if len(self.sources) > 1:
                here = (local >= 0) & (local < size)
                local, mine = local[here], spots[here]
            else:
                mine = spots
            found[source] = torch.empty(size, dtype=torch.long).scatter_(0, local, mine)
        return found

    def spots(self, numbers: Tensor) -> tuple[Tensor, Tensor]:
        """Return the row and the column of elements by their numbers, which are all of this map."""
        where = self._where(numbers)
        columns = self.numbers.shape[1]
        return where // columns, where % columns

    def columns(self, numbers: Tensor) -> Tensor:
        """Return the column of each element by its number."""
        return self._where(numbers) % self.numbers.shape[1]

    def _where(self, numbers: Tensor) -> Tensor:
        first, *more = self.sources
        if not more:
            local = numbers - first.first
            return local if self._in_order else self._spots[first][local]
        where = torch.empty_like(numbers)
        for source in self.sources:
            here = (numbers >= source.first) & (numbers < source.first + source.result.numel())
            where[here] = self._spots[source][numbers[here] - source.first]
        return where


def joined(maps: list[LinearMap]) -> LinearMap | None:
    """Return uses of the same parameters for different tokens as one map, None if the parameters differ."""
    first = maps[0]
    for other in maps[1:]:
        same = first.bias is other.bias is None or (
            first.bias is not None and other.bias is not None and torch.equal(first.bias, other.bias)
        )
        if not same or not torch.equal(first.weight, other.weight):
            return None
    return LinearMap(
        tuple(source for each in maps for source in each.sources),
        torch.cat([each.tokens for each in maps]),
        *(first.elements, first.bias),
        torch.cat([each.numbers for each in maps]),
    )


def linear_map(source: Source, origins: Origins) -> LinearMap:
    """Bring a linear map into the one form, or raise `Undescribed` with the reason."""
    step, left, right = source.step, source.left, source.right
    x = origins.tape.value(left if origins.is_weight(right) else right)
    numbers = torch.arange(source.first, source.first + source.result.numel()).reshape(source.result.shape)
    vector, elements = origins.bias(step), origins.weights.elements
    bias = None if vector is None else elements(vector).flatten()
    matrix = right if origins.is_weight(right) else left
    if not all(origins.weights.is_stored(x) for x in (matrix, vector) if x is not None):
        raise Undescribed("a weight is computed in the pass, not stored in a parameter")
    if step.name == "convolution":
        if right.shape[2:].numel() != 1 or step.args[8] != 1:
            size = " × ".join(map(str, right.shape[2:]))
            raise Undescribed(f"a convolution of {size} in {step.args[8]} groups makes it, no linear map of tokens")
        strided: Any = (..., *(slice(None, None, stride) for stride in step.args[3]))
        tokens = _tokens_last(x[strided])
        return LinearMap((source,), tokens, lambda: elements(right).flatten(1).T, bias, _tokens_last(numbers))
    if matrix is right:
        tokens, weight = x, lambda: elements(right)
    else:
        tokens, weight = x.mT if x.ndim > 1 else x[None], lambda: elements(left).mT
        numbers = numbers.mT if numbers.ndim > 1 else numbers
    if numbers.ndim == 1:
        numbers = numbers[None]
    if matrix.ndim == 3:
        return _batch(source, tokens, weight, bias, numbers)
    return LinearMap((source,), tokens, weight, bias, numbers)


def _tokens_last(x: Tensor) -> Tensor:
    return x.movedim(1, -1).flatten(0, -2)


def _batch(
    source: Source, tokens: Tensor, elements: Callable[[], Tensor], bias: Tensor | None, numbers: Tensor
) -> LinearMap:
    """A batch of products: one map of a batch of tokens, or a batch of maps of the same tokens."""
    weight = elements()
    if torch.equal(weight, weight[:1].expand_as(weight)):
        return LinearMap((source,), tokens.flatten(0, 1), lambda: elements()[0], bias, numbers.flatten(0, 1))
    if not torch.equal(tokens, tokens[:1].expand_as(tokens)):
        raise Undescribed("each head reads tokens of its own")
    bias = bias if bias is None or bias.numel() == weight.shape[0] * weight.shape[2] else None
    columns = numbers.movedim(0, 1).flatten(1)
    return LinearMap((source,), tokens[0], lambda: elements().movedim(0, 1).flatten(1), bias, columns)
