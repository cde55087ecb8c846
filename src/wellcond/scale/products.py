r"""The products W_Q W_Kᵀ and W_V W_O of a head, which coordinates of the head do not change: spectra and trace.

A product of two D × d factors has the singular values of R_1 R_2ᵀ, R the d × d triangles of the factors: no D × D
matrix is made.
"""

from __future__ import annotations

from torch import Tensor

from wellcond._core.linalg import svdvals, triangular_factor, wide
from wellcond.attention.view import AttentionLayer

PAIRS = {"qk": ("query", "key"), "vo": ("value", "output")}  # the two products of a head


def pair_weights(layer: AttentionLayer, pair: str) -> tuple[Tensor, Tensor] | None:
    """Both factors per query head, `(H, D, d)` in float64, shared ones repeated; None where the layer lacks one."""
    first, second = (getattr(layer, role) for role in PAIRS[pair])
    if first is None or second is None or first.width != second.width:
        return None
    heads = max(first.heads, second.heads, layer.num_heads)
    weights = [wide(p.read()).repeat_interleave(heads // p.heads, 0) for p in (first, second)]
    return weights[0], weights[1]


def product_singular_values(first: Tensor, second: Tensor) -> Tensor:
    """Singular values of `first @ second.mT`, largest first: `(H, D_1, d)` and `(H, D_2, d)` to `(H, r)`.

    >>> import torch
    >>> a, b = torch.randn(2, 3, 9, 4, dtype=torch.float64)
    >>> torch.allclose(product_singular_values(a, b), torch.linalg.svdvals(a @ b.mT)[:, :4])
    True
    """
    small = [triangular_factor(w) if w.shape[1] > w.shape[2] else w for w in (first, second)]
    return svdvals(small[0] @ small[1].mT)


def value_output_trace(layer: AttentionLayer) -> float | None:
    """τ = tr(W_V W_O) ÷ D, summed over heads: how much of its own token the branch adds; None where it has no sense."""
    weights = pair_weights(layer, "vo")
    if weights is None or weights[0].shape[1] != weights[1].shape[1]:
        return None
    return float((weights[0] * weights[1]).sum()) / weights[0].shape[1]
