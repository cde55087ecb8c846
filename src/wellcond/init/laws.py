"""Laws of a projection's initial weights, in a form that can be drawn, compared in scale, and checked.

A scheme says which law each role gets; `init_` draws from it, `scale_matched` asks for its scale, `audit` checks it.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, partial
from typing import ClassVar

import torch
from torch import Tensor

from wellcond._core.keyed_random import WHOLE_PROJECTION, Draw
from wellcond._core.linalg import condition_numbers, orthonormal_rows
from wellcond.attention.layouts import joined

Shape = tuple[int, int, int]  # (heads, D, d)
SIGMAS = 5  # a correct draw misses a 5-sigma interval once in 1.7 million


@dataclass(frozen=True)
class Check:
    """One measured quantity of one head against what its law says; `head` is −1 for the whole projection.

    `spectral` is whether it depends on WᵀW alone, so that a rotation of the model's side changes nothing.
    """

    role: int  # index into the law's roles
    head: int
    quantity: str
    measured: float
    expected: float
    tolerance: float
    spectral: bool = False

    @property
    def passed(self) -> bool:
        """Whether the measurement is within the tolerance (a NaN is not)."""
        return abs(self.measured - self.expected) <= self.tolerance


class Law(ABC):
    """The joint law of one or more roles of a layer."""

    @abstractmethod
    def sample(self, draw: Draw, roles: tuple[str, ...], shapes: tuple[Shape, ...]) -> tuple[Tensor, ...]:
        """Draw the weights, `(heads, D, d)` per role, in float32 or wider."""

    def rms(self, role: int, shapes: tuple[Shape, ...]) -> float:
        """Root mean square of the entries of one role; measured on one draw unless a law knows better."""
        return measured_rms(self, role, shapes)

    @abstractmethod
    def checks(self, weights: tuple[Tensor, ...], eps: float) -> Iterator[Check]:
        """Compare float64 weights, stored with unit round-off `eps`, with the law."""


@cache  # some laws factorise a matrix per head, and every layer asks
def measured_rms(law: Law, role: int, shapes: tuple[Shape, ...]) -> float:
    """Root mean square of the entries of one role in one draw."""
    names = tuple(map(str, range(len(shapes))))
    return float(law.sample(Draw(0, "scale"), names, shapes)[role].double().square().mean().sqrt())


class RoleLaw(Law):
    """A law of a single role."""

    @abstractmethod
    def draw(self, draw: Draw, role: str, shape: Shape) -> Tensor:
        """Draw `(heads, D, d)`."""

    @abstractmethod
    def scale(self, shape: Shape) -> float:
        """Root mean square of the entries."""

    @abstractmethod
    def check(self, weight: Tensor, eps: float) -> Iterator[Check]:
        """Compare one role's weights with the law."""

    def sample(self, draw: Draw, roles: tuple[str, ...], shapes: tuple[Shape, ...]) -> tuple[Tensor, ...]:
        """Draw the one role."""
        return (self.draw(draw, roles[0], shapes[0]),)

    def rms(self, role: int, shapes: tuple[Shape, ...]) -> float:
        """Scale of the one role."""
        return self.scale(shapes[0])

    def checks(self, weights: tuple[Tensor, ...], eps: float) -> Iterator[Check]:
        """Check the one role."""
        yield from self.check(weights[0], eps)


@dataclass(frozen=True)
class SemiOrthogonal(RoleLaw):
    """Orthonormal columns (rows where d > D) times `gain`, Haar distributed.

    Args:
        gain: all singular values.
        whole: orthonormalise the projection `D × heads·d` rather than each head.
    """

    gain: float = 1.0
    whole: bool = False

    def draw(self, draw: Draw, role: str, shape: Shape) -> Tensor:
        """Orthonormalise Gaussian draws along the shorter side."""
        heads, rows, columns = shape
        if self.whole:
            normal = draw.normal(role, 1, rows, heads * columns, first=WHOLE_PROJECTION)
            return split_heads(self._orthonormal(normal)[0], heads)
        return self._orthonormal(draw.normal(role, heads, rows, columns))

    def _orthonormal(self, normal: Tensor) -> Tensor:
        tall = normal.shape[-2] >= normal.shape[-1]
        result = orthonormal_rows(normal.mT).mT if tall else orthonormal_rows(normal)
        return result if self.gain == 1.0 else result * self.gain

    def scale(self, shape: Shape) -> float:
        """`gain ÷ √max(D, d)`."""
        return abs(self.gain) / math.sqrt(max(self._matrix(shape)))

    def _matrix(self, shape: Shape) -> tuple[int, int]:
        return (shape[1], shape[0] * shape[2]) if self.whole else shape[1:]

    def check(self, weight: Tensor, eps: float) -> Iterator[Check]:
        """|WᵀW ÷ gain² − I| within 8 eps and κ within 80 eps of 1: rounding each entry moves them by about one eps."""
        matrices = joined(weight)[None] if self.whole else weight
        for index, matrix in enumerate(matrices / self.gain):
            gram = matrix.T @ matrix if matrix.shape[0] >= matrix.shape[1] else matrix @ matrix.T
            departure = float((gram - torch.eye(gram.shape[0], dtype=gram.dtype)).abs().max())
            head = WHOLE_PROJECTION if self.whole else index
            yield Check(0, head, "orthogonality error", departure, 0.0, 8 * eps, spectral=True)
            yield Check(0, head, "κ", float(condition_numbers(matrix)), 1.0, 80 * eps, spectral=True)

    def __str__(self) -> str:
        times = "" if self.gain == 1.0 else f" × {self.gain:g}"
        return f"semi-orthogonal{times}" + (" (whole projection)" if self.whole else "")


@dataclass(frozen=True)
class Exactly(RoleLaw):
    """Fixed numbers.

    Args:
        build: makes `(heads, D, d)`; called when the numbers are wanted, as a plan needs only their name.
        label: what they are, in words.
    """

    build: Callable[[], Tensor]
    label: str

    def draw(self, draw: Draw, role: str, shape: Shape) -> Tensor:
        """Make the numbers."""
        return self.build()

    def scale(self, shape: Shape) -> float:
        """Measured."""
        return float(self.build().double().square().mean().sqrt())

    def check(self, weight: Tensor, eps: float) -> Iterator[Check]:
        """Each entry within one rounding of its value."""
        values = self.build().to(weight.dtype)
        largest = float(values.abs().max())
        for head, (got, want) in enumerate(zip(weight, values, strict=True)):
            yield Check(0, head, f"distance to {self.label}", float((got - want).abs().max()), 0.0, eps * largest)

    def __str__(self) -> str:
        return self.label


def zeros(shape: Shape) -> Exactly:
    """All entries zero.

    >>> zeros((1, 2, 3)).build()
    tensor([[[0., 0., 0.],
             [0., 0., 0.]]])
    """
    return Exactly(partial(torch.zeros, shape), "zero")


@dataclass(frozen=True)
class _Random(RoleLaw):
    """Independent entries of mean 0; sub-classes say which distribution."""

    std: float
    note: str = ""

    kurtosis: ClassVar[float] = 3.0  # fourth moment ÷ squared variance, for the standard error of a measured variance

    @property
    def largest(self) -> float:
        """Bound on the entries."""
        return math.inf

    def scale(self, shape: Shape) -> float:
        """The standard deviation."""
        return self.std

    def check(self, weight: Tensor, eps: float) -> Iterator[Check]:
        """Root mean square and mean of each head within five standard errors, and no entry beyond the bound."""
        count = weight[0].numel()
        error = self.std * math.sqrt((self.kurtosis - 1) / (4 * count))
        for head, matrix in enumerate(weight):
            rms, mean = float(matrix.square().mean().sqrt()), float(matrix.mean())
            yield Check(0, head, "std", rms, self.std, SIGMAS * error + eps * self.std, spectral=True)
            yield Check(0, head, "mean", mean, 0.0, SIGMAS * self.std / math.sqrt(count) + eps * self.std)
            if math.isfinite(self.largest):
                excess = max(0.0, float(matrix.abs().max()) - self.largest)
                yield Check(0, head, "beyond the bound", excess, 0.0, eps * self.largest)

    def _text(self, distribution: str) -> str:
        return distribution + (f" ({self.note})" if self.note else "")


@dataclass(frozen=True)
class Normal(_Random):
    """`N(0, std²)`."""

    def draw(self, draw: Draw, role: str, shape: Shape) -> Tensor:
        """Scale standard normal draws."""
        return draw.normal(role, *shape) * self.std

    def __str__(self) -> str:
        return self._text(f"N(0, {self.std:.4g}²)")


@dataclass(frozen=True)
class Uniform(_Random):
    """`U(−bound, bound)` with `bound = √3 · std`."""

    kurtosis = 1.8

    @property
    def largest(self) -> float:
        """√3 std."""
        return math.sqrt(3) * self.std

    def draw(self, draw: Draw, role: str, shape: Shape) -> Tensor:
        """Scale uniform draws."""
        return draw.uniform(role, *shape) * self.largest

    def __str__(self) -> str:
        return self._text(f"U(±{self.largest:.4g})")


@dataclass(frozen=True)
class TruncatedNormal(_Random):
    """`N(0, parent²)` cut at ±`cut`; `std` is the standard deviation after the cut, see `truncated`."""

    parent: float = 1.0
    cut: float = 2.0

    @property
    def largest(self) -> float:
        """The cut."""
        return self.cut

    def draw(self, draw: Draw, role: str, shape: Shape) -> Tensor:
        """Inverse-transform draws."""
        return draw.truncated(role, *shape, std=self.parent, cut=self.cut)

    def __str__(self) -> str:
        return self._text(f"TN(0, {self.parent:.4g}²) cut at ±{self.cut:g}")


def truncated(std: float, cut: float) -> TruncatedNormal:
    """`N(0, std²)` cut at ±cut, with the variance that is left: `std² (1 − 2aφ(a) ÷ (2Φ(a) − 1))`, `a = cut ÷ std`.

    >>> round(truncated(1.0, 2.0).std, 4)
    0.8796
    """
    a = cut / std
    density = math.exp(-a * a / 2) / math.sqrt(2 * math.pi)
    left = 1 - 2 * a * density / math.erf(a / math.sqrt(2))
    return TruncatedNormal(std * math.sqrt(left), parent=std, cut=cut)


def split_heads(matrix: Tensor, heads: int) -> Tensor:
    """Undo `joined`: `(D, heads·d)` to `(heads, D, d)`."""
    return matrix.reshape(len(matrix), heads, -1).transpose(0, 1)
