"""The cost of a conditioning: the papers' formulas (Tables 8 and 9) beside what is measured here."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from wellcond._core.result_table import ResultTable, Tabular
from wellcond.attention.projection import Projection

CostRow = tuple[str, float, float, float | None]  # aspect, without, with, measured
TABLE_9 = "the same as X W + X C (the paper's Table 9)"


@dataclass(frozen=True)
class ConditioningCost(Tabular):
    """Costs of the query, key and value projections, without and with the conditioning.

    Attributes:
        rows: `(aspect, without, with, measured)`; numbers, None where there is nothing to measure.

    >>> import torch, wellcond as wc
    >>> cost = wc.condition_(torch.nn.MultiheadAttention(8, 2), "shift", strength=2).cost(tokens=10)
    >>> cost["FLOPs of the projections, forward"]           # 6 N D d per head; nothing is added, C is in the weight
    (3840, 3840, None)
    """

    title: str
    rows: tuple[CostRow, ...]

    def __getitem__(self, aspect: str) -> tuple[float, float, float | None]:
        """Return `(without, with, measured)` of one aspect."""
        for name, without, with_it, measured in self.rows:
            if name == aspect:
                return without, with_it, measured
        raise KeyError(f"no aspect {aspect!r}; there are {', '.join(name for name, *_ in self.rows)}")

    def records(self) -> list[dict[str, Any]]:
        """Return one row per aspect.

        >>> ConditioningCost("made up", (("memory", 1, 2, None),)).records()
        [{'aspect': 'memory', 'without': 1, 'with': 2, 'measured': None}]
        """
        return [dict(zip(("aspect", "without", "with", "measured"), row, strict=True)) for row in self.rows]

    def _result_table(self) -> ResultTable:
        rows = [[name, *map(_number, numbers)] for name, *numbers in self.rows]
        return ResultTable(["", "without", "with", "measured"], rows, self.title)


def projection_costs(
    projections: Iterable[Projection], tokens: int, added: int, *, table_9: bool = False, flops: int = 0, kept: int = 0
) -> list[CostRow]:
    """Return what projections cost by formula, with `added` parameters, and `flops` and `kept` activations beside them.

    `table_9` counts X C on its own too.
    """
    shapes = [projection.shape for projection in projections]
    entries, outputs = sum(h * w * d for h, w, d in shapes), tokens * sum(h * d for h, _, d in shapes)
    plain = 2 * tokens * entries
    return [
        ("FLOPs of the projections, forward", plain, plain + flops, None),
        *([(TABLE_9, plain, plain + outputs, None)] if table_9 else []),
        ("parameters", entries, entries + added, entries + added),
        ("gradient, entries", entries, entries + added, None),
        ("activations, entries", outputs, outputs + kept, None),
    ]


def _number(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:,.0f}" if value == int(value) else f"{value:,.4g}"
