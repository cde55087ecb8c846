"""The result of `wc.balance_`: κ of the factors before and after, what was left alone and why, and the way back."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any

from wellcond._core.result_table import ResultTable, Tabular
from wellcond._core.safe_text import visible
from wellcond.conditioning.parameter_writes import ParameterWrites

SYMBOLS = {"qk": ("W_Q", "W_K"), "vo": ("W_V", "W_O")}


@dataclass(frozen=True)
class BalanceRecord:
    """New coordinates of one group of heads.

    Args:
        layer: its name.
        part: `"qk"` or `"vo"`.
        head: of the key or value, which several query heads may share.
        maps: `"full"`, `"scalar"`, or `"halves"` and `"neighbours"` for one number a pair of rotated columns.
        product: κ of the product, which stays.
        before: κ of both factors; of the group's heads one below the other where they share a map.
        after: the same in the new coordinates.
    """

    layer: str
    part: str
    head: int
    maps: str
    product: float
    before: tuple[float, float]
    after: tuple[float, float]


@dataclass(eq=False)
class Balance(Tabular):
    """The outcome of `wc.balance_`; prints as a table.

    Args:
        skipped: `(layer, part, reason)` for what keeps its coordinates.
        change: largest change of the model's outputs on the batch, relative; None without a batch.

    >>> import torch, wellcond as wc
    >>> b = wc.balance_(torch.nn.MultiheadAttention(8, 2))
    >>> b.change is None, len(b.heads), b.skipped
    (True, 4, [])
    >>> b.undo_()
    """

    skipped: list[tuple[str, str, str]]
    change: float | None
    _writes: ParameterWrites = field(repr=False)
    _measure: Callable[[], Iterable[BalanceRecord]] = field(repr=False)

    @cached_property
    def heads(self) -> tuple[BalanceRecord, ...]:
        """One record per product and group of heads, measured when they are first asked for."""
        return tuple(self._measure())

    def undo_(self) -> None:
        """Put back the weights, biases and moments that `balance_` replaced."""
        self._writes.undo_()

    def records(self) -> list[dict[str, Any]]:
        """One row per product and group of heads.

        >>> import torch, wellcond as wc
        >>> [row["part"] for row in wc.balance_(torch.nn.MultiheadAttention(8, 1)).records()]
        ['qk', 'vo']
        """
        return [asdict(record) for record in self.heads]

    def _result_table(self) -> ResultTable:
        """One row per layer and product: the largest κ over its heads."""
        groups: dict[tuple[str, str, str], list[BalanceRecord]] = {}
        for record in self.heads:
            groups.setdefault((record.layer, record.part, record.maps), []).append(record)
        rows = []
        for (layer, part, maps), own in groups.items():
            pairs = [f"{max(getattr(r, when)[i] for r in own):.3g}" for when in ("before", "after") for i in (0, 1)]
            rows.append([layer, " ".join(SYMBOLS[part]), maps, f"{max(r.product for r in own):.3g}", *pairs])
        header = ["layer", "factors", "maps", "κ(product)", "κ before", "", "κ now", ""]
        changed = "not compared: no batch" if self.change is None else f"changed by {self.change:.1e} of the largest"
        notes = [f"outputs {changed}"]
        notes += [visible(f"left alone {layer} {part}: {reason}") for layer, part, reason in self.skipped]
        return ResultTable(header, rows, f"{len(self.heads)} products in new coordinates", notes)
