"""Queries, keys and values as their products read them: which columns of which linear maps each head is."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from wellcond.attention.recorded.columns import LinearMap, Undescribed, joined, linear_map
from wellcond.attention.recorded.operators import NONE, SEVERAL
from wellcond.attention.recorded.origins import Origins
from wellcond.attention.recorded.sources import Origin

Column = tuple[int, int]  # index of a linear map among the sources, −1 if it is none, and of the column in it
MAP = 1 << 32  # a column is coded as its map times this, plus its place in the map


@dataclass(frozen=True, eq=False)
class Operand:
    """One role of a site as its product reads it.

    Args:
        numbers: of the elements, `(entries, positions, width)`; an entry is one head of one sequence.
        head: of each entry.
        columns: of each head.
        spread: whether an element depends on more tokens than the one that it is numbered by.
    """

    numbers: Tensor
    head: Tensor
    columns: list[tuple[Column, ...]]
    spread: bool = False

    def renumbered(self, order: list[int]) -> Operand:
        """Return the same with other numbers of the heads: `order[0]` becomes head 0."""
        return replace(
            self, head=torch.tensor(order).argsort()[self.head], columns=[self.columns[head] for head in order]
        )


class Operands:
    """Finds the columns behind the operands of one site; uses of the same parameters count as one map."""

    def __init__(self, origins: Origins) -> None:
        self.origins = origins
        self._maps: dict[int, LinearMap] = {}
        self._first: dict[int, int] = {}  # the first map with the same parameters

    def map(self, index: int) -> LinearMap:
        """Return a linear map by its index among the sources."""
        if index not in self._maps:
            self._maps[index] = linear_map(self.origins.sources[index], self.origins)
        return self._maps[index]

    def are_channels(self, queries: Tensor) -> bool:
        """Return whether the rows of a product are columns of a linear map, not tokens."""
        code = self._codes(queries[:1])[0]
        same = code.shape[1] > 1 and bool((code == code[:, :1]).all())
        return same and (code.shape[0] == 1 or not bool((code == code[:1]).all()))

    def operand(self, role: str, origin: Origin, *, padded: bool = False) -> Operand:
        """Return a role's columns head by head, or raise `Undescribed` with the reason.

        Args:
            role: of the operand.
            origin: its numbers, `(entries, positions, width)`.
            padded: whether a column may be a constant in all heads, as where values are extended by ones.
        """
        numbers = origin.first
        if bool((numbers == SEVERAL).any()):
            raise Undescribed(f"the {role} is a sum of two linear maps, or of one and something else")
        code = self._codes(numbers)
        numbers = numbers.masked_fill(code < 0, NONE)  # of products of activations: no rows of these maps
        found = code.amax(1)
        if bool((found < 0).any()) and not (padded and torch.equal(found.amax(0) < 0, found.amin(0) < 0)):
            raise Undescribed(f"a part of the {role} comes from no linear map")
        if bool(((code != found[:, None]) & (code >= 0)).any()):
            raise Undescribed(f"the columns of the {role} differ from token to token")
        heads: dict[tuple[int, ...], int] = {}
        index = torch.tensor([heads.setdefault(tuple(row), len(heads)) for row in found.tolist()])
        if origin.second is not None:
            self._check_pairs(role, self._codes(origin.second), index, list(heads))
        columns = [tuple(divmod(c, MAP) for c in head) for head in heads]
        return Operand(numbers, index, columns, origin.spread)

    def _check_pairs(self, role: str, code: Tensor, index: Tensor, heads: list[tuple[int, ...]]) -> None:
        """A rotation takes pairs of columns of one head: both are to be among the columns that were found."""
        for head, columns in enumerate(heads):
            own = torch.tensor(columns)
            pairs = code[int((index == head).nonzero()[0])]
            if not bool(torch.isin(pairs[pairs >= 0], own).all()):
                raise Undescribed(f"the {role} has columns that no element stands for: a rotation across heads")

    def _codes(self, numbers: Tensor) -> Tensor:
        """Linear map and column of each element in one number; −1 where there is none."""
        low, high = numbers.aminmax()
        ends = torch.bucketize(torch.stack((low, high)), self.origins.starts, right=True) - 1
        if int(low) >= 0 and int(ends[0]) == int(ends[1]):  # all from one map, as nearly always
            index = int(ends[0])
            if self.origins.sources[index].kind != "linear":
                return torch.full_like(numbers, -1)
            return self.map(index).columns(numbers) + index * MAP
        which = torch.bucketize(numbers.contiguous(), self.origins.starts, right=True) - 1
        code = torch.full_like(which, -1)
        used = [i for i in sorted(set(which[numbers >= 0].tolist())) if self.origins.sources[i].kind == "linear"]
        for index in used:
            here = (which == index) & (numbers >= 0)
            found = numbers[here]
            code[here] = self.map(index).columns(found) + self._joined(index, used) * MAP
        return code

    def _joined(self, index: int, used: list[int]) -> int:
        """The first of the maps of an operand that has the same parameters; from then on both are one map."""
        if index in self._first:
            return self._first[index]
        for other in used:
            if other >= index:
                break
            both = joined([self._maps[other], self._maps[index]]) if self._first.get(other, other) == other else None
            if both is not None:
                self._maps[other] = both
                self._first[index] = other
                return other
        self._first[index] = index
        return index
