"""What `wc.diagnose` returns: records that print as a table, and go to JSON, HTML or a picture."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from wellcond.checked import Count, File, checked
from wellcond.diagnose.records import ROLES, SCHEMA, JacobianRecord, LayerRecord
from wellcond.diagnose.verdicts import Concern, judge
from wellcond.plain import to_json
from wellcond.report.atomic import write_text
from wellcond.tables import span, table


@dataclass(frozen=True)
class Diagnosis:
    """What was found in a model, layer by layer.

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
    skipped: tuple[Mapping[str, str], ...]
    settings: Mapping[str, Any]
    versions: Mapping[str, str]

    @property
    def jacobian(self) -> dict[str, dict[int, JacobianRecord]]:
        """The Jacobians that were measured, by layer and head."""
        return {layer.name: {record.head: record for record in layer.jacobian} for layer in self.layers}

    @property
    def concerns(self) -> list[Concern]:
        """Everything that is wrong, gravest first."""
        return sorted((c for layer in self.layers for c in judge(layer)[1]), key=lambda c: -c.severity)

    @checked
    def worst(self, count: Count = 5) -> list[Concern]:
        """The gravest concerns; prints well, one a line."""
        return _Lines(self.concerns[:count])

    def __str__(self) -> str:
        """One row per layer: medians over heads, and the gravest verdict."""
        header = [
            "layer",
            "κ(W_Q)",
            "κ(W_K)",
            "κ(W_V)",
            "σ_min",
            "σ_max",
            "κ(J)",
            "bound",
            "entropy",
            "rank",
            "verdict",
        ]
        rows = [_row(layer) for layer in self.layers]
        found = self.concerns
        wrong = {(c.layer, c.head) for c in found if c.head is not None}
        heads = sum(len(layer.heads) for layer in self.layers)
        text = f"{self.model} on {self.inputs}: {len(self.layers)} layers, {heads} heads, {len(wrong)} with a verdict\n"
        text += table(header, rows)
        if any("~" in row[6] for row in rows):
            text += "\n~ from some query rows, an estimate"
        if found:
            text += "\n\nworst\n" + "\n".join(f"  {line}" for line in _grouped(found)[:5])
        if self.skipped:
            text += "\n\nnot measured\n" + "\n".join(f"  {s['name']} ({s['cls']}): {s['reason']}" for s in self.skipped)
        return text

    def to_dict(self) -> dict[str, Any]:
        """Plain data; `docs/diagnose.md` has the schema."""
        return {"schema": SCHEMA, **asdict(self)}

    @checked
    def to_json(self, path: File | None = None) -> str:
        """The same as a JSON document, also written to a file if a path is given."""
        text = to_json(self.to_dict())
        if path is not None:
            write_text(Path(path), text)
        return text

    @checked
    def to_html(self, path: File | None = None) -> str:
        """One self-contained page that works offline, also written to a file if a path is given."""
        from wellcond.report.diagnosis_page import diagnosis_page

        page = diagnosis_page(self.to_dict())
        if path is not None:
            write_text(Path(path), page)
        return page

    @checked
    def plot(self, path: File | None = None) -> Any:
        """Heat maps layer × head as a matplotlib figure, also written to a file if a path is given."""
        from wellcond.report.heatmaps import diagnosis_figure

        return diagnosis_figure(self.to_dict(), path)


class _Lines(list[Concern]):
    def __str__(self) -> str:
        return "\n".join(map(str, self)) or "nothing is wrong"


def _grouped(concerns: Sequence[Concern]) -> list[str]:
    """One line per text, with where it applies."""
    groups: dict[str, list[Concern]] = {}
    for concern in concerns:
        groups.setdefault(concern.text, []).append(concern)
    lines = []
    for text, found in groups.items():
        names = list(dict.fromkeys(concern.layer for concern in found))
        lines.append(str(found[0]) if len(found) == 1 else f"{len(found)} heads of {span(names)}: {text}")
    return lines


def _row(layer: LayerRecord) -> list[str]:
    heads = [w for w in layer.weights if w.head is not None]
    kappas = [_median([w.raw.condition for w in heads if w.role == role]) for role in ROLES]
    lowest = min((w.raw.sigma_min for w in heads), default=None)
    highest = max((w.raw.sigma_max for w in heads), default=None)
    jacobians = [record.condition for record in layer.jacobian]
    bounds = [record.bound.value for record in layer.jacobian if record.bound is not None]
    entropy = _median([head.entropy for head in layer.heads])
    codes = [code for code in (layer.code, *(head.code for head in layer.heads)) if code]
    counted = [f"{code} ({codes.count(code)})" if codes.count(code) > 1 else code for code in dict.fromkeys(codes)]
    return [
        layer.name,
        *map(_short, kappas),
        _short(lowest),
        _short(highest),
        _of_jacobians(jacobians),
        _short(_median(bounds)),
        "" if entropy is None else f"{entropy:.2f}",
        _short(layer.stable_rank),
        ", ".join(counted) or layer.note or "ok",
    ]


def _of_jacobians(found: Sequence[Any]) -> str:
    values = [c.value for c in found if c.value is not None]
    if not values:
        return ""
    signs = {c.sign for c in found}
    return next((f"{sign} " for sign in ("~", "≥") if sign in signs), "") + _short(_median(values))


def _median(values: Sequence[float | None]) -> float | None:
    known = sorted(value for value in values if value is not None)
    return known[len(known) // 2] if known else None


def _short(value: float | None) -> str:
    return "" if value is None else f"{value:.2g}"
