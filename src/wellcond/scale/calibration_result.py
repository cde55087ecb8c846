"""The result of `wc.calibrate_`: sharpness and gain of each layer before and after, what was left, the way back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from wellcond._core.result_table import ResultTable, Tabular
from wellcond._core.safe_text import visible
from wellcond.conditioning.parameter_writes import ParameterWrites


@dataclass(frozen=True)
class LayerScale:
    """Scale of one layer on a batch.

    Args:
        beta: sharpness of each head; empty where its logits are not known.
        branch: gain of its branch; None where it was not seen to join the stream.
    """

    beta: tuple[float | None, ...]
    branch: float | None


@dataclass(eq=False)
class Calibration(Tabular):
    """The outcome of `wc.calibrate_`; prints as a table.

    Args:
        before: the scale of each layer as the first pass met it, layers before it already scaled.
        after: as the second pass measured it.
        skipped: `(layer, "beta" or "branch", reason)` for what was left alone.

    >>> import torch, wellcond as wc
    >>> c = wc.calibrate_(torch.nn.MultiheadAttention(8, 2, batch_first=True), (torch.randn(1, 5, 8),) * 3)
    >>> c.skipped[0][:2], "not seen" in c.skipped[0][2]
    (('', 'branch'), True)
    """

    before: Mapping[str, LayerScale]
    after: Mapping[str, LayerScale]
    skipped: list[tuple[str, str, str]]
    _writes: ParameterWrites = field(repr=False)

    def undo_(self) -> None:
        """Put back the weights that `calibrate_` scaled."""
        self._writes.undo_()

    def records(self) -> list[dict[str, Any]]:
        """One row per layer.

        >>> import torch, wellcond as wc
        >>> model = torch.nn.TransformerEncoderLayer(8, 2, batch_first=True)
        >>> sorted(wc.calibrate_(model, torch.randn(1, 5, 8)).records()[0])
        ['beta', 'beta_before', 'branch', 'branch_before', 'layer']
        """
        return [
            {
                "layer": name,
                "beta_before": list(self.before[name].beta),
                "beta": list(scale.beta),
                "branch_before": self.before[name].branch,
                "branch": scale.branch,
            }
            for name, scale in self.after.items()
        ]

    def _result_table(self) -> ResultTable:
        rows = [
            [row["layer"], *(_range(row[key]) for key in ("beta_before", "beta")), *map(_number, _branches(row))]
            for row in self.records()
        ]
        notes = [visible(f"left alone {layer} {what}: {reason}") for layer, what, reason in self.skipped]
        header = ["layer", "β before", "β now", "g before", "g now"]
        return ResultTable(header, rows, f"{len(rows)} layers", notes)


def _branches(row: Mapping[str, Any]) -> tuple[float | None, float | None]:
    return row["branch_before"], row["branch"]


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.3g}"


def _range(values: Sequence[float | None]) -> str:
    """The least and the largest over heads, or the one that all have."""
    known = [value for value in values if value is not None]
    if not known:
        return ""
    low, high = _number(min(known)), _number(max(known))
    return low if low == high else f"{low} to {high}"
