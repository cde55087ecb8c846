r"""The condition number of an attention Jacobian, to a stated precision.

The Gram matrix is cheap but squares κ: it resolves σ_min to about $\sqrt n\,\epsilon\,\sigma_{max}^2/\sigma_{min}$.
Where that is not enough, the triangular factor resolves it to about $\sqrt n\,\epsilon\,\sigma_{max}$, and below that
nothing in float64 does.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache

from torch import Tensor

from wellcond._core.argument_types import Bytes
from wellcond._core.checked import checked
from wellcond._core.linalg import few_threads, matrix_rank
from wellcond.attention.ordinary import ordinary
from wellcond.attention.replay import Softmax
from wellcond.errors import WellcondError
from wellcond.jacobian.gram_and_qr import SingularValues, by_gram, by_qr
from wellcond.jacobian.head import Head
from wellcond.jacobian.head_jacobian import (
    SIDE_BY_SIDE,
    VERTICAL,
    Rows,
    choose_rows,
    cost_of_rows,
    operator_of,
)
from wellcond.jacobian.lanczos import largest_singular_value
from wellcond.jacobian.operator import Blocks, JacobianOperator, Kept
from wellcond.jacobian.result import ConditionNumber, JacobianConvention, JacobianMethod, SpectrumStatus
from wellcond.jacobian.structural_rank import Ranks, structural_rank

GRAM_ERROR = 1e-3  # relative error of σ_min up to which the Gram matrix will do
WELL_SEPARATED = 1e-4  # σ_min ÷ σ_max above which no eps is at work
RANK_GAP = 100.0  # a fall by more than this to below the resolution is a rank, not a decay
MEMORY = 8 * 2**30  # bytes that a Jacobian may take unless told otherwise


@checked
@ordinary()
def spectrum(
    head: Head,
    *,
    convention: JacobianConvention = SIDE_BY_SIDE,
    method: JacobianMethod = "auto",
    rows: Rows = None,
    max_memory: Bytes = MEMORY,
) -> ConditionNumber:
    """The condition number of a head's Jacobian at its structural rank, as it stands and equilibrated.

    Args:
        head: from `head_of` (a real layer) or `softmax_head` (plain tensors).
        convention: `"side-by-side"`, ∂A/∂(W_Q, W_K, W_V), or `"vertical"`, the papers' stacking.
        method: `"auto"`: the Gram matrix, then the triangular factor where precision demands it, then σ_max alone if
            neither fits; or `"gram"`, `"factor"`, `"matrix-free"`.
        rows: which query rows (of every sequence), or how many, evenly spaced; all if None. Keys are never left out.
        max_memory: bytes; `estimate` says beforehand what is needed.

    >>> import torch
    >>> from wellcond.jacobian.head import softmax_head
    >>> _ = torch.manual_seed(0)
    >>> found = spectrum(softmax_head(torch.randn(6, 8), *torch.randn(3, 8, 4)))
    >>> found.method, found.status, found.rank, found.structural_rank
    ('gram', 'ok', 24, 24)
    >>> list(found.block_norms), found.equilibrated.value < found.value
    (['query', 'key', 'value'], True)
    """
    return measure_spectrum(head, rows, max_memory, {}, convention, method)[0]


def measure_spectrum(
    head: Head, rows: Rows, max_memory: float, ranks: Ranks, convention: str = SIDE_BY_SIDE, method: str = "auto"
) -> tuple[ConditionNumber, Tensor | None]:
    """Return what `spectrum` does, and all singular values where they were computed on the way.

    Heads of one layer on the same tokens may share `ranks`: the structural rank costs more than the spectrum itself.
    """
    chosen = choose_rows(head, rows)
    cost = cost_of_rows(head, chosen, convention)
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
    j = operator_of(head, chosen, convention)

    @cache
    def rank() -> int:
        return structural_rank(head, chosen, convention, ranks)

    sampled = len(chosen) < head.rows
    certified = sampled and _certified(head, convention)
    if convention == VERTICAL:
        found, verdict = _by_routes(j, routes, head, rank)
        return _of_sample(verdict, certified) if sampled else verdict, found.values
    assert isinstance(j, Blocks)
    j = Kept(j)
    found, verdict = _by_routes(j, routes, head, rank)
    with few_threads(min(j.shape)):
        norms = j.norms()
    j = j.weighted([1 / norm if norm else 1.0 for norm in norms])
    _, equal = _by_routes(j, routes, head, rank, all_values=False)
    if sampled:
        verdict, equal = _of_sample(verdict, certified), _of_sample(_bounded(equal) if certified else equal, certified)
    return replace(verdict, block_norms=dict(zip(head.weights, norms, strict=True)), equilibrated=equal), found.values


def _by_routes(
    j: JacobianOperator, routes: list[str], head: Head, rank: Callable[[], int], all_values: bool | None = None
) -> tuple[SingularValues, ConditionNumber]:
    """Singular values by the first route whose precision is enough, else the last, and κ from them."""
    for route in routes:
        found = (by_gram if route == "gram" else by_qr)(j, all_values=all_values)
        verdict = _judge(found, j.shape, head, rank)
        if verdict.status == SpectrumStatus.OK and verdict.error <= GRAM_ERROR * verdict.sigma_min:  # type: ignore[operator]
            break
    return found, verdict


def _of_sample(verdict: ConditionNumber, certified: bool) -> ConditionNumber:
    """Say of an exact κ that it is of some query rows only."""
    status = SpectrumStatus.LOWER_BOUND if certified else SpectrumStatus.SAMPLE
    return replace(verdict, status=status) if verdict.status == SpectrumStatus.OK else verdict


def _bounded(equal: ConditionNumber) -> ConditionNumber:
    """κ_eq of some rows as a lower bound of all rows' own.

    All rows' blocks have norms at least as large, so dividing by them leaves σ_min no larger, by interlacing; and some
    block of norm one makes σ_max at least one.
    """
    known = equal.status == SpectrumStatus.OK and equal.sigma_min is not None
    return replace(equal, value=1 / equal.sigma_min) if known else equal  # type: ignore[operator]


def _surely_full(found: SingularValues, shape: tuple[int, int], head: Head) -> bool:
    """Return whether the rank that was found is the structural one, too.

    Not if a small σ may be what the eps of a QK-norm leaves of a direction without effect; such directions cost
    columns, at most d² + 2r + 2 of them and d for each sequence, and rows only where columns are scarce.
    """
    if found.rank < found.n:
        return False
    d = next(iter(head.weights.values())).shape[1]
    spare = d * d + 2 * head.tokens["value"].shape[2] + d * head.sequences + 2
    return found.smallest > WELL_SEPARATED * found.largest or shape[1] - shape[0] >= spare


def _judge(found: SingularValues, shape: tuple[int, int], head: Head, rank_of: Callable[[], int]) -> ConditionNumber:
    """State κ from singular values, claiming no more than is known."""
    if found.largest == 0.0:
        return ConditionNumber(None, 0.0, None, 0, 0, 0.0, found.method, SpectrumStatus.DEFICIENT)
    full = _surely_full(found, shape, head)
    structural = found.n if full else min(found.n, rank_of())
    rank = min(found.rank, structural)
    smallest = found.at(structural)
    value, status = found.largest / (smallest or 1.0), SpectrumStatus.OK
    if rank < structural:
        deficient = found.method == "factor" and found.at(rank) > RANK_GAP * found.at(rank + 1)
        status = SpectrumStatus.DEFICIENT if deficient else SpectrumStatus.UNRESOLVED
        smallest = found.at(rank) if deficient else smallest
        value = found.largest / (smallest if deficient else smallest + found.error(smallest))
    return ConditionNumber(
        value, found.largest, smallest, rank, structural, found.error(smallest), found.method, status
    )


def _certified(head: Head, convention: str) -> bool:
    """Return whether κ of some query rows bounds the whole one's from below: by interlacing, if J has full row rank.

    J_V = PX ⊗ I alone tells, where PX has.
    """
    if convention != SIDE_BY_SIDE or type(head.mixing) is not Softmax:
        return False
    q, k, _ = head.project()
    mixed = (head.mixing.probabilities(q, k)[:, 0] @ head.tokens["value"]).flatten(0, 1)
    return matrix_rank(mixed) == len(mixed)


def _largest_only(head: Head, rows: Tensor, convention: str) -> ConditionNumber:
    """Return σ_max alone, for when no matrix fits in memory."""
    if convention == VERTICAL:
        raise WellcondError("the vertical Jacobian needs its matrix: raise max_memory or sample query rows (rows=…)")
    largest, error = largest_singular_value(head, rows)
    return ConditionNumber(None, largest, None, None, None, error, "matrix-free", SpectrumStatus.LARGEST)
