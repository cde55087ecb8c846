r"""Bring the condition number of matrices down to a limit, at the same norm and with the same singular vectors.

W ← c ((1 − ε) W + ε s̄ P), P the polar factor of W and s̄ = ‖W‖_F/√d: each singular value moves towards their root mean
square. (1 − ε) σ_1 + ε s̄ = κ* ((1 − ε) σ_d + ε s̄) gives ε in closed form, and c the norm back.
"""

from __future__ import annotations

import torch
from torch import Tensor

from wellcond._core.linalg import svd


def limit_condition(weights: Tensor, limit: float) -> Tensor:
    """Return `(heads, D, d)` with κ = limit where κ is above it; the others come out to rounding.

    A head without full rank gets it: its missing directions are completed.

    >>> w = torch.randn(2, 9, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    >>> w[0, :, 0] *= 1e-3
    >>> s = torch.linalg.svdvals(limit_condition(w, 3.0))
    >>> (s[:, 0] / s[:, -1]).round(decimals=9).tolist()[0], torch.allclose(s.norm(dim=1), w.flatten(1).norm(dim=1))
    (3.0, True)
    """
    u, s, vt = svd(weights)
    mean = s.square().mean(1, keepdim=True).sqrt()
    excess = (s[:, :1] - limit * s[:, -1:]) / (mean * (limit - 1)).clamp_min(torch.finfo(s.dtype).tiny)
    share = (excess / (1 + excess)).clamp_min(0.0)
    moved = (1 - share) * s + share * mean
    moved = moved * (mean / moved.square().mean(1, keepdim=True).sqrt().clamp_min(torch.finfo(s.dtype).tiny))
    return (u * moved[:, None, :]) @ vt
