"""Run a part of a recorded pass again, from other tensors than it had, in any precision."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from wellcond.attention.recorded.columns import Undescribed
from wellcond.attention.recorded.tape import Step, memory

LIKE = {"rand_like", "randn_like", "randint_like"}  # draws that read nothing of a tensor but its shape


class Rerun:
    """The steps between some tensors of a pass and some later ones, as a function.

    Everything that does not depend on the first is a constant, as it was recorded. The operators are the model's own,
    so derivatives through them are autograd's.

    Args:
        steps: of the tape.
        given: tensors to be replaced.
        wanted: tensors to be computed from them.
        dtype: to compute in; as recorded if None.
    """

    def __init__(
        self, steps: Sequence[Step], given: Sequence[Tensor], wanted: Sequence[Tensor], dtype: torch.dtype | None = None
    ) -> None:
        self.given, self.wanted, self.dtype = list(given), list(wanted), dtype
        self.written: set[int] = set()
        while written := _written_by(forward := _after(steps, given, self.written)) - self.written:
            self.written |= written  # what shares memory with it must be made again too
        self.steps = _before(forward, wanted, self.written)
        drawn = next((step.name for step in self.steps if torch.Tag.nondeterministic_seeded in step.func.tags), None)
        if drawn is not None:
            raise Undescribed(f"it draws random numbers ('{drawn}') between its projections and what it averages")
        self._constants: dict[int, Tensor] = {}

    def __call__(self, *tensors: Tensor) -> list[Tensor]:
        """Return the wanted tensors for other given ones."""
        now: dict[int, Tensor] = {id(x): y for x, y in zip(self.given, tensors, strict=True)}
        own: dict[int, Tensor] = {}

        def current(x: Any) -> Any:
            if isinstance(x, torch.dtype):
                return self._dtype(x)
            if not isinstance(x, Tensor):
                return x
            if id(x) in now:
                return now[id(x)]
            constant = self._constant(x)
            if memory(x) in self.written:
                constant = own.setdefault(id(x), constant.clone())
            return constant

        for step in self.steps:
            args, kwargs = tree_map(current, (step.args, step.kwargs))
            if step.name == "_softmax" and self.dtype is not None:
                args = (*args[:2], False)  # its third argument says that half precision becomes single in it
            result = step.func(*args, **kwargs)
            for old, new in zip(step.results, _leaves(result), strict=True):
                now[id(old)] = new
        return [current(x) for x in self.wanted]

    def _constant(self, x: Tensor) -> Tensor:
        if self.dtype is None or not (x.is_floating_point() or x.is_complex()):
            return x.detach()
        if id(x) not in self._constants:
            dtype = self._dtype(x.dtype)
            self._constants[id(x)] = x.detach().to(dtype)
        return self._constants[id(x)]

    def _dtype(self, dtype: torch.dtype) -> torch.dtype:
        if self.dtype is None:
            return dtype
        if dtype.is_floating_point:
            return self.dtype
        if dtype.is_complex:
            return torch.complex128 if self.dtype == torch.float64 else torch.complex64
        return dtype


def _leaves(result: Any) -> list[Tensor]:
    return [result] if isinstance(result, Tensor) else [x for x in result if isinstance(x, Tensor)]


def _after(steps: Sequence[Step], given: Sequence[Tensor], written: set[int]) -> list[Step]:
    """The steps that depend on tensors, and those that make what shares memory with `written`."""
    making = {id(x) for x in given}
    live, found = set(making), []
    for step in steps:
        results = {id(x) for x in step.results}
        if results & making:  # what makes a given tensor; a later step may write into it
            making -= results
        elif step.name in LIKE and not any(memory(x) in written for x in step.results):
            continue  # a draw of that shape stays what it was
        elif any(id(x) in live for x in step.operands) or any(memory(x) in written for x in step.results):
            found.append(step)
            live |= results
    return found


def _before(steps: Sequence[Step], wanted: Sequence[Tensor], written: set[int]) -> list[Step]:
    """The steps that lead to tensors, in order."""
    needed, held, found = {id(x) for x in wanted}, {memory(x) for x in wanted}, []
    for step in reversed(steps):
        if any(id(x) in needed or memory(x) in held & written for x in step.results):
            found.append(step)
            needed |= {id(x) for x in step.operands}
            held |= {memory(x) for x in step.operands}
    return found[::-1]


def _written_by(steps: Sequence[Step]) -> set[int]:
    """Memory that steps write into."""
    return {memory(x) for step in steps if (x := step.written) is not None}
