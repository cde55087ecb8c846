"""Discrete-cosine initialisation (arXiv 2405.13901)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import Literal

import torch
from torch import Tensor

from wellcond.attention.roles import QKV
from wellcond.attention.view import AttentionLayer
from wellcond.init.laws import Exactly, Shape, split_heads
from wellcond.init.registry import register_scheme
from wellcond.init.scheme import Laws, Scheme, missing_roles


@register_scheme(
    "dct",
    citation="DCT-based decorrelated attention, arXiv 2405.13901",
    published="the D × D weight of Q, K or V, alone or in pairs, unscaled; K for ViT-B/32",
)
@dataclass(frozen=True)
class DCT(Scheme):
    r"""The orthonormal DCT-II matrix as the weight of whole projections; head i owns frequencies i·d…(i+1)·d−1.

    $C_{kj} = c_k \cos(\pi (2j+1) k / 2D)$ with $c_0 = \sqrt{1/D}$, else $\sqrt{2/D}$; q = C x.

    Args:
        roles: which of q, k, v.
    """

    roles: Literal["q", "k", "v", "qk", "qv", "kv", "qkv"] = "k"

    def applies(self, layer: AttentionLayer) -> str | None:
        """Needs the roles, and each of them square."""
        for role in QKV:
            if role[0] not in self.roles:
                continue
            projection = getattr(layer, role)
            if projection is None:
                return missing_roles(layer, role)
            heads, width, d = projection.shape
            if heads * d != width:
                return f"a DCT matrix is square, but the {role} is {width} × {heads}·{d}"
        return None

    def laws(self, layer: AttentionLayer) -> Laws:
        """One fixed matrix per role."""
        return {
            (role,): Exactly(partial(_dct_heads, projection.shape), "DCT matrix")
            for role, projection in layer.projections(*QKV)
            if role[0] in self.roles
        }


def _dct_heads(shape: Shape) -> Tensor:
    return split_heads(dct_matrix(shape[1]).T, shape[0])


def dct_matrix(size: int) -> Tensor:
    """Orthonormal DCT-II, rows are frequencies, float64.

    >>> c = dct_matrix(8)
    >>> torch.allclose(c @ c.T, torch.eye(8, dtype=torch.float64))
    True
    """
    k = torch.arange(size, dtype=torch.float64)[:, None]
    j = torch.arange(size, dtype=torch.float64)
    rows = torch.cos(math.pi * (2 * j + 1) * k / (2 * size)) * math.sqrt(2 / size)
    rows[0] /= math.sqrt(2)
    return rows
