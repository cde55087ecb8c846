"""The result of `wc.diagnose`: records that print as a table, and go to JSON, HTML or a picture."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from statistics import median_high
from typing import Any

from wellcond._core.argument_types import Count, File
from wellcond._core.atomic import also_written
from wellcond._core.checked import checked
from wellcond._core.json_safe import to_json
from wellcond._core.result_table import Graded, ResultTable, Tabular
from wellcond._core.safe_text import visible
from wellcond._core.text_tables import span
from wellcond.diagnosis.maps import head_rows
from wellcond.diagnosis.quantities import QUANTITIES
from wellcond.diagnosis.quantity import Column, Quantity
from wellcond.diagnosis.readings import LayerView
from wellcond.diagnosis.records import REFUSED, Concern, JacobianRecord, LayerRecord
from wellcond.diagnosis.schema import SCHEMA
from wellcond.diagnosis.verdicts import by_kind, common_remedy, gravest_first
from wellcond.propagation.thresholds import Severity


@dataclass(frozen=True)
class Diagnosis(Tabular):
    """Everything that was measured in a model, layer by layer.

    Args:
        model: its class or name.
        inputs: what it was run on, in words.
        layers: one record per attention layer, with its verdicts.
        skipped: what looked like attention and was not measured: name, class, reason.
        settings: how it was measured.
        versions: of the libraries.

    >>> import torch, wellcond as wc
    >>> _ = torch.manual_seed(0)
    >>> d = wc.diagnose(torch.nn.TransformerEncoderLayer(8, 2, batch_first=True), torch.randn(2, 6, 8))
    >>> d.jacobian["self_attn"][1].condition.status
    'ok'
    >>> d.layers[0].heads[0].entropy > 0.5
    True
    """

    model: str
    inputs: str
    layers: tuple[LayerRecord, ...]
    skipped: tuple[Mapping[str, str], ...] = field(hash=False)
    settings: Mapping[str, Any] = field(hash=False)
    versions: Mapping[str, str] = field(hash=False)

    @property
    def jacobian(self) -> dict[str, dict[int, JacobianRecord]]:
        """The Jacobians that were measured, by layer and head."""
        return {layer.name: {record.head: record for record in layer.jacobian} for layer in self.layers}

    @property
    def concerns(self) -> list[Concern]:
        """Everything that is wrong, one for each layer and kind, gravest first."""
        return gravest_first([concern for layer in self.layers for concern in layer.concerns])

    @checked
    def worst(self, count: Count = 5) -> list[Concern]:
        """Return the gravest concerns; prints well, one a line."""
        return _Lines(self.concerns[:count])

    def records(self) -> list[dict[str, Any]]:
        """Return one row per layer and query head: every quantity, and the verdict; None where nothing was measured.

        >>> import torch, wellcond as wc
        >>> _ = torch.manual_seed(0)
        >>> d = wc.diagnose(torch.nn.MultiheadAttention(8, 2, batch_first=True), (torch.randn(2, 6, 8),) * 3)
        >>> [(row["head"], round(row["kappa_query"], 1)) for row in d.records()]
        [(0, 2.1), (1, 1.8)]
        """
        return head_rows([asdict(layer) for layer in self.layers])

    def _result_table(self) -> ResultTable:
        """One row per layer, the gravest first: medians over heads and what is wrong; then the worst, with remedies."""
        columns = _columns()
        layers = gravest_first(self.layers)
        rows = [_row(layer, columns) for layer in layers]
        heads = [head for layer in self.layers for head in layer.heads]
        wrong = sum(bool(head.code) for head in heads)
        title = f"{self.model} on {self.inputs}: {len(self.layers)} layers, {len(heads)} heads, {wrong} with a verdict"
        notes: list[str | Graded] = []
        if any(cell.startswith("~") for row in rows for cell in row[1:-1]):
            notes.append("~ from some query rows, an estimate")
        notes += _left_out(self.layers)
        if self.concerns:
            worst = [Graded(severity, f"  {line}") for severity, line in _grouped(self.concerns)[:5]]
            notes += ["", "worst", *worst]
        refused = [f"  {layer.name}: {layer.note}" for layer in self.layers if layer.note.startswith(REFUSED)]
        left_out = refused + [f"  {s['name']} ({s['cls']}): {s['reason']}" for s in self.skipped]
        if left_out:
            notes += ["", "not measured", *map(visible, left_out)]
        header = ["layer", *(column.header for column in columns), "verdict"]
        return ResultTable(header, rows, title, notes, [layer.severity for layer in layers])

    def to_dict(self) -> dict[str, Any]:
        """Return plain data; `docs/diagnose.md` has the schema."""
        return {"schema": SCHEMA, **asdict(self)}

    @checked
    def to_json(self, path: File | None = None) -> str:
        """Return the diagnosis as a JSON document, also written to a file if a path is given."""
        return also_written(to_json(self.to_dict()), path)

    @checked
    def to_html(self, path: File | None = None) -> str:
        """Return one self-contained page that works offline, also written to a file if a path is given."""
        from wellcond.html.diagnosis_page import diagnosis_page

        return also_written(diagnosis_page(self.to_dict()), path)

    @checked
    def plot(self, path: File | None = None) -> Any:
        """Draw heat maps layer × head as a matplotlib figure, also written to a file if a path is given."""
        from wellcond.plots.heatmaps import diagnosis_figure

        return diagnosis_figure(self.to_dict(), path)


class _Lines(list[Concern]):
    def __str__(self) -> str:
        return "\n".join(map(str, self)) or "nothing is wrong"


def _grouped(concerns: Sequence[Concern]) -> list[tuple[Severity, str]]:
    """One line per kind, with the layers that have it; the words are those of the first."""
    lines = []
    for found in by_kind(concerns):
        first = found[0]
        others = [concern.layer for concern in found[1:]]
        count = f"{len(others)} more layers: " if len(others) > 1 else ""
        more = f" (and {count}{span(others)})" if others else ""
        lines.append((first.severity, f"{first.severity}: {first.where}{more}: {first.text}: {common_remedy(found)}"))
    return lines


def _left_out(layers: Sequence[LayerRecord]) -> list[str]:
    """Which heads and query rows κ(J) is not about, where a budget or a choice left them out."""
    measured = [layer for layer in layers if layer.jacobian]
    some_heads = [layer for layer in measured if len(layer.jacobian) < len(layer.heads)]
    rows = [(j.rows, j.total_rows) for layer in measured for j in layer.jacobian if j.rows < j.total_rows]
    parts = []
    if rows:
        parts.append(f"{_range([few for few, _ in rows])} of {_range([whole for _, whole in rows])} query rows")
    if some_heads:
        few, whole = [len(layer.jacobian) for layer in some_heads], [len(layer.heads) for layer in some_heads]
        parts.append(f"{_range(few)} of {_range(whole)} heads a layer")
    return [f'κ(J) is of {" and ".join(parts)}; jacobian="exact" measures all'] if parts else []


def _range(counts: Sequence[int]) -> str:
    low, high = min(counts), max(counts)
    return f"{low}" if low == high else f"{low} to {high}"


def _columns() -> dict[Column, list[Quantity]]:
    """Columns of the table, each with the quantities that share it: attention, products, Jacobians, then factors."""
    found: dict[Column, list[Quantity]] = {}
    for source in ("heads", "layer", "products", "jacobian", "weights"):
        for one in QUANTITIES:
            if one.source == source and one.terminal is not None:
                found.setdefault(one.terminal, []).append(one)
    return found


def _row(layer: LayerRecord, columns: Mapping[Column, Sequence[Quantity]]) -> list[str]:
    view = LayerView(asdict(layer))
    codes = [code for code in (layer.code, *(head.code for head in layer.heads)) if code]
    counted = [f"{code} ({codes.count(code)})" if codes.count(code) > 1 else code for code in dict.fromkeys(codes)]
    cells = [_cell(view, column, own) for column, own in columns.items()]
    note = REFUSED if layer.note.startswith(REFUSED) else layer.note
    return [layer.name, *cells, ", ".join(counted) or note or "ok"]


def _cell(view: LayerView, column: Column, quantities: Sequence[Quantity]) -> str:
    """One number of a layer's heads; ~ or ≥ where one of them is."""
    pairs = [(one, record) for one in quantities for record in view.records(one.source, one.role)]
    read = [one.read(record, view.layer) for one, record in pairs]
    found = [reading for reading in read if reading is not None]
    values = [reading.value for reading in found if reading.value is not None]
    if not values:
        return ""
    marks = {reading.mark for reading in found}
    shown = min(values) if column.pick == "min" else max(values) if column.pick == "max" else median_high(values)
    return next((f"{mark} " for mark in ("~", "≥") if mark in marks), "") + f"{shown:{column.form}}"
