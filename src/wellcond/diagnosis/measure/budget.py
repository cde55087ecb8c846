"""Cost of the Jacobians of a layer, counted from shapes, and how much of them fits a budget.

Operations are counted as those of matrix products, about 4e10 a second on one core: eigenvalues of n × n take as long
as 5 n³ of them, singular values as long as 11 n³, and passing over a number in memory as long as 40. A count does not
depend on how busy a machine is, so neither do the rows and heads that are chosen by it.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from wellcond.attention.capture import evaluating
from wellcond.attention.recorded.replay import RecordedMixing
from wellcond.attention.replay import Call, Softmax
from wellcond.attention.roles import QKV
from wellcond.attention.view import AttentionLayer
from wellcond.jacobian.head import Head
from wellcond.jacobian.head_jacobian import Rows, choose_rows, estimate
from wellcond.jacobian.papers_bound import BISECTIONS

BUDGET = 1e11  # of a diagnosis that was not asked to be exact: two or three seconds
LEAST_ROWS = 4  # before heads are left out
PASS = 40  # operations in the time of one pass over a number
CALL = 2e7  # and of one call of autograd
EQUILIBRATED = 1.5  # n³ of them for two singular values by Cholesky and Lanczos


def outline(layer: AttentionLayer, call: Call, sequences: Sequence[int]) -> Head:
    """A head of the layer without its numbers: shapes alone, on the meta device."""
    with evaluating(call.module):
        given, mixing = call.tokens(), call.mixing()
    roles = dict(layer.projections(*QKV))
    tokens: dict[int, torch.Tensor] = {}
    for role in roles:
        x = given[role]
        shape = (min(len(sequences), len(x)), *x.shape[1:])
        tokens.setdefault(x.data_ptr(), torch.empty(shape, dtype=torch.float64, device="meta"))
    return Head(
        {role: tokens[given[role].data_ptr()] for role in roles},
        {role: torch.empty(p.shape[1:], dtype=torch.float64, device="meta") for role, p in roles.items()},
        {},
        mixing,
        outputs=mixing.rows if isinstance(mixing, RecordedMixing) else None,
    )


def operations(head: Head, rows: int, *, mapped: bool) -> float:
    """Count operations of κ(J) and κ_eq(J) of one head by Gram matrices, and of the papers' bound.

    Rows are counted for each sequence; where keys are turned or normalised one by one, `mapped`, J_K is no product.

    >>> from wellcond.jacobian.head import softmax_head
    >>> head = softmax_head(torch.randn(64, 64), *torch.randn(3, 64, 16))
    >>> f"{operations(head, 64, mapped=True):.0e}", f"{operations(head, 8, mapped=True):.0e}"
    ('1e+10', '9e+08')
    """
    cost = estimate(head, rows=rows)
    n, keys = min(cost.rows, cost.columns), head.tokens["value"].shape[1]
    width = max(weight.shape[1] for weight in head.weights.values())
    sequences, whole = head.sequences, head.rows
    reach = min(sequences * keys, head.tokens["value"].shape[2])
    projected = sum(2.0 * x.shape[0] * x.shape[1] * x.shape[2] * width for x in head.tokens.values())
    if type(head.mixing) is Softmax:
        inner = reach * (width if mapped else 1)
        blocks = sequences * rows * keys * (2.0 * head.value_width + 4 * PASS) * (width + inner)
        blocks += 2 * width * CALL if mapped else 0.0  # a derivative of queries and of keys for each coordinate
        gram = 2.0 * n * n * (width + inner)
        bound = sequences * whole * keys * (2 * BISECTIONS * 2 * PASS + 11 * min(whole, keys))
    else:  # reverse mode, once for each output
        blocks = cost.rows * sequences * whole * (6.0 * keys * width + 2.0 * reach * width)
        gram, bound = 2.0 * n * n * max(cost.rows, cost.columns), 0
    return 4 * projected + blocks + 2 * gram + (5.0 + EQUILIBRATED) * n**3 + bound


def shared_operations(head: Head, rows: int) -> float:
    """Count operations that the heads of a layer share: the structural rank, where no formula has it."""
    cost = estimate(head, rows=rows)
    n, long = min(cost.rows, cost.columns), max(cost.rows, cost.columns)
    return 2.0 * n * n * long + 11.0 * n**3


def fitted(head: Head, heads: int, budget: float, *, mapped: bool, keep_heads: bool = False) -> tuple[int, int]:
    """Return how many query rows and heads fit: fewer rows first, then fewer heads, never none."""

    def fits(rows: int, count: int) -> bool:
        return count * operations(head, rows, mapped=mapped) + shared_operations(head, rows) <= budget

    low, high = min(LEAST_ROWS, head.rows), head.rows
    if fits(high, heads):
        return high, heads
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle, heads) else (low, middle)
    count = heads
    while not keep_heads and count > 1 and not fits(low, count):
        count -= 1
    return low, count


def spaced(heads: int, count: int) -> list[int]:
    """Choose a number of heads, evenly spaced.

    >>> spaced(12, 3), spaced(2, 2)
    ([0, 6, 11], [0, 1])
    """
    return torch.linspace(0, heads - 1, count).round().long().tolist()


def exact_operations(
    layer: AttentionLayer, call: Call | None, heads: Sequence[int] | None, rows: Rows, sequences: Sequence[int]
) -> float:
    """Count operations of all that is asked for in one layer; none where it has no Jacobian."""
    if call is None or call.replay is None:
        return 0.0
    head = outline(layer, call, sequences)
    chosen = len(choose_rows(head, rows))
    count = layer.num_heads if heads is None else len(heads)
    return count * operations(head, chosen, mapped=turns_keys(layer)) + shared_operations(head, chosen)


def turns_keys(layer: AttentionLayer) -> bool:
    """Whether keys are turned (rotary positions) or normalised before the product."""
    return bool(layer.rotary or layer.qk_norm)
