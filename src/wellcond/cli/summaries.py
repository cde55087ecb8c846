"""Summaries that commands print: short tables that collapse equal layers, and JSON that every reader accepts."""

from __future__ import annotations

import math
import shutil
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from wellcond._core.safe_text import visible
from wellcond._core.terminal import columns, wrapped
from wellcond._core.text_tables import span, table
from wellcond.init.scheme_info import SchemeInfo

if TYPE_CHECKING:
    from wellcond.attention.layers import AttentionLayers
    from wellcond.init.audit import Audit, AuditFinding
    from wellcond.init.plan import Plan, PlanEntry

MAX_FAILURES_SHOWN = 10  # without --verbose


def layers_data(layers: AttentionLayers) -> dict[str, Any]:
    """Return as plain data the attention layers of a model."""
    rows = []
    for layer, row in zip(layers, layers.records(), strict=True):
        roles = {role: {"weight": p.weight.path, "shape": p.shape} for role, p in layer.projections()}
        rows.append({"name": row.pop("layer"), **row, "roles": roles})
    return {"layers": rows, "unclaimed": [asdict(item) for item in layers.unclaimed]}


def plan_data(plan: Plan) -> dict[str, Any]:
    """Return a plan as plain data, with κ before and after where the weights are in memory."""
    measured = plan.conditions() if plan.applied else [(entry, None, None) for entry in plan.entries]
    rows = [
        {"layer": e.layer, "role": e.role, "scheme": e.scheme, "law": e.law}
        | ({} if before is None else {"kappa_before": before, "kappa_after": after})
        for e, before, after in measured
    ]
    skipped = [{"layer": name, "reason": reason} for name, reason in plan.skipped]
    return {"entries": rows, "parameters": whole_parameters(plan), "skipped": skipped}


def whole_parameters(plan: Plan) -> list[str]:
    """Return the parameters a plan sets beside its entries: a teacher's weights, biases set to zero."""
    return list(dict.fromkeys(path for path, _ in plan.parameters()))


def plan_summary(plan: Plan) -> str:
    """Return one row per role over all layers; κ is the largest of all heads."""
    groups: dict[str, list[tuple[PlanEntry, float, float]]] = {}
    for row in plan.conditions() if plan.applied else [(entry, math.nan, math.nan) for entry in plan.entries]:
        groups.setdefault(row[0].role, []).append(row)
    rows = []
    for role, members in groups.items():
        laws = list(dict.fromkeys(entry.law for entry, _, _ in members))
        law = laws[0] if len(laws) == 1 else f"{laws[0]} … {laws[-1]}"
        before, after = max(row[1] for row in members), max(row[2] for row in members)
        worst = [f"{before:.3g}", f"{after:.3g}"] if plan.applied else []
        rows.append([str(len(members)), role, law, *worst, span([entry.layer for entry, _, _ in members])])
    header = ["layers", "role", "set to", *(["κ before", "κ after"] if plan.applied else []), "where"]
    lines = [table(header, rows)] if rows else []
    whole = whole_parameters(plan)
    if whole:
        lines.append(
            f"and {len(whole)} whole parameters: {visible(', '.join(whole[:3]))}{', …' if len(whole) > 3 else ''}"
        )
    text = "\n".join(lines) or "the scheme sets nothing: every weight is as the model makes it"
    return text + skipped_lines(plan.skipped)


def skipped_lines(skipped: Iterable[tuple[str, str]]) -> str:
    """Return one line per reason that layers were skipped for."""
    reasons: dict[str, list[str]] = {}
    for name, reason in skipped:
        reasons.setdefault(reason, []).append(name)
    return "".join(f"\nskipped {len(names)}, {span(names)}: {visible(reason)}" for reason, names in reasons.items())


def audit_summary(audit: Audit) -> str:
    """Return one row per role and quantity over all layers, then what fails."""
    groups: dict[tuple[str, str], list[AuditFinding]] = {}
    for finding in audit.findings:
        groups.setdefault((finding.role, finding.quantity), []).append(finding)
    rows = []
    for (role, quantity), members in groups.items():
        worst = max(members, key=_excess)
        failed = sum(not finding.passed for finding in members)
        numbers = [f"{worst.measured:.4g}", f"{worst.expected:.4g}", f"{worst.tolerance:.2g}"]
        rows.append([role, quantity, str(len(members)), *numbers, f"FAIL {failed}" if failed else "pass"])
    text = table(["role", "quantity", "checks", "worst", "expected", "±", "verdict"], rows) if rows else ""
    for finding in audit.failures[:MAX_FAILURES_SHOWN]:
        head = "" if finding.head < 0 else f" head {finding.head}"
        text += f"\nFAIL {visible(finding.layer)} {finding.role}{head}: {finding.quantity} {finding.measured:.4g}"
        text += f", expected {finding.expected:.4g} ± {finding.tolerance:.2g}"
    more = len(audit.failures) - MAX_FAILURES_SHOWN
    text += f"\n… and {more} more; --verbose lists every layer" if more > 0 else ""
    total = f"{len(audit.findings)} checks"
    verdict = f"FAIL, {len(audit.failures)} of {total}" if audit.failures else f"pass, {total}"
    return f"{text}{skipped_lines(audit.skipped)}\n{visible(audit.scheme)}: {verdict}".lstrip("\n")


def _excess(finding: AuditFinding) -> float:
    """Return how far out a finding is, in tolerances."""
    distance = abs(finding.measured - finding.expected)
    if math.isnan(distance):
        return math.inf
    return distance / finding.tolerance if finding.tolerance else math.copysign(math.inf, distance) if distance else 0.0


def scheme_list(infos: Sequence[SchemeInfo], *, details: bool) -> str:
    """Return name and summary of each scheme; with details its citation, published settings and options too."""
    width = max(40, columns() or min(120, shutil.get_terminal_size().columns))
    indent = " " * (2 + max(len(info.name) for info in infos))
    texts = []
    for info in infos:
        lines = [info.summary]
        if details:
            lines += [info.citation, f"published: {info.published}", f"options: {info.options_text or 'none'}"]
        filled = [indent + piece for line in lines if line for piece in wrapped(line, width - len(indent))]
        texts.append(info.name + "\n".join(filled)[len(info.name) :])
    return "\n".join(texts)
