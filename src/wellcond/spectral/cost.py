"""What a conditioning costs: the papers' formulas (Tables 8 and 9) beside what is measured here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from wellcond.tabular import ResultTable, Tabular


@dataclass(frozen=True)
class Cost(Tabular):
    """Costs of the query, key and value projections, without and with the conditioning.

    Attributes:
        rows: `(aspect, without, with, measured)`; numbers, None where there is nothing to measure.

    >>> import torch, wellcond as wc
    >>> cost = wc.condition_(torch.nn.MultiheadAttention(8, 2), "shift", strength=2).cost(tokens=10)
    >>> cost["FLOPs of the projections, forward"]           # 6 N D d per head; nothing is added, C is in the weight
    (3840, 3840, None)
    """

    title: str
    rows: tuple[tuple[str, float, float, float | None], ...]

    def __getitem__(self, aspect: str) -> tuple[float, float, float | None]:
        """`(without, with, measured)` of one aspect."""
        for name, without, with_it, measured in self.rows:
            if name == aspect:
                return without, with_it, measured
        raise KeyError(f"no aspect {aspect!r}; there are {', '.join(name for name, *_ in self.rows)}")

    def records(self) -> list[dict[str, Any]]:
        """One row per aspect.

        >>> Cost("made up", (("memory", 1, 2, None),)).records()
        [{'aspect': 'memory', 'without': 1, 'with': 2, 'measured': None}]
        """
        return [dict(zip(("aspect", "without", "with", "measured"), row, strict=True)) for row in self.rows]

    def _result_table(self) -> ResultTable:
        rows = [
            [name, _number(without), _number(with_it), _number(measured)]
            for name, without, with_it, measured in self.rows
        ]
        return ResultTable(["", "without", "with", "measured"], rows, self.title)


def _number(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:,.0f}" if value == int(value) else f"{value:,.4g}"
