"""How many singular values can be other than zero, whatever the weights: the structural rank."""

from __future__ import annotations

import torch
from torch import Tensor

from wellcond.attention.replay import Softmax
from wellcond.jacobian.closed import is_identity
from wellcond.jacobian.head import Head
from wellcond.linalg import matrix_rank


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
