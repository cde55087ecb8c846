r"""The spectrum of an attention Jacobian, to a stated precision.

The Gram matrix is cheap but squares κ: it resolves σ_min to about $\sqrt n\,\epsilon\,\sigma_{max}^2/\sigma_{min}$.
Where that is not enough, the triangular factor resolves it to about $\sqrt n\,\epsilon\,\sigma_{max}$, and below that
nothing in float64 does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final, Literal

import torch
from torch import Tensor

from wellcond.attention.replay import Softmax
from wellcond.checked import Bytes, Count, checked
from wellcond.errors import WellcondError
from wellcond.jacobian.closed import blocks, compress
from wellcond.jacobian.estimate import Estimate
from wellcond.jacobian.factor import Dense, Factor, SideBySide, Vertical
from wellcond.jacobian.general import role_blocks
from wellcond.jacobian.head import Head
from wellcond.jacobian.matrix_free import largest_singular_value
from wellcond.jacobian.measured import Measured, by_factor, by_gram
from wellcond.jacobian.result import DEFICIENT, LARGEST, LOWER_BOUND, OK, SAMPLE, UNRESOLVED, ConditionNumber
from wellcond.jacobian.structure import known_rank
from wellcond.linalg import matrix_rank

SIDE: Final = "side-by-side"
VERTICAL: Final = "vertical"
SAFE = 1e-3  # relative error of σ_min up to which the Gram matrix will do
CLEAR = 1e-4  # σ_min ÷ σ_max above which no eps is at work
NULL = 1e-9  # of a twin, whose κ is far below the inverse of this
CLIFF = 100.0  # a fall by more than this to below the resolution is a rank, not a decay
MEMORY = 8 * 2**30

Rows = Count | Sequence[int] | None
Convention = Literal["side-by-side", "vertical"]
Method = Literal["auto", "gram", "factor", "matrix-free"]
Ranks = dict[tuple[object, ...], int]  # structural ranks that heads of one layer share


@checked
def spectrum(
    head: Head,
    *,
    convention: Convention = SIDE,
    method: Method = "auto",
    rows: Rows = None,
    max_memory: Bytes = MEMORY,
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
    return measure(head, convention=convention, method=method, rows=rows, max_memory=max_memory)[0]


def measure(
    head: Head,
    *,
    convention: Convention = SIDE,
    method: Method = "auto",
    rows: Rows = None,
    max_memory: float = MEMORY,
    ranks: Ranks | None = None,
) -> tuple[ConditionNumber, Tensor | None]:
    """What `spectrum` returns, and all singular values where they were computed on the way.

    Heads of one layer on the same tokens may share `ranks`: the structural rank costs more than the spectrum itself.
    """
    ranks = {} if ranks is None else ranks
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
        return _largest_only(head, chosen, convention), None
    factor = factor_of(head, chosen, convention)
    for route in routes:
        found = by_gram(factor) if route == "gram" else by_factor(factor)
        verdict = _judge(found, factor.shape, head, chosen, convention, ranks)
        if verdict.status == OK and verdict.error <= SAFE * verdict.sigma_min:  # type: ignore[operator]
            break
    if len(chosen) < head.rows and verdict.status == OK:
        verdict = replace(verdict, status=LOWER_BOUND if _certified(head, convention) else SAMPLE)
    return verdict, found.values


@checked
def singular_values(
    head: Head, *, convention: Convention = SIDE, method: Literal["gram", "factor"] = "factor", rows: Rows = None
) -> Tensor:
    """All singular values of a head's Jacobian, largest first, by the `"factor"` or the cheaper `"gram"` route.

    >>> from wellcond.jacobian.head import softmax_head
    >>> singular_values(softmax_head(torch.randn(6, 8), *torch.randn(3, 8, 4))).shape
    torch.Size([24])
    """
    factor = factor_of(head, choose_rows(head, rows), convention)
    found = (by_gram if method == "gram" else by_factor)(factor, all_values=True)
    assert found.values is not None
    return found.values


@checked
def tangent_kernel(head: Head, *, rows: Rows = None) -> Tensor:
    """J Jᵀ side by side, `(R, d_v, R, d_v)`: the tangent kernel of the head for R query rows.

    >>> from wellcond.jacobian.head import softmax_head
    >>> tangent_kernel(softmax_head(torch.randn(6, 8), *torch.randn(3, 8, 4)), rows=2).shape
    torch.Size([2, 4, 2, 4])
    """
    chosen = choose_rows(head, rows)
    size = (head.sequences * len(chosen), head.value_width)
    return factor_of(head, chosen, SIDE).row_gram().view(*size, *size)


@checked
def matrix(head: Head, *, convention: Convention = SIDE, rows: Rows = None) -> Tensor:
    """J with the tokens compressed: the same singular values and left singular vectors as J.

    >>> from wellcond.jacobian.head import softmax_head
    >>> matrix(softmax_head(torch.randn(6, 8), *torch.randn(3, 8, 4))).shape      # 6 · 4 rows, 3 · 6 · 4 columns
    torch.Size([24, 72])
    """
    return factor_of(head, choose_rows(head, rows), convention).matrix()


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


@checked
def estimate(head: Head, *, convention: Convention = SIDE, rows: Rows = None) -> Estimate:
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


def _structural_rank(head: Head, rows: Tensor, convention: str, ranks: Ranks) -> int:
    """By formula, or the rank of a twin: weights at random on well conditioned tokens that span the same space."""
    known = known_rank(head, head.sequences * len(rows)) if convention == SIDE else None
    if known is not None:
        return known
    twin = head.twin(joint=convention == VERTICAL)
    key = _likeness(twin, rows, convention)
    if key is not None and key in ranks:
        return ranks[key]
    found = by_factor(factor_of(twin, rows, convention), all_values=True)
    assert found.values is not None
    rank = int((found.values > NULL * found.largest).sum())
    if key is not None:
        ranks[key] = rank
    return rank


def _likeness(twin: Head, rows: Tensor, convention: str) -> tuple[object, ...] | None:
    """What tells the twins of two heads on the same tokens apart: weights are drawn alike, so it is the mixing.

    The same queries and keys, mapped, with the same slopes along one direction, and the same scale and bias make the
    same Jacobian. None for a mixing that is no softmax, which cannot be asked.
    """
    softmax = twin.mixing
    if type(softmax) is not Softmax:
        return None
    q, k, _ = twin.project()
    parts: list[Tensor] = []
    for f, x in ((softmax.query_map, q), (softmax.key_map, k)):
        with torch.enable_grad():
            leaf = x.detach().requires_grad_()
            out = f(leaf)
            probe = torch.randn(out.shape, dtype=out.dtype, generator=torch.Generator().manual_seed(0)).to(out.device)
            parts += [out.detach(), torch.autograd.grad(out, leaf, probe)[0]]
    parts += [x for x in (softmax.scale, softmax.bias) if isinstance(x, Tensor)]
    plain = tuple(x for x in (softmax.scale, softmax.softcap) if not isinstance(x, Tensor))
    shapes = tuple((role, tuple(w.shape)) for role, w in twin.weights.items())
    held = tuple((tuple(x.shape), x.contiguous().cpu().numpy().tobytes()) for x in (*parts, *twin.biases.values()))
    return (convention, tuple(rows.tolist()), shapes, plain, *held)


def _surely_full(found: Measured, shape: tuple[int, int], head: Head) -> bool:
    """Whether the rank that was found is the structural one, too.

    Not if a small σ may be what the eps of a QK-norm leaves of a direction without effect; such directions cost
    columns, at most d² + 2r + 2 of them and d for each sequence, and rows only where columns are scarce.
    """
    if found.rank < found.n:
        return False
    d = next(iter(head.weights.values())).shape[1]
    spare = d * d + 2 * head.tokens["value"].shape[2] + d * head.sequences + 2
    return found.smallest > CLEAR * found.largest or shape[1] - shape[0] >= spare


def _judge(
    found: Measured, shape: tuple[int, int], head: Head, rows: Tensor, convention: str, ranks: Ranks
) -> ConditionNumber:
    """Turn what was measured into a statement that claims no more than is known."""
    if found.largest == 0.0:
        return ConditionNumber(None, 0.0, None, 0, 0, 0.0, found.method, DEFICIENT)
    full = _surely_full(found, shape, head)
    structural = found.n if full else min(found.n, _structural_rank(head, rows, convention, ranks))
    rank = min(found.rank, structural)
    smallest = found.at(structural)
    value, status = found.largest / (smallest or 1.0), OK
    if rank < structural:
        deficient = found.method == "factor" and found.at(rank) > CLIFF * found.at(rank + 1)
        status = DEFICIENT if deficient else UNRESOLVED
        smallest = found.at(rank) if deficient else smallest
        value = found.largest / (smallest if deficient else smallest + found.error(smallest))
    return ConditionNumber(
        value, found.largest, smallest, rank, structural, found.error(smallest), found.method, status
    )


def _certified(head: Head, convention: str) -> bool:
    """Whether κ of some query rows is a lower bound of the whole one's: it is, by interlacing, if J has full row rank.

    J_V = PX ⊗ I alone tells, where PX has.
    """
    if convention != SIDE or type(head.mixing) is not Softmax:
        return False
    q, k, _ = head.project()
    mixed = (head.mixing.probabilities(q, k)[:, 0] @ head.tokens["value"]).flatten(0, 1)
    return matrix_rank(mixed) == len(mixed)


def _largest_only(head: Head, rows: Tensor, convention: str) -> ConditionNumber:
    """What can be said when no matrix fits."""
    if convention == VERTICAL:
        raise WellcondError("the vertical Jacobian needs its matrix: raise max_memory or sample query rows (rows=…)")
    largest, error = largest_singular_value(head, rows)
    return ConditionNumber(None, largest, None, None, None, error, "matrix-free", LARGEST)
