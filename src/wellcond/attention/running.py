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

PRODUCTS = frozenset({"mm", "bmm", "baddbmm", "mv"})


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
def averaging(root: nn.Module) -> Iterator[list[str]]:
    """Yield a list that grows by a module's path whenever normalised scores multiply something; no tensor is kept.

    >>> model = nn.TransformerEncoderLayer(8, 2, batch_first=True)
    >>> with averaging(model) as modules:
    ...     y = model(torch.randn(1, 5, 8))
    >>> modules
    ['self_attn']
    """
    with running(root) as path, _Averages(path) as watching:
        yield watching.found


class _Averages(TorchDispatchMode):
    """Follows the results of softmaxes through views and elementwise operations to a product."""

    def __init__(self, path: list[str]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.path = path
        self.found: list[str] = []
        self.normalised = WeakIdKeyDictionary()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        name = str(func.overloadpacket.__name__)
        if "scaled_dot_product" in name or "flash_attention" in name or "efficient_attention" in name:
            self.found.append(self.path[-1])
        elif "softmax" in name:
            self._mark(result)
        else:
            given = [x for x in tree_leaves(args) if isinstance(x, torch.Tensor) and x in self.normalised]
            if given and name in PRODUCTS:
                self.found.append(self.path[-1])
            elif given and (func.is_view or name == "_unsafe_view" or _shape(result) == given[0].shape):
                self._mark(result)
        return result

    def _mark(self, result: Any) -> None:
        for x in tree_leaves(result):
            if isinstance(x, torch.Tensor):
                self.normalised[x] = True


def _shape(result: Any) -> torch.Size | None:
    return result.shape if isinstance(result, torch.Tensor) else None
