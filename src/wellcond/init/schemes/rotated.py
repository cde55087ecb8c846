"""Rotated products: the control that separates a product's spectrum from its singular vectors."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from wellcond._core.keyed_random import WHOLE_PROJECTION, Draw
from wellcond._core.linalg import one_thread, orthonormal_rows
from wellcond.attention.layouts import joined
from wellcond.init.control_schemes import ProductControl
from wellcond.init.laws import Check, Exactly, Law, Shape
from wellcond.init.registry import register_scheme


@register_scheme("rotated", citation="ours: a control for every comparison", published="none")
@dataclass(frozen=True)
class Rotated(ProductControl):
    r"""Another scheme's weights with W_Q W_Kᵀ and W_V W_O rotated at random: the same spectra, other singular vectors.

    For each layer an orthogonal $R$ and an orthogonal $R'$, Haar distributed, act on the model's side, the same for all
    heads: $W_O \to W_O R$ and $W_K \to R' W_K$; where the scheme leaves one of them alone, $W_V \to R W_V$ or
    $W_Q \to R' W_Q$; a product of which it sets neither factor stays.

    Kept, to rounding: the singular values of every factor and of every head's product, of the heads side by side and of
    the sum of their products, so κ, rank and Frobenius norm too. Kept to the bit, for the same seed: every factor that
    is not rotated, and what the scheme sets elsewhere. Lost: how the two sides of a product lie to each other, and with
    it trace, eigenvalues, symmetry and anything like ±I; and how the rotated factor lies to the coordinates.

    For a law that no rotation changes, such as a Gaussian or a semi-orthogonal matrix, this is another draw of the same
    law and no control.

    Args:
        of: the other scheme, in any form `init_` takes.

    >>> import torch, wellcond as wc
    >>> model = torch.nn.MultiheadAttention(64, 2)
    >>> _ = wc.init_(model, "rotated", of="centring")                    # W_V W_O was −I/2
    >>> product = model.in_proj_weight[128:].T @ model.out_proj.weight.T
    >>> bool((torch.linalg.svdvals(product) - 0.5).abs().max() < 1e-6), bool(product.trace().abs() < 5 * 0.5)
    (True, True)
    """

    def changed(self, law: Law, index: int, role: str) -> Law:
        """Return the law of the weights after the rotation."""
        return RotatedLaw(law, index, role)


@dataclass(frozen=True)
class RotatedLaw(Law):
    """A law with the model's side of one of its roles rotated: `index` is its place among them, `role` its name."""

    law: Law
    index: int
    role: str

    def sample(self, draw: Draw, roles: tuple[str, ...], shapes: tuple[Shape, ...]) -> tuple[Tensor, ...]:
        """Draw from the other law, and rotate all heads of one role alike."""
        weights = list(self.law.sample(draw, roles, shapes))
        size = shapes[self.index][1]
        rotation = orthonormal_rows(draw.normal(f"rotation of {self.role}", 1, size, size, first=WHOLE_PROJECTION))
        with one_thread():
            weights[self.index] = (rotation.double() @ weights[self.index].double()).to(torch.float32)
        return tuple(weights)

    def rms(self, role: int, shapes: tuple[Shape, ...]) -> float:
        """Scale by the other law, as a rotation changes no norm."""
        return self.law.rms(role, shapes)

    def checks(self, weights: tuple[Tensor, ...], eps: float) -> Iterator[Check]:
        """Ask the other law for what depends on WᵀW alone; of fixed numbers compare WᵀW."""
        if not isinstance(self.law, Exactly):
            yield from (check for check in self.law.checks(weights, eps) if check.spectral)
            return
        found, wanted = joined(weights[0]), joined(self.law.build().to(weights[0].dtype))
        distance = found.mT @ found - wanted.mT @ wanted
        largest = float((wanted.mT @ wanted).diagonal().max())
        # Rounding each entry moves WᵀW by about one eps, as for semi-orthogonal weights.
        name = f"distance to WᵀW of {self.law}"
        yield Check(0, WHOLE_PROJECTION, name, float(distance.abs().max()), 0.0, 8 * eps * largest)

    def __str__(self) -> str:
        return f"{self.law}, {self.role} rotated"
