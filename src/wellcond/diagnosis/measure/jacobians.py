"""The Jacobians of a layer's heads, as records."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from wellcond.attention.replay import Call
from wellcond.attention.view import AttentionLayer
from wellcond.diagnosis.measure.budget import fitted, outline, spaced, turns_keys
from wellcond.diagnosis.records import JacobianRecord
from wellcond.jacobian.condition_number import MEMORY, measure_spectrum
from wellcond.jacobian.head import Head
from wellcond.jacobian.head_jacobian import VERTICAL, Rows, choose_rows
from wellcond.jacobian.layer_heads import heads_of
from wellcond.jacobian.papers_bound import bound, tokens_condition
from wellcond.jacobian.result import Bound, ConditionNumber
from wellcond.jacobian.structural_rank import Ranks


@dataclass(frozen=True)
class JacobianOptions:
    """Which Jacobians are measured, and how."""

    rows: Rows = None  # which query rows, or how many; None for as many as `size` allows
    size: int | None = None  # largest number of outputs (rows of J) unless `rows` says otherwise; None for no limit
    heads: Sequence[int] | None = None  # which heads; all if None
    sequences: Sequence[int] = (0,)  # which sequences of the batch, or windows
    vertical: bool = False  # whether the papers' vertical Jacobian is measured too
    max_memory: float = MEMORY  # bytes for one Jacobian
    budget: float | None = None  # operations for a layer, kept to by leaving out rows, then heads; None for no limit

    def rows_for(self, head: Head) -> Rows:
        """Return the query rows to measure of one head."""
        if self.rows is not None or self.size is None:
            return self.rows
        most = max(1, self.size // (head.value_width * head.sequences))
        return None if most >= head.rows else most

    def within_budget(self, layer: AttentionLayer, call: Call) -> JacobianOptions:
        """Return options with the rows and heads that the budget pays for in this layer; what was asked for stays."""
        if self.budget is None or self.rows is not None:
            return self
        head = outline(layer, call, self.sequences)
        asked = layer.num_heads if self.heads is None else len(self.heads)
        # The vertical Jacobian costs about as much again.
        budget = self.budget / 2 if self.vertical else self.budget
        rows, count = fitted(head, asked, budget, mapped=turns_keys(layer), keep_heads=self.heads is not None)
        heads = self.heads if count == asked else spaced(layer.num_heads, count)
        return replace(self, rows=None if rows == head.rows else rows, heads=heads)


def jacobian_records(layer: AttentionLayer, call: Call, options: JacobianOptions) -> Iterator[JacobianRecord]:
    """One record per head that is asked for, or that the budget pays for."""
    options = options.within_budget(layer, call)
    heads = range(layer.num_heads) if options.heads is None else options.heads
    ranks: Ranks = {}
    kappa = None
    for index, head in zip(heads, heads_of(layer, call, heads, sequences=options.sequences), strict=True):
        rows = options.rows_for(head)
        condition, values = measure_spectrum(head, rows=rows, max_memory=options.max_memory, ranks=ranks)
        kappa = tokens_condition(head) if kappa is None else kappa
        limit = bound(head, tokens=kappa)
        compared = condition
        if limit is not None and options.vertical:
            limit, compared = _with_vertical(limit, head, rows, options, ranks)
        known = limit is not None and limit.value is not None and compared.value is not None
        yield JacobianRecord(
            index,
            condition,
            limit,
            compared.value / limit.value if known else None,  # type: ignore[operator, union-attr]
            len(choose_rows(head, rows)) * head.sequences,
            head.rows * head.sequences,
            () if values is None else tuple(values.tolist()),
        )


def _with_vertical(
    limit: Bound, head: Head, rows: Rows, options: JacobianOptions, ranks: Ranks
) -> tuple[Bound, ConditionNumber]:
    """The bound with the Jacobian it is about, and whether that has the full rank the papers assume."""
    found, _ = measure_spectrum(head, convention=VERTICAL, rows=rows, max_memory=options.max_memory, ranks=ranks)
    d = head.value_width
    full = min(3 * d * len(choose_rows(head, rows)) * head.sequences, d * head.tokens["value"].shape[2])
    return replace(limit, vertical=found, full_rank=found.rank == full), found
