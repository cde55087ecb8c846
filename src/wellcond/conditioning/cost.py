"""The cost of a conditioning: the papers' formulas (Tables 8 and 9) beside what is measured here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from wellcond._core.result_table import ResultTable, Tabular
from wellcond.conditioning.target_weights import TargetWeight

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
        rows = [
            [name, _number(without), _number(with_it), _number(measured)]
            for name, without, with_it, measured in self.rows
        ]
        return ResultTable(["", "without", "with", "measured"], rows, self.title)


def weight_costs(weights: Sequence[TargetWeight], tokens: int, added: int, table_9: bool) -> list[CostRow]:
    """Return what the projections cost by formula, with `added` new numbers; `table_9` counts X C on its own too."""
    shapes = [part.projection.shape for weight in weights for part in weight.parts]
    entries, outputs = sum(h * w * d for h, w, d in shapes), tokens * sum(h * d for h, _, d in shapes)
    plain = 2 * tokens * entries
    return [
        ("FLOPs of the projections, forward", plain, plain, None),
        *([(TABLE_9, plain, plain + outputs, None)] if table_9 else []),
        ("parameters", entries, entries + added, entries + added),
        ("gradient, entries", entries, entries + added, None),
        ("activations, entries", outputs, outputs, None),
    ]


def _number(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:,.0f}" if value == int(value) else f"{value:,.4g}"
