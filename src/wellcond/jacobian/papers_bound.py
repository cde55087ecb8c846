r"""The papers' bound on the condition number of the attention Jacobian, and its parts.

Conditioned Initialization and Spectral Conditioning bound κ of the *vertically* stacked Jacobian by
$\kappa(X)^3 \kappa(\Lambda)\,\kappa(W_V)(\kappa(W_Q) + \kappa(W_K)) + \kappa(X)\,\kappa(P)$. As written it is
infinite, for $\Lambda_n 1 = 0$ always; here every κ is over the singular values that are not zero. For the side-by-side
Jacobian it is a reference curve and no bound.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from wellcond._core.checked import checked
from wellcond._core.linalg import svdvals, zero_below
from wellcond._core.short_repr import short_repr
from wellcond.attention.replay import Softmax
from wellcond.attention.roles import QKV
from wellcond.errors import ArgumentError
from wellcond.jacobian.head import Head
from wellcond.jacobian.result import Bound

BISECTIONS = 60  # halvings of an interval of logarithms, at most 1500 wide


@checked
def bound(head: Head, *, tokens: float | None = None) -> Bound | None:
    """The bound for a head of self-attention; None where it is not defined (cross-attention, other mixing).

    Args:
        head: the head.
        tokens: κ(X) where it is known, for the heads of a layer share it.

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
    visible = torch.ones_like(p, dtype=torch.bool) if hidden is None else ~hidden.broadcast_to(p[:, None].shape)[:, 0]
    tokens, probabilities = tokens_condition(head) if tokens is None else tokens, _condition(p)
    softmax = softmax_condition(p.flatten(0, 1), visible.flatten(0, 1))
    w_q, w_k, w_v = (_condition(head.weights[role]) for role in QKV)
    value = None if softmax is None else tokens**3 * softmax * w_v * (w_q + w_k) + tokens * probabilities
    return Bound(None if value is None or math.isnan(value) else value, tokens, probabilities, softmax)


def tokens_condition(head: Head) -> float:
    """κ(X) of the tokens that values read, over the singular values that are not zero."""
    return _condition(head.tokens["value"].flatten(0, 1))


def _condition(matrix: Tensor) -> float:
    """κ over the singular values that are not zero, of all matrices together; NaN if all are."""
    sigma = svdvals(matrix)
    if not sigma.any():
        return math.nan
    return float(sigma.max() / sigma[sigma > zero_below(sigma.max(), max(matrix.shape[-2:]))].min())


@checked
def softmax_condition(p: Tensor, visible: Tensor | None = None) -> float | None:
    r"""κ(Λ): the largest eigenvalue of all $\Lambda_n$ ÷ the smallest that is not zero, by the secular equation.

    $\Lambda = \operatorname{diag}(p) - pp^T$ with Σp = 1 has the eigenvalue 0 and the roots of
    $\sum_t p_t/(p_t - \lambda) = 0$, one between each two neighbouring different p; a p that occurs k times is an
    eigenvalue k − 1 times (Golub 1973).

    Args:
        p: rows of probabilities, `(R, T)`, float64; rows with one key that is not zero are left out.
        visible: where a key is not hidden by a mask; a visible probability of zero has underflowed.

    Returns:
        κ(Λ), or None where a probability underflowed or no row has two keys.

    >>> two = torch.tensor([[0.5, 0.5], [0.9, 0.1]], dtype=torch.float64)          # λ = 2 p₁ p₂
    >>> round(softmax_condition(two), 9)
    2.777777778
    """
    if p.ndim != 2 or not p.is_floating_point() or p.is_meta or not bool((p >= 0).all()):
        raise ArgumentError(f"softmax_condition: p has rows of probabilities, (R, T); got {short_repr(p)} of {p.dtype}")
    if visible is not None and (visible.dtype != torch.bool or visible.shape != p.shape):
        raise ArgumentError(
            f"softmax_condition: visible is None or a boolean tensor of shape {tuple(p.shape)}; "
            f"got {short_repr(visible)} of {visible.dtype}"
        )
    if visible is not None and bool(((p == 0) & visible).any()):
        return None
    p = p if visible is None else torch.where(visible, p, 0.0)
    p = p[(p > 0).sum(1) >= 2]
    if not len(p):
        return None
    ordered = torch.where(p > 0, p, torch.inf).sort(1).values  # the support first, ascending
    smallest = _root(p, ordered[:, 0], ordered[:, 1])
    top = p.topk(2, 1).values
    largest = _root(p, top[:, 1], top[:, 0])
    return float(largest.max() / smallest.min())


def _root(p: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """The root of Σ p/(p − λ) between two neighbouring p, by bisection of the logarithm of its distance to the lower.

    Added to the lower one the distance loses nothing; taken from the upper one it may lose everything.
    """
    gap = high - low
    differences = torch.where(p > 0, p - low[:, None], 0.0)
    near = torch.full_like(gap, -745.0)  # log of the smallest number there is
    far = gap.clamp_min(5e-324).log()
    for _ in range(BISECTIONS):
        middle = (near + far) / 2
        rest = differences - middle.exp()[:, None]
        below = torch.where(p > 0, p / rest, 0.0).sum(1) < 0  # next to the lower one its term outweighs all others
        near, far = torch.where(below, middle, near), torch.where(below, far, middle)
    return torch.where(gap == 0, low, low + ((near + far) / 2).exp())
