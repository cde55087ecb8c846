"""A tape of one eager pass: every operation, its operands and results, and the module that was running."""

from __future__ import annotations

import itertools
from bisect import bisect_right
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn
from torch._ops import OpOverload
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from wellcond.attention.paths import join, walk
from wellcond.attention.running import running

# Factors of a product, by their place among the arguments.
PRODUCTS = {"mm": (0, 1), "bmm": (0, 1), "mv": (0, 1), "addmm": (1, 2), "baddbmm": (1, 2), "convolution": (0, 1)}


def memory(x: Tensor) -> int:
    """Return what is the same for tensors that share memory."""
    return int(x.untyped_storage()._cdata)


def written_by(func: Any, args: tuple[Any, ...]) -> Tensor | None:
    """Return the argument that an operator writes into, None if it writes into none."""
    for x, argument in zip(args, func._schema.arguments, strict=False):
        if isinstance(x, Tensor) and argument.alias_info is not None and argument.alias_info.is_write:
            return x
    return None


@dataclass(frozen=True, eq=False)
class Step:
    """One operation of a pass.

    Args:
        func: the operator, at the level of aten.
        args, kwargs: its operands, tensors as they are.
        result: what it returned.
        module: canonical path of the module that was running.
    """

    func: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    result: Any
    module: str

    @property
    def name(self) -> str:
        """Name of the operator without its overload: `"bmm"`."""
        return str(self.func.overloadpacket.__name__)

    @cached_property
    def operands(self) -> list[Tensor]:
        """The tensors among the arguments, in order."""
        return [x for x in tree_leaves((self.args, self.kwargs)) if isinstance(x, Tensor)]

    @cached_property
    def written(self) -> Tensor | None:
        """The tensor that was written into, None if the results are new."""
        return written_by(self.func, self.args)

    @cached_property
    def results(self) -> list[Tensor]:
        """The tensors that were returned."""
        return [x for x in tree_leaves(self.result) if isinstance(x, Tensor)]


@dataclass
class Tape:
    """The steps of a pass in order, and the model's parameters and buffers by identity.

    Tensors stay alive with the tape, so that the identity of each stays its own.

    Args:
        steps: the operations.
        parameters: paths and tensors of the parameters.
        buffers: the same of the buffers.
        first: number of each parameter's first element, those of all parameters being numbered together.
        before: copies, by identity, of factors and results of products that were written into later.
    """

    steps: list[Step] = field(default_factory=list)
    parameters: dict[int, tuple[str, Tensor]] = field(default_factory=dict)
    buffers: dict[int, tuple[str, Tensor]] = field(default_factory=dict)
    first: dict[int, int] = field(default_factory=dict)
    before: dict[int, Tensor] = field(default_factory=dict)

    def value(self, tensor: Tensor) -> Tensor:
        """Return a factor or the result of a product as it was then, whatever was written into it since."""
        return self.before.get(id(tensor), tensor)

    def until(self, step: Step) -> list[Step]:
        """The steps up to one of them, which is the last."""
        return self.steps[: next(index for index, one in enumerate(self.steps) if one is step) + 1]

    def leads_to(self, tensor: Tensor, step: Step) -> bool:
        """Return whether a step reads something that was computed from a tensor."""
        live: set[int] = {id(tensor)}
        for each in self.steps:
            read = any(id(x) in live for x in each.operands)
            if each is step:
                return read
            if read:
                live |= {id(x) for x in each.results}
        return False

    def inputs(self) -> dict[int, Tensor]:
        """Return, by identity, the tensors that the pass was given: neither made in it, nor the model's own."""
        known: set[int] = {*self.parameters, *self.buffers}
        found: dict[int, Tensor] = {}
        for step in self.steps:
            found |= {id(x): x for x in step.operands if id(x) not in known}
            known |= {id(x) for x in step.results}
        return found

    def parameter(self, element: int) -> tuple[str, int, Tensor]:
        """Return path, number of the first element, and tensor of the parameter that an element belongs to."""
        keys, starts = self._starts
        key = keys[bisect_right(starts, element) - 1]
        return self.parameters[key][0], self.first[key], self.parameters[key][1]

    @cached_property
    def _starts(self) -> tuple[list[int], list[int]]:
        return list(self.first), list(self.first.values())


class _Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    supports_higher_order_operators = True

    def __init__(self, tape: Tape, running: list[str]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.tape, self.running = tape, running
        self.products: dict[int, list[Tensor]] = {}  # factors and results of products, by their memory

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        # Operators that take functions, such as flex_attention, and ragged tensors have no elements to follow.
        if not isinstance(func, OpOverload) or any(isinstance(x, Tensor) and x.is_nested for x in tree_leaves(args)):
            return func(*args, **kwargs)
        written = written_by(func, args) if func._schema.is_mutable else None
        for x in self.products.get(memory(written), ()) if written is not None else ():
            self.tape.before.setdefault(id(x), x.clone())
        result = func(*args, **kwargs)
        step = Step(func, args, kwargs, result, self.running[-1])
        self.tape.steps.append(step)
        if step.name in PRODUCTS:
            for x in (result, *(args[place] for place in PRODUCTS[step.name])):
                self.products.setdefault(memory(x), []).append(x)
        return result


@contextmanager
def recording(root: nn.Module) -> Iterator[Tape]:
    """Record what a model computes in this context.

    Attention kernels run in their decomposed form, so that logits and probabilities are operations of their own.

    >>> import torch
    >>> model = nn.Linear(2, 3)
    >>> with torch.no_grad(), recording(model) as tape:
    ...     y = model(torch.ones(1, 2))
    >>> [step.name for step in tape.steps][-2:], [path for path, _ in tape.parameters.values()]
    (['t', 'addmm'], ['weight', 'bias'])
    """
    tape = Tape()
    for path, module in walk(root):
        for own, values in ((tape.parameters, module._parameters), (tape.buffers, module._buffers)):
            for name, value in values.items():
                if value is not None:
                    own.setdefault(id(value), (join(path, name), value))
    sizes = [0, *itertools.accumulate(value.numel() for _, value in tape.parameters.values())]
    tape.first = dict(zip(tape.parameters, sizes, strict=False))
    with running(root) as path_now, sdpa_kernel(SDPBackend.MATH), _Decomposed(), _Recorder(tape, path_now):
        yield tape


class _Decomposed(TorchFunctionMode):
    """Runs an attention kernel in its decomposed form where a module asks for another."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is not F.scaled_dot_product_attention:
            return func(*args, **(kwargs or {}))
        with sdpa_kernel(SDPBackend.MATH):
            return func(*args, **(kwargs or {}))
