r"""The spectrum of an attention Jacobian, to a stated precision.

The Gram matrix is cheap but squares κ: it resolves σ_min to about $\sqrt n\,\epsilon\,\sigma_{max}^2/\sigma_{min}$.
Where that is not enough, the triangular factor resolves it to about $\sqrt n\,\epsilon\,\sigma_{max}$, and below that
nothing in float64 does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from wellcond.attention.replay import Softmax
from wellcond.errors import WellcondError
from wellcond.jacobian.closed import blocks, compress
from wellcond.jacobian.estimate import Estimate
from wellcond.jacobian.factor import Dense, Factor, SideBySide, Vertical
from wellcond.jacobian.general import role_blocks
from wellcond.jacobian.head import Head
from wellcond.jacobian.matrix_free import largest_singular_value
from wellcond.jacobian.measured import Measured, by_factor, by_gram
from wellcond.jacobian.result import DEFICIENT, LARGEST, LOWER_BOUND, OK, SAMPLE, UNRESOLVED, ConditionNumber
from wellcond.jacobian.structure import column_rank, known_rank, rank_of_twin

SIDE, VERTICAL = "side-by-side", "vertical"
SAFE = 1e-3  # relative error of σ_min up to which the Gram matrix will do
CLIFF = 100.0  # a fall by more than this to below the resolution is a rank, not a decay
MEMORY = 8 * 2**30

Rows = int | Sequence[int] | None


def spectrum(
    head: Head,
    *,
    convention: str = SIDE,
    method: str = "auto",
    rows: Rows = None,
    max_memory: float = MEMORY,
) -> ConditionNumber:
    """The condition number of a head's Jacobian at its structural rank.

    Args:
        head: from `head_of` (a real layer) or `softmax_head` (plain tensors).
        convention: `"side-by-side"`, ∂A/∂(W_Q, W_K, W_V), or `"vertical"`, the papers' stacking.
        method: `"auto"`: the Gram matrix, then the triangular factor where precision demands it, then σ_max alone if
            neither fits; or `"gram"`, `"factor"`, `"matrix-free"`.
        rows: which query rows (of every sequence), or how many, evenly spaced; all if None. Keys are never left out.
        max_memory: bytes; `estimate` says beforehand what is needed.

    >>> from wellcond.jacobian.head import softmax_head
    >>> _ = torch.manual_seed(0)
    >>> found = spectrum(softmax_head(torch.randn(6, 8), *torch.randn(3, 8, 4)))
    >>> found.method, found.status, found.rank, found.structural_rank
    ('gram', 'ok', 24, 24)
    """
    _check(convention, method)
    chosen = choose_rows(head, rows)
    cost = estimate(head, convention=convention, rows=rows)
    routes = [route for route, need in (("gram", cost.gram_bytes), ("factor", cost.factor_bytes)) if need <= max_memory]
    routes = [route for route in routes if method in ("auto", route)]
    if method in ("gram", "factor") and not routes:
        need = getattr(cost, f"{method}_bytes")
        raise WellcondError(
            f"the {method} route for a Jacobian of {cost.rows} × {cost.columns} needs {need / 2**30:.1f} GiB, more "
            f"than max_memory; sample query rows (rows=…) or say method='matrix-free' for σ_max alone"
        )
    if not routes:
        return _largest_only(head, chosen, convention)
    factor = factor_of(head, chosen, convention)
    verdict = None
    for route in routes:
        found = by_gram(factor) if route == "gram" else by_factor(factor)
        verdict = _judge(found, head, chosen, convention)
        if verdict.status == OK and verdict.error <= SAFE * verdict.sigma_min:  # type: ignore[operator]
            break
    assert verdict is not None
    return verdict if len(chosen) == head.rows else _of_sample(verdict, head)


def singular_values(head: Head, *, convention: str = SIDE, method: str = "factor", rows: Rows = None) -> Tensor:
    """All singular values of a head's Jacobian, largest first, by the `"factor"` or the cheaper `"gram"` route.

    >>> from wellcond.jacobian.head import softmax_head
    >>> singular_values(softmax_head(torch.randn(6, 8), *torch.randn(3, 8, 4))).shape
    torch.Size([24])
    """
    _check(convention, method)
    factor = factor_of(head, choose_rows(head, rows), convention)
    found = (by_gram if method == "gram" else by_factor)(factor, all_values=True)
    assert found.values is not None
    return found.values


def tangent_kernel(head: Head, *, rows: Rows = None) -> Tensor:
    """J Jᵀ side by side, `(R, d_v, R, d_v)`: the tangent kernel of the head for R query rows.

    >>> from wellcond.jacobian.head import softmax_head
    >>> tangent_kernel(softmax_head(torch.randn(6, 8), *torch.randn(3, 8, 4)), rows=2).shape
    torch.Size([2, 4, 2, 4])
    """
    chosen = choose_rows(head, rows)
    size = (head.sequences * len(chosen), head.value_width)
    return factor_of(head, chosen, SIDE).row_gram().view(*size, *size)


def matrix(head: Head, *, convention: str = SIDE, rows: Rows = None) -> Tensor:
    """J with the tokens compressed: the same singular values and left singular vectors as J.

    >>> from wellcond.jacobian.head import softmax_head
    >>> matrix(softmax_head(torch.randn(6, 8), *torch.randn(3, 8, 4))).shape      # 6 · 4 rows, 3 · 6 · 4 columns
    torch.Size([24, 72])
    """
    _check(convention, "auto")
    return factor_of(head, choose_rows(head, rows), convention).matrix()


def _check(convention: str, method: str) -> None:
    if convention not in (SIDE, VERTICAL):
        raise WellcondError(f"convention is '{SIDE}' or '{VERTICAL}', got {convention!r}")
    if method not in ("auto", "gram", "factor", "matrix-free"):
        raise WellcondError(f"method is 'auto', 'gram', 'factor' or 'matrix-free', got {method!r}")


def choose_rows(head: Head, rows: Rows) -> Tensor:
    """Indices of the query rows to measure."""
    total = head.rows
    if rows is None:
        return torch.arange(total)
    if isinstance(rows, int):
        if rows < 1:
            raise WellcondError(f"at least one query row is needed, got rows={rows}")
        return torch.linspace(0, total - 1, min(rows, total)).round().long()
    chosen = torch.tensor(sorted(set(rows)))
    if not len(chosen) or chosen[0] < 0 or chosen[-1] >= total:
        raise WellcondError(f"query rows are numbered 0 to {total - 1}, got {list(rows)}")
    return chosen


def estimate(head: Head, *, convention: str = SIDE, rows: Rows = None) -> Estimate:
    """Memory and time of a spectrum, from shapes alone.

    >>> from wellcond.jacobian.head import softmax_head
    >>> cost = estimate(softmax_head(torch.randn(6, 8), *torch.randn(3, 8, 4)))
    >>> cost.rows, cost.columns
    (24, 72)
    """
    chosen = choose_rows(head, rows)
    counts = {role: x.shape[0] * (len(chosen) if role == "query" else x.shape[1]) for role, x in head.tokens.items()}
    height = head.sequences * len(chosen) * head.value_width
    if convention == VERTICAL:
        reach = sum({id(x): x.shape[0] * x.shape[1] for x in head.tokens.values()}.values())
        height, width = 3 * height, min(reach, head.tokens["value"].shape[2]) * head.value_width
    else:
        width = sum(min(counts[role], x.shape[2]) * head.weights[role].shape[1] for role, x in head.tokens.items())
    return Estimate.of(height, width, dense=type(head.mixing) is not Softmax)


def factor_of(head: Head, rows: Tensor, convention: str) -> Factor:
    """J of some query rows, compressed: same singular values, at most as many columns as there are tokens."""
    vertical = convention == VERTICAL
    if vertical and (len(head.weights) < 3 or len({w.shape for w in head.weights.values()}) > 1):
        shapes = {role: tuple(w.shape) for role, w in head.weights.items()}
        raise WellcondError(f"the vertical convention needs W_Q, W_K and W_V of one shape, got {shapes}")
    tokens = dict(head.tokens)
    if "query" in tokens and len(rows) < head.rows:
        tokens["query"] = tokens["query"][:, rows]
    closed = type(head.mixing) is Softmax
    if not closed:  # the queries of other rows may matter
        tokens = dict(head.tokens)
    short = compress(tokens, joint=vertical)
    if closed:
        parts = blocks(head, short, rows)
        return Vertical(parts) if vertical else SideBySide(parts)
    parts_by_role = role_blocks(head, short, rows)
    return Dense(torch.cat(parts_by_role, 0 if vertical else 1))


def _structural_rank(head: Head, rows: Tensor, convention: str) -> int:
    known = known_rank(head, head.sequences * len(rows)) if convention == SIDE else None
    return rank_of_twin(factor_of(head.twin(), rows, convention).gram()) if known is None else known


def _judge(found: Measured, head: Head, rows: Tensor, convention: str) -> ConditionNumber:
    """Turn what was measured into a statement that claims no more than is known."""
    structural = found.n if found.rank == found.n else min(found.n, _structural_rank(head, rows, convention))
    rank = min(found.rank, structural)
    smallest = found.at(structural)
    value, status = found.largest / (smallest or 1.0), OK
    if rank < structural:
        deficient = found.at(rank) > CLIFF * found.at(rank + 1)
        status = DEFICIENT if deficient else UNRESOLVED
        smallest = found.at(rank) if deficient else smallest
        value = found.largest / (smallest if deficient else smallest + found.error(smallest))
    return ConditionNumber(
        value, found.largest, smallest, rank, structural, found.error(smallest), found.method, status
    )


def _of_sample(verdict: ConditionNumber, head: Head) -> ConditionNumber:
    """Rows of a J of full row rank interlace: their κ is a lower bound of the whole one's; else it is an estimate."""
    if verdict.status != OK:
        return verdict
    certified = verdict.rank == verdict.structural_rank and _values_have_full_row_rank(head)
    return replace(verdict, status=LOWER_BOUND if certified else SAMPLE)


def _values_have_full_row_rank(head: Head) -> bool:
    """Whether J_V = PX ⊗ I alone has a rank as high as J has rows."""
    if type(head.mixing) is not Softmax:
        return False
    q, k, _ = head.project()
    mixed = head.mixing.probabilities(q, k)[:, 0] @ head.tokens["value"]
    return column_rank(mixed.flatten(0, 1).mT) == mixed.shape[0] * mixed.shape[1]


def _largest_only(head: Head, rows: Tensor, convention: str) -> ConditionNumber:
    """What can be said when no matrix fits."""
    if convention == VERTICAL:
        raise WellcondError("the vertical Jacobian does not fit in max_memory; sample query rows (rows=…)")
    largest, error = largest_singular_value(head, rows)
    return ConditionNumber(None, largest, None, None, None, error, "matrix-free", LARGEST)
