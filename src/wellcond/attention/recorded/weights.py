"""Tensors of a pass that are parameters, re-arranged or rescaled, and which element of which parameter each holds."""

from __future__ import annotations

import torch
from torch import Tensor

from wellcond.attention.recorded import operators as ops
from wellcond.attention.recorded.operators import NONE, has_elements
from wellcond.attention.recorded.tape import PRODUCTS, Step, Tape


class Weights:
    """The tensors of a pass that are made of parameters alone: re-arranged, rescaled or computed otherwise.

    >>> from wellcond.attention.recorded.tape import recording
    >>> model = torch.nn.Linear(2, 3)
    >>> with recording(model) as tape:
    ...     transposed = model.weight.T
    >>> weights = Weights(tape)
    >>> weights.follow(tape.steps[0])
    True
    >>> weights.elements(transposed)
    tensor([[0, 2, 4],
            [1, 3, 5]])
    """

    def __init__(self, tape: Tape) -> None:
        self.tape = tape
        self._made: dict[int, Step | None] = dict.fromkeys(tape.parameters)

    def __contains__(self, tensor: Tensor) -> bool:
        """Return whether a tensor is a parameter, or a re-arranged or rescaled one."""
        return id(tensor) in self._made

    def follow(self, step: Step) -> bool:
        """Take note of a step that re-arranges or computes something of parameters alone; return whether it does.

        Rows that are looked up are tokens, and products of two parameters may be: learned queries and their projection.
        """
        if step.name in ops.LOOKED_UP | {"embedding", *PRODUCTS} or not any(x in self for x in step.operands):
            return False
        for result in step.results:
            self._made.setdefault(id(result), step)
        return True

    def elements(self, weight: Tensor) -> Tensor:
        """Return which element of which parameter each element is, by `Tape.first`; −1 where it is none."""
        if weight not in self:
            return torch.full(weight.shape, NONE)
        step = self._made[id(weight)]
        if step is None:
            first = self.tape.first[id(weight)]
            return torch.arange(first, first + weight.numel()).reshape(weight.shape)
        if not (ops.is_rearrangement(step) or ops.is_pointwise(step) or step.name in ops.KEPT):
            return torch.full(weight.shape, NONE)
        if not ops.is_rearrangement(step):
            parents = [x for x in step.operands if x in self]
            return self.elements(max(parents, key=Tensor.numel)).expand(weight.shape)
        parts = ops.rearranged(step, lambda x: self.elements(x) if has_elements(x) else x)
        return next(part for result, part in zip(step.results, parts, strict=True) if result is weight)

    def is_stored(self, weight: Tensor) -> bool:
        """Return whether a tensor has the numbers of parameters as they are stored, up to their precision."""
        step = self._made.get(id(weight)) if weight in self else None
        if step is None:
            return weight in self
        parents = [x for x in step.operands if has_elements(x)]
        same = ops.is_rearrangement(step) or step.name in ops.CASTS
        kept = same or torch.equal(weight, max(parents, key=Tensor.numel))  # as a mask of ones keeps them
        return kept and all(self.is_stored(x) for x in parents if x in self)
