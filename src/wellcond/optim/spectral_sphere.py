"""Weights kept on a spectral sphere, ‖W‖₂ = c √(rows/columns), as MuonSphere keeps them after each step."""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import Tensor

from wellcond._core.linalg import wide
from wellcond._core.polar import largest_eigenvalue


def retract_(matrices: Iterable[Tensor], radius: float) -> None:
    """Scale each matrix, or each of `(count, m, n)`, to ‖W‖₂ = radius · √(m/n), in place; zero stays zero.

    The retraction of *Controlled LLM Training on Spectral Sphere* (2601.08393). Matrices of one shape are measured
    together.

    >>> w = torch.diag(torch.tensor([3.0, 0.5]))
    >>> retract_([w], 2.0)
    >>> w.diagonal().tolist()[0]
    2.0
    """
    alike: dict[tuple[int, ...], list[Tensor]] = {}
    for matrix in matrices:
        for one in matrix if matrix.ndim == 3 else [matrix]:
            alike.setdefault(tuple(one.shape), []).append(one)
    for (rows, columns), members in alike.items():
        stacked = wide(torch.stack(members))
        gram = stacked @ stacked.mT if rows <= columns else stacked.mT @ stacked
        norms = largest_eigenvalue(gram).sqrt()
        factors = (radius * math.sqrt(rows / columns) / norms).nan_to_num(posinf=1.0)
        for member, factor in zip(members, factors, strict=True):
            member.mul_(factor.to(member.dtype))
