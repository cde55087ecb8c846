r"""The orthogonal factor U Vᵀ of an update G = U S Vᵀ, by Newton–Schulz steps as Muon takes them, or exactly.

A step is X ← a X + b (X Xᵀ) X + c (X Xᵀ)² X, an odd polynomial of the singular values, from X = G/‖G‖_F.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain, islice, repeat
from typing import Final

import torch
from torch import Tensor

from wellcond._core.polar import polar_rows

Coefficients = tuple[float, float, float]

JORDAN: Final[Coefficients] = (3.4445, -4.7750, 2.0315)
"""Keller Jordan's, and torch's: steep at zero; singular values end between 0.7 and 1.2."""

_AMSEL = (
    (8.28721201814563, -23.595886519098837, 17.300387312530933),
    (4.107059111542203, -2.9478499167379106, 0.5448431082926601),
    (3.9486908534822946, -2.908902115962949, 0.5518191394370137),
    (3.3184196573706015, -2.488488024314874, 0.51004894012372),
    (2.300652019954817, -1.6689039845747493, 0.4188073119525673),
    (1.891301407787398, -1.2679958271945868, 0.37680408948524835),
    (1.8750014808534479, -1.2500016453999487, 0.3750001645474248),
)
POLAR_EXPRESS: Final[tuple[Coefficients, ...]] = (
    *((a / 1.01, b / 1.01**3, c / 1.01**5) for a, b, c in _AMSEL),  # with the paper's margin for bfloat16
    (1.875, -1.25, 0.375),
)
"""The best polynomial for each step in turn, then the last again (Amsel et al., *The Polar Express*, 2505.16932)."""


def newton_schulz(
    updates: Tensor,
    coefficients: Coefficients | Sequence[Coefficients] = JORDAN,
    steps: int = 5,
    eps: float = 1e-7,
    dtype: torch.dtype = torch.bfloat16,
) -> Tensor:
    """Orthogonalise a matrix, or each of `(count, m, n)`, nearly; a zero matrix stays zero.

    The operations are those of `torch.optim.Muon`, in its order, so that a matrix comes out with the same bits.

    >>> x = torch.randn(2, 4, 9, generator=torch.Generator().manual_seed(0))
    >>> s = torch.linalg.svdvals(newton_schulz(x).float())
    >>> bool((s > 0.6).all()), bool((s < 1.3).all())
    (True, True)
    """
    x = updates.to(dtype)
    tall = updates.shape[-2] > updates.shape[-1]
    x = x.mT if tall else x
    size = x.norm() if x.ndim == 2 else torch.linalg.vector_norm(x, dim=(1, 2), keepdim=True)
    x = x / size.clamp(min=eps)
    add = torch.addmm if x.ndim == 2 else torch.baddbmm
    for a, b, c in islice(_each_step(coefficients), steps):
        gram = x @ x.mT
        x = add(x, add(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x.mT if tall else x


def _each_step(coefficients: Coefficients | Sequence[Coefficients]) -> chain[Coefficients]:
    several = [coefficients] if isinstance(coefficients[0], (int, float)) else coefficients
    return chain(several, repeat(several[-1]))  # type: ignore[arg-type]


def polar_factor(updates: Tensor) -> Tensor:
    """U Vᵀ of a matrix, or of each of `(count, m, n)`, to rounding; directions without any update have none.

    >>> x = torch.diag(torch.tensor([3.0, 0.5, 0.0]))
    >>> polar_factor(x).diagonal()
    tensor([1., 1., 0.])
    """
    several = updates if updates.ndim == 3 else updates[None]
    several = several if several.dtype == torch.float64 else several.float()
    tall = several.shape[1] > several.shape[2]
    factor, _ = polar_rows(several.mT if tall else several, complete=False)
    factor = factor.mT if tall else factor
    return factor if updates.ndim == 3 else factor[0]
