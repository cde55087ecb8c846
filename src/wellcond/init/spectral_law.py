"""The law of a Gaussian draw scaled to a given spectral norm."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from torch import Tensor

from wellcond._core.keyed_random import WHOLE_PROJECTION, Draw
from wellcond._core.linalg import spectral_norms
from wellcond.attention.layouts import joined
from wellcond.init.laws import SIGMAS, Check, RoleLaw, Shape, measured_rms


@dataclass(frozen=True)
class GaussianOfNorm(RoleLaw):
    """Independent normal entries, divided by their spectral norm and multiplied by `norm`.

    Args:
        norm: σ_max.
        whole: of the projection `D × heads·d` rather than of each head.
    """

    norm: float
    whole: bool = False

    def draw(self, draw: Draw, role: str, shape: Shape) -> Tensor:
        """Scale standard normal draws."""
        normal = draw.normal(role, *shape)
        factor = self.norm / self._norms(normal)
        return (normal.double() * factor[:, None, None]).to(normal.dtype)

    def _norms(self, weight: Tensor) -> Tensor:
        """σ_max of each matrix: one, or one per head."""
        return spectral_norms(joined(weight)[None] if self.whole else weight)

    def scale(self, shape: Shape) -> float:
        """Measured on one draw: the norm of a Gaussian matrix has no closed form."""
        return measured_rms(self, 0, (shape,))

    def check(self, weight: Tensor, eps: float) -> Iterator[Check]:
        """σ_max to rounding, and the mean within five standard errors.

        Rounding moves an entry by eps ÷ 2 of itself, and so the norm by at most eps ÷ 2 of the Frobenius norm.
        """
        for index, norm in enumerate(self._norms(weight).tolist()):
            head = WHOLE_PROJECTION if self.whole else index
            matrix = weight if self.whole else weight[index]
            frobenius, count = float(matrix.norm()), matrix.numel()
            yield Check(0, head, "σ_max", norm, self.norm, eps * frobenius)
            # The standard error of a mean: a standard deviation, ‖W‖ ÷ √count, over √count.
            yield Check(0, head, "mean", float(matrix.mean()), 0.0, SIGMAS * frobenius / count)

    def __str__(self) -> str:
        return f"Gaussian of σ_max = {self.norm:.4g}" + (" (whole projection)" if self.whole else "")
