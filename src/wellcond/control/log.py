"""What a control found outside its bands, what it did about it, and what that cost."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, overload

from wellcond._core.result_table import ResultTable, Tabular
from wellcond._core.safe_text import visible


@dataclass(frozen=True)
class ControlRecord:
    """One thing that was outside its band at one step, or one audit.

    Args:
        step: steps of the optimizer taken by then.
        part: `"balance"`, `"sharpness"`, `"spectrum"`, `"updates"`, `"audit"`, or `"control"` for the control itself.
        layer: name of the layer, with the role where it is about one weight.
        head: its number; None for all of the layer.
        quantity: symbol of the number.
        before: the number as it was found.
        after: as it is now; None where nothing was done.
        reason: why nothing was done; empty where something was.

    >>> ControlRecord(20, "sharpness", "blocks.0.attn", 3, "β", 1.7, 0.8).acted
    True
    """

    step: int
    part: str
    layer: str
    head: int | None
    quantity: str
    before: float | None
    after: float | None = None
    reason: str = ""

    @property
    def acted(self) -> bool:
        """Whether weights were changed."""
        return self.after is not None


class ControlLog(Tabular, Sequence[ControlRecord]):
    """Records of a control in the order in which they were made; prints as a table, one row a layer and part.

    >>> log = ControlLog()
    >>> log.add(ControlRecord(20, "sharpness", "blocks.0.attn", 3, "β", 1.7, 0.8))
    >>> print(log)
    sharpness acted once
    part       layer             largest  steps  acted   why not
    sharpness  blocks.0.attn  β  1.7      20     1 of 1
    """

    def __init__(self) -> None:
        self._records: list[ControlRecord] = []

    def add(self, record: ControlRecord) -> None:
        """Keep one more."""
        self._records.append(record)

    @overload
    def __getitem__(self, index: int) -> ControlRecord: ...
    @overload
    def __getitem__(self, index: slice) -> list[ControlRecord]: ...
    def __getitem__(self, index: int | slice) -> ControlRecord | list[ControlRecord]:
        return self._records[index]

    def __len__(self) -> int:
        return len(self._records)

    def __iter__(self) -> Iterator[ControlRecord]:
        return iter(self._records)

    def records(self) -> list[dict[str, Any]]:
        """One row per record."""
        return [asdict(record) for record in self._records]

    def _result_table(self) -> ResultTable:
        groups: dict[tuple[str, str, str], list[ControlRecord]] = {}
        for record in self._records:
            groups.setdefault((record.part, record.layer, record.quantity), []).append(record)
        rows = []
        for (part, layer, quantity), own in groups.items():
            known = [record.before for record in own if record.before is not None]
            last = next((record.reason for record in reversed(own) if record.reason), "")
            acted = sum(record.acted for record in own)
            span = str(own[0].step) if len(own) == 1 else f"{own[0].step} … {own[-1].step}"
            largest = f"{max(known):.3g}" if known else ""
            rows.append([part, visible(layer), quantity, largest, span, f"{acted} of {len(own)}", visible(last)])
        count = Counter(record.part for record in self._records if record.acted)
        words = [f"{part} acted {'once' if times == 1 else f'{times} times'}" for part, times in count.items()]
        title = ", ".join(words) or "nothing was acted on"
        return ResultTable(["part", "layer", "", "largest", "steps", "acted", "why not"], rows, title)
