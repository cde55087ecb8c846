"""Marks that the oracle leaves on tensors, to follow them from one call of torch to the next."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from tests.census.sites import Product, Site


@dataclass
class Marks:
    """What is known of one tensor.

    Attributes:
        depends: on the input of the model.
        mapped: the result of a linear map, as queries made from learned tokens are without depending on the input.
        products: products of two activations that it is made of, entry by entry.
        sites: softmaxes whose probabilities it holds.
        times: softmaxes whose probabilities were multiplied with something, to be summed.
        exponential: the argument of the exponential that it holds, and the marks of that.
    """

    depends: bool = False
    mapped: bool = False
    products: tuple[Product, ...] = ()
    sites: tuple[Site, ...] = ()
    times: tuple[Site, ...] = ()
    exponential: Tensor | None = None


def marks(tensor: Tensor) -> Marks:
    return getattr(tensor, "_census_marks", None) or Marks()


def mark(tensor: Tensor, new: Marks) -> None:
    if not isinstance(tensor, nn.Parameter):  # a mark would outlive the pass
        tensor._census_marks = new  # type: ignore[attr-defined]


def tensors_in(value: Any) -> Iterator[Tensor]:
    """Yield the tensors in nested arguments, in order."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, dict):
        for inner in value.values():
            yield from tensors_in(inner)
    elif isinstance(value, (list, tuple)):
        for inner in value:
            yield from tensors_in(inner)
