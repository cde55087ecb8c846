"""What an element of a pass can come from: a linear map, a product of activations, or a mixture of values."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from wellcond.attention.recorded.tape import Step


@dataclass(frozen=True, eq=False)
class Source:
    """A result whose elements are numbered from `first` on, in the order of its shape.

    Args:
        kind: `"linear"` (a map by a parameter), `"scores"` (a product of activations), `"mixture"` (a product with
            normalised scores).
        step: what made it.
        first: number of its first element.
        left, right: the factors.
        origins: of the factors, as they were then.
    """

    kind: str
    step: Step
    first: int
    left: Tensor
    right: Tensor
    origins: tuple[Origin | None, Origin | None]

    @property
    def result(self) -> Tensor:
        """The tensor whose elements are numbered."""
        result: Tensor = self.step.result
        return result

    @property
    def area(self) -> int:
        """Number of elements of one matrix of a batch of products."""
        return self.result.shape[-2:].numel()


@dataclass(frozen=True, eq=False)
class Origin:
    """Numbers of the elements that a tensor's elements come from, negative where there is none.

    Args:
        source: of the first element that has one.
        first, second: of the tensor's shape; the second where an element is made of two.
        over: the axis of the scores, 1 or 2, over which they were normalised; 0 if they were not.
        softmax: the step that normalised.
        exponential: whether they are exponentials of scores.
        total: the axis of the scores, 1 or 2, over which exponentials were summed to this; 0 if it is no such sum.
        gate: whether a function was applied that makes gates.
        added: other sources of the same kind in a sum.
        plus: whether other activations went in, added or as a norm of all elements.
        spread: whether elements of other tokens went into each, as by pooling.
    """

    source: Source | None
    first: Tensor
    second: Tensor | None = None
    over: int = 0
    softmax: Step | None = None
    exponential: bool = False
    total: int = 0
    gate: bool = False
    added: tuple[Source, ...] = ()
    plus: bool = False
    spread: bool = False
