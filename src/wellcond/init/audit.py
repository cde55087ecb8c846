"""`audit`: is a model initialised as a scheme says?"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn

from wellcond._core.checked import checked
from wellcond._core.keyed_random import neutral
from wellcond._core.linalg import wide
from wellcond._core.result_table import ResultTable, Tabular
from wellcond._core.safe_text import visible
from wellcond.attention.layers import LayerFilter
from wellcond.attention.storage import fetch, full
from wellcond.errors import SchemeError, WeightError
from wellcond.init.api import plan
from wellcond.init.compose import SchemeLike
from wellcond.init.plan import Assignment, Plan
from wellcond.init.scheme import OnInapplicable


@dataclass(frozen=True)
class AuditFinding:
    """One measured quantity of one head against the declared law; `head` is −1 for a whole projection.

    >>> import torch, wellcond as wc
    >>> model = torch.nn.MultiheadAttention(8, 2)
    >>> _ = wc.init_(model, "conditioned", seed=0)
    >>> with torch.no_grad():
    ...     model.in_proj_weight[12:16] *= 3                           # head 1 of the key
    >>> (finding,) = wc.audit(model, "conditioned").failures           # κ is still 1
    >>> finding.role, finding.head, finding.quantity, round(finding.measured, 3), finding.expected
    ('key', 1, 'orthogonality error', 8.0, 0.0)
    """

    layer: str
    role: str
    head: int
    quantity: str
    measured: float
    expected: float
    tolerance: float
    passed: bool


@dataclass(frozen=True)
class Audit(Tabular):
    """The outcome of `audit`; true if every head passes. Prints as a table, one row per role and quantity.

    >>> import torch, wellcond as wc
    >>> model = torch.nn.MultiheadAttention(8, 2)
    >>> _ = wc.init_(model, "conditioned", seed=0)
    >>> audit = wc.audit(model, "conditioned")
    >>> audit.passed, len(audit.findings), audit.failures
    (True, 10, [])
    """

    scheme: str
    findings: tuple[AuditFinding, ...]
    skipped: tuple[tuple[str, str], ...] = ()

    @property
    def passed(self) -> bool:
        """Whether every finding passes."""
        return all(finding.passed for finding in self.findings)

    @property
    def failures(self) -> list[AuditFinding]:
        """The findings that fail."""
        return [finding for finding in self.findings if not finding.passed]

    def __bool__(self) -> bool:
        return self.passed

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {
            "scheme": self.scheme,
            "passed": self.passed,
            "findings": self.records(),
            "skipped": [{"layer": name, "reason": reason} for name, reason in self.skipped],
        }

    def records(self) -> list[dict[str, Any]]:
        """One row per finding; `head` is −1 for a whole projection.

        >>> import torch, wellcond as wc
        >>> audit = wc.audit(torch.nn.MultiheadAttention(8, 2), "conditioned")
        >>> sorted(audit.records()[0])
        ['expected', 'head', 'layer', 'measured', 'passed', 'quantity', 'role', 'tolerance']
        """
        return [asdict(finding) for finding in self.findings]

    def _result_table(self) -> ResultTable:
        rows = []
        groups: dict[tuple[str, str, str], list[AuditFinding]] = {}
        for finding in self.findings:
            groups.setdefault((finding.layer, finding.role, finding.quantity), []).append(finding)
        for (layer, role, quantity), group in groups.items():
            worst = max(group, key=lambda f: (not f.passed, abs(f.measured - f.expected)))
            failed = [str(f.head) for f in group if not f.passed]
            verdict = "pass" if not failed else f"FAIL heads {', '.join(failed)}"
            numbers = [f"{worst.measured:.4g}", f"{worst.expected:.4g}", f"{worst.tolerance:.2g}"]
            rows.append([layer, role, quantity, *numbers, verdict])
        header = ["layer", "role", "quantity", "worst", "expected", "±", "verdict"]
        skipped = [visible(f"skipped {name}: {reason}") for name, reason in self.skipped]
        failures = len(self.failures)
        verdict = "pass" if self.passed else f"FAIL: {failures} of {len(self.findings)} checks"
        return ResultTable(header, rows, notes=[*skipped, f"{self.scheme}: {verdict}"])


@checked
@neutral()
def audit(
    model: nn.Module,
    scheme: SchemeLike,
    *,
    layers: LayerFilter = None,
    on_inapplicable: OnInapplicable = "error",
    **options: Any,
) -> Audit:
    """Measure each head against the law a scheme declares; pass or fail per head.

    Deterministic weights are compared to rounding, random ones by their moments within five standard errors.

    >>> import torch, wellcond as wc
    >>> model = torch.nn.TransformerEncoderLayer(32, 2, batch_first=True)
    >>> wc.audit(model, "conditioned").passed
    False
    >>> _ = wc.init_(model, "conditioned", seed=0)
    >>> wc.audit(model, "conditioned").passed
    True
    """
    made = plan(model, scheme, layers=layers, on_inapplicable=on_inapplicable, **options)
    if made.scheme.runs_model:
        raise SchemeError(f"'{made.scheme}' scales weights on a batch, by no law; wc.diagnose measures β and g")
    if made.scheme.functional():
        raise SchemeError("a scheme function declares no law, so there is nothing to audit against")
    return Audit(str(made.scheme), tuple(_findings(made)), tuple(made.inapplicable))


def _findings(made: Plan) -> Iterator[AuditFinding]:
    for assignment in made.assignments:
        yield from _compare(assignment)
    for path, value in made.parameters():
        assert made.root is not None
        if fetch(made.root, path).is_meta:
            raise WeightError(f"'{path}' is on the meta device: there are no weights to audit yet")
        yield _exact(path, full(fetch(made.root, path)), value)


def _compare(assignment: Assignment) -> Iterator[AuditFinding]:
    name, roles, law, projections = assignment.scope, assignment.roles, assignment.law, assignment.projections
    assert law is not None  # `audit` refuses functions
    # Draws are made in float32 or wider, so wider storage does not hold them more exactly.
    eps = max(torch.finfo(dtype).eps for dtype in (torch.float32, *(p.parameter().dtype for p in projections)))
    for projection in projections:
        if projection.parameter().is_meta:
            raise WeightError(f"'{projection.weight.path}' is on the meta device: there are no weights to audit yet")
    weights = tuple(wide(p.read()) for p in projections)
    broken = [role for role, weight in zip(roles, weights, strict=True) if not torch.isfinite(weight).all()]
    for role, weight in zip(roles, weights, strict=True):
        if role in broken:
            for head in (~torch.isfinite(weight)).flatten(1).any(1).nonzero().flatten().tolist():
                yield AuditFinding(name, role, head, "entries that are not finite", torch.inf, 0.0, 0.0, False)
    if not broken:
        for check in law.checks(weights, eps):
            numbers = (check.quantity, check.measured, check.expected, check.tolerance, check.passed)
            yield AuditFinding(name, roles[check.role], check.head, *numbers)


def _exact(path: str, stored: Tensor, value: Tensor) -> AuditFinding:
    expected = value.to(device=stored.device, dtype=stored.dtype)
    distance = float((stored.double() - expected.double()).abs().max()) if stored.numel() else 0.0
    return AuditFinding(path, "parameter", -1, "distance to the scheme's value", distance, 0.0, 0.0, distance == 0.0)
