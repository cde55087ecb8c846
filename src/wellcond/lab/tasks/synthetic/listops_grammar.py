"""Nested list operations: random expressions, their value and their tokens."""

from __future__ import annotations

import random
from dataclasses import dataclass

from wellcond.errors import WellcondError

# Id 0 is padding. "(" and ")" of the original files only mark their binary tree, and are left out of the sequence.
SYMBOLS = ("0", "1", "2", "3", "4", "5", "6", "7", "8", "9", "[MIN", "[MAX", "[MED", "[SM", "]")
IDS = {symbol: id for id, symbol in enumerate(SYMBOLS, start=1)}
OPERATORS = ("[MIN", "[MAX", "[MED", "[SM")
NESTING_PROBABILITY = 0.25  # that an argument is an expression, not a digit


@dataclass(frozen=True)
class Grammar:
    """Expressions like `[MAX 2 9 [MIN 4 7 ] 0 ]` and their value, 0 to 9.

    N. Nangia and S. Bowman, ListOps, arXiv 1804.06028; Y. Tay et al., Long Range Arena, arXiv 2011.04006, whose
    parameters are depth 10, 10 arguments and 500 < length < 2000. An argument is an expression with probability 1/4
    while the depth allows it, else a digit; an expression has 2 to `arguments` arguments, all equally likely. MED is
    the median rounded down, SM the sum modulo 10.

    Args:
        depth: of nesting, the digit inside included.
        arguments: of an operator, at most.
        shortest: number of tokens, brackets included.
        longest: number of tokens.

    >>> tokens, value = Grammar(depth=3, arguments=3, shortest=6, longest=9).draw(random.Random(0))
    >>> " ".join(tokens), value
    ('[MAX [MAX 1 5 2 ] 8 0 ]', 8)
    """

    depth: int
    arguments: int
    shortest: int
    longest: int

    def __post_init__(self) -> None:
        if self.depth < 2 or self.arguments < 2 or not 1 <= self.shortest <= self.longest:
            raise WellcondError(f"depth and arguments are at least 2, and 1 ≤ shortest ≤ longest; got {self}")

    def draw(self, source: random.Random) -> tuple[list[str], int]:
        """Draw an expression within the bounds; the first of as many tries as it takes.

        Only `source.random()` is called, the one method whose sequence Python guarantees between versions.
        """
        for _ in range(100_000):
            tokens: list[str] = []
            value = self._extend(tokens, 1, source)
            if value is not None and self.shortest <= len(tokens) <= self.longest:
                return tokens, value
        raise WellcondError(
            f"no expression in 100 000 fits {self}: widen the lengths, or allow more depth or arguments"
        )

    def _extend(self, tokens: list[str], depth: int, source: random.Random) -> int | None:
        """Append one argument and return its value; None as soon as it is too long."""
        if depth >= self.depth or source.random() >= NESTING_PROBABILITY:
            digit = int(source.random() * 10)
            tokens.append(SYMBOLS[digit])
            return digit
        operator = OPERATORS[int(source.random() * len(OPERATORS))]
        tokens.append(operator)
        values = []
        for _ in range(2 + int(source.random() * (self.arguments - 1))):
            value = self._extend(tokens, depth + 1, source)
            if value is None or len(tokens) > self.longest:
                return None
            values.append(value)
        tokens.append("]")
        return _value(operator, values)


def _value(operator: str, values: list[int]) -> int:
    if operator == "[MIN":
        return min(values)
    if operator == "[MAX":
        return max(values)
    if operator == "[SM":
        return sum(values) % 10
    ordered, half = sorted(values), len(values) // 2
    return ordered[half] if len(values) % 2 else (ordered[half - 1] + ordered[half]) // 2
