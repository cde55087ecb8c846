"""Flipped products: the control that separates a product's sign from its spectrum."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from torch import Tensor

from wellcond._core.keyed_random import Draw
from wellcond.init.control_schemes import ProductControl
from wellcond.init.laws import Check, Law, Shape
from wellcond.init.registry import register_scheme


@register_scheme("flipped", citation="ours: a control for every comparison", published="none")
@dataclass(frozen=True)
class Flipped(ProductControl):
    r"""Another scheme's weights with the sign of W_Q W_Kᵀ and of W_V W_O changed, and nothing else.

    $W_K \to -W_K$ and $W_O \to -W_O$; where the scheme leaves one of them alone, $W_Q \to -W_Q$ or $W_V \to -W_V$; a
    product of which it sets neither factor stays. Every other number is the other scheme's, for the same seed to the
    bit, biases included, and each factor keeps its singular values and vectors. For a law that is symmetric about zero,
    such as a Gaussian or a semi-orthogonal matrix, this is another draw of the same law and no control.

    Args:
        of: the other scheme, in any form `init_` takes.

    >>> import torch, wellcond as wc
    >>> model = torch.nn.MultiheadAttention(8, 2)
    >>> _ = wc.init_(model, "flipped", of="centring")                    # W_V W_O was −I/2
    >>> (model.in_proj_weight[16:].T @ model.out_proj.weight.T).diagonal().tolist()[:3]
    [0.5, 0.5, 0.5]
    """

    def changed(self, law: Law, index: int, role: str) -> Law:
        """Return the law of the weights with their sign changed."""
        return FlippedLaw(law, index, role)


@dataclass(frozen=True)
class FlippedLaw(Law):
    """A law with one of its roles times −1: `index` is its place among them, `role` its name."""

    law: Law
    index: int
    role: str

    def sample(self, draw: Draw, roles: tuple[str, ...], shapes: tuple[Shape, ...]) -> tuple[Tensor, ...]:
        """Draw from the other law and change the sign."""
        return self._flip(self.law.sample(draw, roles, shapes))

    def rms(self, role: int, shapes: tuple[Shape, ...]) -> float:
        """Scale by the other law."""
        return self.law.rms(role, shapes)

    def checks(self, weights: tuple[Tensor, ...], eps: float) -> Iterator[Check]:
        """Change the sign back, and ask the other law."""
        return self.law.checks(self._flip(weights), eps)

    def _flip(self, weights: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        return tuple(-weight if index == self.index else weight for index, weight in enumerate(weights))

    def __str__(self) -> str:
        return f"{self.law}, {self.role} flipped"
