r"""The papers' bound on the condition number of the attention Jacobian, and its parts.

Conditioned Initialization and Spectral Conditioning bound κ of the *vertically* stacked Jacobian by
$\kappa(X)^3 \kappa(\Lambda)\,\kappa(W_V)(\kappa(W_Q) + \kappa(W_K)) + \kappa(X)\,\kappa(P)$. As written it is
infinite, for $\Lambda_n 1 = 0$ always; here every κ is over the singular values that are not zero. For the side-by-side
Jacobian it is a reference curve and no bound.
"""

from __future__ import annotations

import torch
from torch import Tensor

from wellcond.attention.replay import Softmax
from wellcond.jacobian.head import Head
from wellcond.jacobian.result import Bound
from wellcond.linalg import singular_values

BISECTIONS = 96  # halvings of an interval of logarithms; 1500 of them wide at most


def bound(head: Head) -> Bound | None:
    """The bound for a head of self-attention; None where it is not defined (cross-attention, other mixing).

    >>> from wellcond.jacobian.head import softmax_head
    >>> _ = torch.manual_seed(0)
    >>> found = bound(softmax_head(torch.eye(4), *torch.eye(4).expand(3, 4, 4)))
    >>> found.tokens, round(found.probabilities, 3), round(found.softmax, 3)
    (1.0, 7.166, 1.419)
    >>> round(found.value, 3)                                       # κ(X)³ κ(Λ) κ(W_V) (κ(W_Q) + κ(W_K)) + κ(X) κ(P)
    10.003
    """
    x = head.tokens["value"]
    if type(head.mixing) is not Softmax or any(x is not y for y in head.tokens.values()):
        return None
    q, k, _ = head.project()
    p = head.mixing.probabilities(q, k)[:, 0]
    hidden = head.mixing.hidden
    visible = torch.ones_like(p, dtype=torch.bool) if hidden is None else ~hidden[:, 0].expand_as(p)
    tokens, probabilities = _condition(x.flatten(0, 1)), _condition(p)
    softmax = softmax_condition(p.flatten(0, 1), visible.flatten(0, 1))
    w_q, w_k, w_v = (_condition(head.weights[role]) for role in ("query", "key", "value"))
    value = None if softmax is None else tokens**3 * softmax * w_v * (w_q + w_k) + tokens * probabilities
    return Bound(value, tokens, probabilities, softmax)


def _condition(matrix: Tensor) -> float:
    """κ over the singular values that are not zero, of all matrices together."""
    sigma = singular_values(matrix)
    floor = sigma.max() * max(matrix.shape[-2:]) * torch.finfo(torch.float64).eps
    return float(sigma.max() / sigma[sigma > floor].min())


def softmax_condition(p: Tensor, visible: Tensor | None = None) -> float | None:
    r"""κ(Λ): the largest eigenvalue of all $\Lambda_n$ ÷ the smallest that is not zero, by the secular equation.

    $\Lambda = diag(p) - pp^T$ with Σp = 1 has the eigenvalue 0 and the roots of $\sum_t p_t/(p_t - \lambda) = 0$, one
    between each two neighbouring different p; a p that occurs k times is an eigenvalue k − 1 times (Golub 1973).

    Args:
        p: rows of probabilities, `(R, T)`, float64; rows with one key that is not zero are left out.
        visible: where a key is not hidden by a mask; a visible probability of zero has underflowed.

    Returns:
        κ(Λ), or None where a probability underflowed or no row has two keys.

    >>> softmax_condition(torch.tensor([[0.5, 0.5], [0.9, 0.1]], dtype=torch.float64))    # two keys: λ = 2 p₁ p₂
    2.7777777777777777
    """
    if visible is not None and bool(((p == 0) & visible).any()):
        return None
    p = p[(p > 0).sum(1) >= 2]
    if not len(p):
        return None
    ordered = torch.where(p > 0, p, torch.inf).sort(1).values  # the support first, ascending
    smallest = _root(p, ordered[:, 0], ordered[:, 1], ascending=True)
    top = p.topk(2, 1).values
    largest = _root(p, top[:, 1], top[:, 0], ascending=False)
    return float(largest.max() / smallest.min())


def _root(p: Tensor, low: Tensor, high: Tensor, *, ascending: bool) -> Tensor:
    """The root of Σ p/(p − λ) between two neighbouring p, by bisection of the logarithm of its distance to one end.

    Close to that end (the lower one if `ascending`) the distance, not λ, is what has full relative precision.
    """
    end, sign = (low, 1.0) if ascending else (high, -1.0)
    gap = high - low
    differences = torch.where(p > 0, p - end[:, None], 0.0)
    near = torch.full_like(gap, -745.0)  # log of the smallest number there is
    far = gap.clamp_min(5e-324).log()
    for _ in range(BISECTIONS):
        middle = (near + far) / 2
        distance = sign * middle.exp()
        rest = differences - distance[:, None]
        total = torch.where(p > 0, p / rest, 0.0).sum(1) * sign
        below = total < 0  # next to its end the term of that end outweighs all others
        near, far = torch.where(below, middle, near), torch.where(below, far, middle)
    root = end + sign * ((near + far) / 2).exp()
    return torch.where(gap == 0, end, root)
