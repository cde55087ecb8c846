"""The module that is running, at any moment of a pass; and the modules in which values are averaged."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.weak import WeakIdKeyDictionary

from wellcond.attention.paths import walk

KERNELS = ("scaled_dot_product", "flash_attention", "efficient_attention", "flex_attention")
PRODUCTS = frozenset({"mm", "bmm", "baddbmm", "mv", "matmul"})  # the last where torch takes it apart no further
EXPONENTIALS = frozenset({"exp", "exp2", "exp_"})
LOOSELY = frozenset({"cat", "constant_pad_nd", "index", "index_select", "gather", "mean", "sum", "slice_scatter"})


@contextmanager
def running(root: nn.Module) -> Iterator[list[str]]:
    """Yield a list whose last entry is the canonical path of the module that is running.

    >>> model = nn.Sequential(nn.ReLU())
    >>> with running(model) as path:
    ...     _ = model[0].register_forward_pre_hook(lambda *_: print(path[-1]))
    ...     y = model(torch.ones(1))
    0
    """
    path = [""]
    handles: list[Any] = []

    def entering(name: str) -> Any:
        return lambda module, args: path.append(name)

    def leave(module: nn.Module, args: Any, output: Any) -> None:
        path.pop()

    try:
        for name, module in walk(root):
            handles.append(module.register_forward_pre_hook(entering(name), prepend=True))
            handles.append(module.register_forward_hook(leave, always_call=True))
        yield path
    finally:
        for handle in handles:
            handle.remove()


@contextmanager
def averaging(root: nn.Module) -> Iterator[Averages]:
    """Yield the modules in which normalised scores multiply something, as they are met; no tensor is kept.

    >>> model = nn.TransformerEncoderLayer(8, 2, batch_first=True)
    >>> with averaging(model) as modules:
    ...     y = model(torch.randn(1, 5, 8))
    >>> modules.certain, modules.possible
    (['self_attn'], [])
    """
    with running(root) as path, Averages(path) as watching:
        yield watching


class Averages(TorchDispatchMode):
    """Follows the results of softmaxes through views and elementwise operations to a product.

    Attributes:
        certain: paths of modules in which one multiplies something.
        possible: of modules in which one is re-arranged or reduced before, multiplies element by element, or in which
            an exponential multiplies something, as where a softmax is written out: for a closer look to decide.
    """

    supports_higher_order_operators = True  # flex_attention is one

    def __init__(self, path: list[str]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.path = path
        self.certain: list[str] = []
        self.possible: list[str] = []
        self.normalised = WeakIdKeyDictionary()  # to whether that is certain

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        name = operator_name(func)
        if any(kernel in name for kernel in KERNELS):
            self.certain.append(self.path[-1])
        elif "softmax" in name or name in EXPONENTIALS:
            self._mark(result, certain=name not in EXPONENTIALS)
        else:
            given = [x for x in tree_leaves(args) if isinstance(x, torch.Tensor) and x in self.normalised]
            if given:
                self._follow(func, name, given, result)
        return result

    def _follow(self, func: Any, name: str, given: list[torch.Tensor], result: Any) -> None:
        certain = any(self.normalised[x] for x in given)
        kept = func.is_view or name == "_unsafe_view" or _shape(result) == _shape(given[0])
        if name in PRODUCTS:
            (self.certain if certain else self.possible).append(self.path[-1])
        elif kept or name in LOOSELY:
            self._mark(result, certain=certain and kept)
        elif name == "mul" and certain:
            self.possible.append(self.path[-1])

    def _mark(self, result: Any, *, certain: bool) -> None:
        for x in tree_leaves(result):
            if isinstance(x, torch.Tensor):
                self.normalised[x] = certain


def operator_name(func: Any) -> str:
    """Return the name of an operator without its overload; operators that take functions have none.

    >>> operator_name(torch.ops.aten.bmm.default)
    'bmm'
    """
    return str(func.overloadpacket.__name__ if isinstance(func, torch._ops.OpOverload) else func.name())


def _shape(result: Any) -> torch.Size | str | None:
    """The shape of a result; a ragged one has none, and counts as if there were one."""
    return None if not isinstance(result, torch.Tensor) else "ragged" if result.is_nested else result.shape
