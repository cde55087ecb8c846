"""Structural rank: how many singular values can be other than zero, whatever the weights."""

from __future__ import annotations

import torch
from torch import Tensor

from wellcond._core.linalg import matrix_rank
from wellcond.attention.replay import Softmax
from wellcond.jacobian.gram_and_qr import by_qr
from wellcond.jacobian.head import Head
from wellcond.jacobian.head_jacobian import SIDE_BY_SIDE, VERTICAL, operator_of
from wellcond.jacobian.softmax_closed_form import is_identity, pull_back_probe

TWIN_ZERO = 1e-9  # σ ÷ σ_max of a twin below which σ is zero; κ of a twin is far below the inverse of this

Ranks = dict[tuple[object, ...], int]  # structural ranks that heads of one layer share


def structural_rank(head: Head, rows: Tensor, convention: str, ranks: Ranks) -> int:
    """Return the structural rank: by formula, or as the rank of a twin.

    A twin has random weights on well conditioned tokens that span the same space.
    """
    known = known_rank(head, head.sequences * len(rows)) if convention == SIDE_BY_SIDE else None
    if known is not None:
        return known
    twin = head.twin(joint=convention == VERTICAL)
    key = _likeness(twin, rows, convention)
    if key is not None and key in ranks:
        return ranks[key]
    found = by_qr(operator_of(twin, rows, convention), all_values=True)
    assert found.values is not None
    rank = int((found.values > TWIN_ZERO * found.largest).sum())
    if key is not None:
        ranks[key] = rank
    return rank


def _likeness(twin: Head, rows: Tensor, convention: str) -> tuple[object, ...] | None:
    """Key of a twin among those of heads on the same tokens: weights are drawn alike, so it is the mixing.

    The same queries and keys, mapped, with the same slopes along one direction, and the same scale and bias make the
    same Jacobian. None for a mixing that is no softmax, which cannot be asked.
    """
    softmax = twin.mixing
    if type(softmax) is not Softmax:
        return None
    q, k, _ = twin.project()
    parts: list[Tensor] = []
    for f, x in ((softmax.query_map, q), (softmax.key_map, k)):
        out, _, pulled = pull_back_probe(f, x)
        parts += [out, pulled]
    parts += [x for x in (softmax.scale, softmax.bias) if isinstance(x, Tensor)]
    plain = tuple(x for x in (softmax.scale, softmax.softcap) if not isinstance(x, Tensor))
    shapes = tuple((role, tuple(w.shape)) for role, w in twin.weights.items())
    held = tuple((tuple(x.shape), x.contiguous().cpu().numpy().tobytes()) for x in (*parts, *twin.biases.values()))
    return (convention, tuple(rows.tolist()), shapes, plain, *held)


def known_rank(head: Head, rows: int) -> int | None:
    r"""The structural rank of plain self-attention side by side; None where no formula is known.

    $(W_Q M, W_K M^{-T})$ leaves the logits unchanged, and so does a key shift that is constant within each sequence:
    with r the rank of the tokens and e the dimension of such shifts in their span, the rank is
    $\min(Rd_v, 2rd + rd_v - d^2 - de)$. A query bias that the tokens cannot express keeps d of the d² directions from
    being without effect.

    >>> from wellcond.jacobian.head import softmax_head
    >>> x = torch.randn(40, 3, dtype=torch.float64)
    >>> known_rank(softmax_head(x, *torch.randn(3, 3, 2)), 40), 3 * 3 * 2 - 2**2
    (14, 14)
    """
    softmax = head.mixing
    x = head.tokens["value"]
    if type(softmax) is not Softmax or softmax.softcap is not None or any(x is not y for y in head.tokens.values()):
        return None
    if softmax.bias is not None and not float(softmax.bias.abs().max()) < 30:  # a key may be hidden
        return None
    q, k, _ = head.project()
    if not (is_identity(softmax.query_map, q) and is_identity(softmax.key_map, k)):
        return None
    if any(len(sequence.unique(dim=0)) < len(sequence) for sequence in x):  # equal tokens give equal rows of J
        return None
    d, d_v = head.weights["query"].shape[1], head.value_width
    if x.shape[1] <= d:  # too few keys for M and G to have full rank
        return rows * d_v if matrix_rank(x.flatten(0, 1), head.resolution) == x[..., 0].numel() else None
    r, shifts = matrix_rank(x.flatten(0, 1), head.resolution), _shifts(x, head.resolution)
    if r < d or r - shifts < d_v:  # the weights have directions that the tokens do not reach
        return None
    if isinstance(softmax.scale, Tensor) and softmax.scale.ndim and softmax.scale.shape[-1] > 1:
        return None  # a shift of all keys moves each logit of a row by another amount
    bias = head.biases.get("query")
    gauge = d * d - (d if bias is not None and bool(bias.any()) and not shifts else 0)
    return min(rows * d_v, 2 * r * d + r * d_v - gauge - d * shifts)


def _shifts(x: Tensor, eps: float) -> int:
    """Dimension of the vectors in the span of the tokens, `(B, N, D)`, that are constant within each sequence."""
    indicators = torch.eye(len(x), dtype=x.dtype, device=x.device).repeat_interleave(x.shape[1], 0)
    flat = x.flatten(0, 1)
    scaled = flat / flat.abs().max().clamp_min(torch.finfo(x.dtype).tiny)
    return matrix_rank(scaled, eps) + len(x) - matrix_rank(torch.cat([scaled, indicators], 1), eps)
