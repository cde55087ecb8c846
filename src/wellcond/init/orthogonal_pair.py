"""Values and outputs from semi-orthogonal factors: summed over heads, W_V W_O is a multiple of I, or of a rotation."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from wellcond._core.keyed_random import WHOLE_PROJECTION, Draw
from wellcond._core.linalg import one_thread
from wellcond.attention.layouts import joined
from wellcond.attention.view import AttentionLayer
from wellcond.init.laws import Check, Law, SemiOrthogonal, Shape
from wellcond.init.scheme import missing_roles

Structure = Literal["identity", "rotation"]


def orthogonal_pair_refusal(layer: AttentionLayer) -> str | None:
    """Return why a layer's values and outputs are not factors of one square product, or None."""
    if layer.value is None or layer.output is None:
        return missing_roles(layer, "value", "output")
    (groups, width, d), (heads, out_width, out_d) = layer.value.shape, layer.output.shape
    if heads % groups:
        return f"{heads} output heads cannot share {groups} value heads evenly"
    if (width, d) != (out_width, out_d):
        return f"the value is {width} × {groups}·{d}, the output {out_width} × {heads}·{out_d}: no square product"
    return None


@dataclass(frozen=True)
class OrthogonalPair(Law):
    r"""W_V = a U and W_O^h = (b ÷ m) U_gᵀ for the m query heads of group g; or, for a rotation R, (b ÷ m) (R U)_gᵀ.

    U is D × G·d and semi-orthogonal, so that the sum over heads is $a b\,U U^\top$: a b times the identity where
    G·d ≥ D, else times a projection on G·d dimensions; or $a b\,U U^\top R^\top$, with the same singular values.

    Args:
        value: a, the singular values of the value map.
        output: b, the singular values of the outputs summed over each group.
        structure: `"identity"` or `"rotation"`.
    """

    value: float
    output: float
    structure: Structure = "identity"

    def sample(self, draw: Draw, roles: tuple[str, ...], shapes: tuple[Shape, ...]) -> tuple[Tensor, ...]:
        """Draw U for the value, and R for the output; the heads of a group share their part."""
        factor = SemiOrthogonal(whole=True)
        u = factor.draw(draw, roles[0], shapes[0])
        v = u
        if self.structure == "rotation":
            width = shapes[0][1]
            with one_thread():
                v = factor.draw(draw, roles[1], (1, width, width)) @ u
        shared = shapes[1][0] // shapes[0][0]
        return u * self.value, v.repeat_interleave(shared, dim=0) * (self.output / shared)

    def rms(self, role: int, shapes: tuple[Shape, ...]) -> float:
        """That of a semi-orthogonal matrix, times its factor."""
        factor = self.value if role == 0 else self.output * shapes[0][0] / shapes[1][0]
        return SemiOrthogonal(factor, whole=True).scale(shapes[0])

    def checks(self, weights: tuple[Tensor, ...], eps: float) -> Iterator[Check]:
        """U is semi-orthogonal, the output has its Gram matrix (and is U itself), and heads of a group are alike."""
        shared = len(weights[1]) // len(weights[0])
        u, v = weights[0] / self.value, weights[1] * (shared / self.output)
        yield from SemiOrthogonal(whole=True).check(u, eps)
        grams = [joined(factor).T @ joined(factor) for factor in (u, v[::shared])]
        departure = float((grams[1] - grams[0]).abs().max())
        yield Check(1, WHOLE_PROJECTION, "distance of the Gram matrices of V and O", departure, 0.0, 8 * eps)
        groups = u if self.structure == "identity" else v[::shared]
        for head, matrix in enumerate(v):
            distance = float((matrix - groups[head // shared]).abs().max())
            # Entries are at most 1, and both sides of the difference are rounded.
            yield Check(1, head, "distance to the group's factor", distance, 0.0, 2 * eps)

    def __str__(self) -> str:
        return f"V O = {self.value * self.output:g} × {self.structure}, semi-orthogonal factors"
