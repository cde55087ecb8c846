"""Follow every element of a pass back to the linear map, product or mixture that made it.

Results of linear maps and products number their elements. What re-arranges a tensor re-arranges the numbers, by the
same operation; what works element by element keeps them. A rotary embedding adds two columns of one map, so an element
has up to two origins.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from wellcond.attention.recorded import operators as ops
from wellcond.attention.recorded.biases import find_biases
from wellcond.attention.recorded.operators import has_elements
from wellcond.attention.recorded.pointwise import nothing, pointwise
from wellcond.attention.recorded.rearrangements import rearranged
from wellcond.attention.recorded.reductions import mixes_heads, normalised, reduced
from wellcond.attention.recorded.sources import Origin, Source
from wellcond.attention.recorded.tape import PRODUCTS, Step, Tape, memory
from wellcond.attention.recorded.weights import Weights
from wellcond.attention.recorded.written_out import factors, is_outer


class Origins:
    """Origins of all tensors of a tape.

    Attributes:
        sources: the results whose elements are numbered, in order.
        starts: the number of the first element of each.
        weights: which tensors are parameters.
        quotients: the step that divides a product of activations by another activation.
        unfollowed: steps that could not be applied to numbers, with the error.

    >>> from wellcond.attention.recorded.tape import recording
    >>> model = torch.nn.Linear(2, 3)
    >>> with torch.no_grad(), recording(model) as tape:
    ...     y = model(torch.ones(4, 2)).T
    >>> Origins(tape).of(y).first[:, 0]                         # the three outputs of the first token
    tensor([0, 1, 2])
    """

    def __init__(self, tape: Tape) -> None:
        self.tape, self.weights = tape, Weights(tape)
        self.sources: list[Source] = []
        self.quotients: dict[Source, Step] = {}
        self.unfollowed: list[tuple[Step, str]] = []
        self._starts: list[int] = []
        self._size = 0
        self._of: dict[int, tuple[Tensor, Origin]] = {}
        given = tape.inputs()
        self._moving = set(given)
        self._moving_memory: set[int] = set()
        self._outer: dict[int, tuple[Step, tuple[Origin | None, ...]]] = {}
        written = {memory(step.written) for step in tape.steps if step.written is not None}
        for x in (*given.values(), *(buffer for _, buffer in tape.buffers.values())):
            if memory(x) in written and has_elements(x):  # a cache, with room for the elements that are written there
                self._of[id(x)] = x, Origin(None, torch.full(x.shape, ops.NONE))
        for step in tape.steps:
            self._follow(step)
        self.starts = torch.tensor(self._starts)
        self._biases = find_biases(tape, self.sources, self.weights)

    def of(self, tensor: Tensor) -> Origin | None:
        """Return where a tensor's elements come from, None if from nothing that is numbered."""
        _, origin = self._of.get(id(tensor), (None, None))
        if origin is None or origin.source is not None or origin.over:
            return origin
        if not any(origin.first.stride()):  # one number for all elements
            return origin
        known = origin.first[origin.first >= 0]
        if not known.numel():
            return origin
        source = self.sources[bisect_right(self._starts, int(known[0])) - 1]  # written into it since it was made
        return replace(origin, source=source)

    def moving(self, tensor: Tensor) -> bool:
        """Return whether a tensor depends on what the pass was given."""
        return id(tensor) in self._moving or (bool(self._moving_memory) and memory(tensor) in self._moving_memory)

    def is_weight(self, tensor: Tensor) -> bool:
        """Return whether a tensor is a parameter, or a re-arranged or rescaled one."""
        return tensor in self.weights

    def bias(self, step: Step) -> Tensor | None:
        """Return the vector that a linear map adds, if it is made of parameters."""
        own = {"addmm": 0, "convolution": 2}.get(step.name)
        vector = self._biases[step][1] if step in self._biases else None if own is None else step.args[own]
        return vector if isinstance(vector, Tensor) and self.is_weight(vector) else None

    def result(self, source: Source) -> Tensor:
        """Return the numbered result of a source, with its bias; it may have been written into since."""
        return self._biases[source.step][0] if source.step in self._biases else source.result

    def _follow(self, step: Step) -> None:
        written = step.written
        moving = any(self.moving(x) for x in step.operands)
        if moving:
            self._moving |= {id(x) for x in step.results}
            if written is not None:
                self._moving_memory.add(memory(written))
        elif not any(id(x) in self._of for x in step.operands) and self.weights.follow(step):
            return
        if step.name in PRODUCTS:
            self._multiply(step)
        elif step.name in ops.CREATED:
            self._set(step, [Origin(None, torch.full(x.shape, ops.NONE)) for x in step.results])
        elif step.name in ops.SOFTMAX and (moving or id(step.operands[0]) in self._of):
            self._set(step, [normalised(step, self.of(step.operands[0]))])
        elif id(step.operands[0] if step.operands else None) in self._outer and self._sum_of_products(step):
            return
        elif any(id(x) in self._of for x in step.operands):
            if is_outer(step):
                self._outer[id(step.results[0])] = step, tuple(self.of(x) for x in step.operands)
            if written is not None and ops.is_rearrangement(step):
                self._own_numbers(written)
            try:
                self._set(step, self._results(step))
            except RuntimeError as error:  # an operator that takes no integers: what it made comes from nothing
                self._set(step, [None] * len(step.results))
                self.unfollowed.append((step, str(error)))

    def _set(self, step: Step, origins: Sequence[Origin | None]) -> None:
        for result, origin in zip(step.results, origins, strict=False):
            if origin is not None and has_elements(result):
                self._of[id(result)] = result, origin
            else:
                self._of.pop(id(result), None)

    def _own_numbers(self, written: Tensor) -> None:
        """Before a tensor is written into: no tensor with memory of its own may share its numbers."""
        if id(written) not in self._of:
            return
        shared, own = memory(self._of[id(written)][1].first), memory(written)
        for key, (x, origin) in self._of.items():
            if memory(origin.first) == shared and (memory(x) != own or 0 in origin.first.stride()):
                self._of[key] = x, replace(origin, first=origin.first.contiguous().clone())

    def _multiply(self, step: Step) -> None:
        left, right = (step.args[place] for place in PRODUCTS[step.name])
        origins = self.of(left), self.of(right)
        weight = self.is_weight(left), self.is_weight(right)
        if step.name == "convolution" and origins[0] is not None and step.args[8] == right.shape[0] == left.shape[1]:
            moved = ops.resized(origins[0].first, step.result.shape)  # each channel by itself
            self._set(step, [replace(origins[0], first=moved, second=None, spread=True)])
            return
        if any(weight):
            given, axis = (origins[0], 1 if step.name == "convolution" else -1) if weight[1] else (origins[1], -2)
            if given is not None and mixes_heads(given, axis) and given.first.shape == step.result.shape:
                self._set(step, [given])
                return
        if any(weight) and not self._is_affine(step):
            self._set(step, [Origin(None, nothing(step.result.shape, ops.SEVERAL))])
            return
        self._number("linear" if any(weight) else "scores", step, (left, right), origins)

    def _is_affine(self, step: Step) -> bool:
        """Return whether what a product by a parameter adds to it, if anything, is made of parameters too."""
        added = [x for x in (step.args[0],) if step.name in ("addmm", "baddbmm")]
        return all(x in self.weights for x in added) and all(
            step.kwargs.get(name, 1) == 1 for name in ("alpha", "beta")
        )

    def _sum_of_products(self, step: Step) -> bool:
        """Number the sum of an outer product, if it is a product of matrices; return whether it is."""
        product, (a, b) = self._outer[id(step.operands[0])]
        found = factors(product, step, (a, b)) if step.name == "sum" and a is not None and b is not None else None
        if found is None:
            return False
        (left, rows), (right, columns) = found
        self._number("scores", step, (product.operands[left], product.operands[right]), (rows, columns))
        return True

    def _number(
        self, kind: str, step: Step, given: tuple[Tensor, Tensor], origins: tuple[Origin | None, Origin | None]
    ) -> None:
        """Make the result of a step a source of its own."""
        averaged = any(o is not None and o.over for o in origins)
        kind = "mixture" if kind == "scores" and averaged else kind
        source = Source(kind, step, self._size, *given, origins)
        self.sources.append(source)
        self._starts.append(self._size)
        size = source.result.numel()
        numbers = torch.arange(self._size, self._size + size).reshape(source.result.shape)
        self._size += size
        self._set(step, [Origin(source, numbers)])

    def _results(self, step: Step) -> Sequence[Origin | None]:
        """Origins of the results of a step that makes no new source."""
        first = self.of(step.operands[0])
        if step.name == "view_as_complex" and first is not None:
            return [replace(first, first=first.first[..., 0], second=first.first[..., 1])]
        if step.name == "view_as_real" and first is not None:
            pair = first.first, first.first if first.second is None else first.second
            return [replace(first, first=torch.stack(pair, -1), second=torch.stack(pair[::-1], -1))]
        if ops.is_rearrangement(step):
            return rearranged(step, self.of)
        if step.name in ops.ANGLES:
            return [None]
        if ops.is_pointwise(step):
            origin = pointwise(step, [(x, self.of(x)) for x in step.operands], self.moving)
            self._note_quotient(step, origin)
            return [origin]
        if step.name in ops.KEPT:
            return [first if first is None or step.name not in ops.NORMS else replace(first, plus=True)]
        if step.name in ops.POOLED and first is not None:
            resized = ops.resized(first.first, step.results[0].shape)
            return [replace(first, first=resized, second=None, spread=True)]
        if step.name in ops.REDUCED and first is not None:
            return [reduced(step, first)]
        return [None] * len(step.results)

    def _note_quotient(self, step: Step, origin: Origin | None) -> None:
        source = None if origin is None else origin.source
        divided = step.name.removesuffix("_") == "div" and len(step.operands) == 2 and self.moving(step.operands[1])
        if divided and source is not None and source.kind == "scores":
            self.quotients.setdefault(source, step)
