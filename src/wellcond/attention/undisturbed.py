"""Run a model and leave no trace: modes, generators, buffers and whatever else its modules keep stay as they were."""

from __future__ import annotations

import copy
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

# What torch itself keeps in a module.
REGISTRIES = frozenset(nn.Module().__dict__)


@contextmanager
def undisturbed(root: nn.Module) -> Iterator[list[nn.Module]]:
    """Run code of the model's eagerly, compiled or not, and put generators, buffers and attributes back afterwards.

    The list that it yields has afterwards the modules that were put back.

    >>> norm = nn.BatchNorm1d(2)
    >>> with undisturbed(norm):
    ...     y = norm(torch.randn(3, 2))
    >>> norm.running_mean, norm.num_batches_tracked
    (tensor([0., 0.]), tensor(0))
    """
    # The first pass of a lazy module makes its parameters and sizes, to stay.
    kept = [
        _Kept(module)
        for module in root.modules()
        if not any(is_lazy(p) for p in module._parameters.values() if p is not None)
    ]
    devices = sorted({p.device.index or 0 for p in root.parameters() if p.device.type == "cuda"})
    # The compiler takes seconds to import; where nobody has, nothing is compiled, but for what flex_attention compiles.
    compiling = not sys.modules.keys().isdisjoint({"torch._dynamo", "torch.nn.attention.flex_attention"})
    eager = torch.compiler.set_stance("force_eager") if compiling else nullcontext()
    with torch.random.fork_rng(devices=devices), eager:
        changed: list[nn.Module] = []
        try:
            yield changed
        finally:
            changed.extend(one.module for one in kept if one.has_changed())
            for one in kept:
                one.put_back()


class _Kept:
    """Buffers and plain attributes of one module, a cache of keys among them."""

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        self.buffers = dict(module._buffers)
        # Weights that a hook computes before each pass (spectral norm, weight norm) are not kept, for views read them.
        self.left = REGISTRIES | {getattr(hook, "name", "") for hook in module._forward_pre_hooks.values()}
        self.attributes = {name: value for name, value in module.__dict__.items() if name not in self.left}
        self.inside = {
            name: copy.copy(value) for name, value in self.attributes.items() if type(value) in (list, dict, set)
        }
        tensors = (x for x in (*self.buffers.values(), *self.attributes.values()) if isinstance(x, Tensor))
        self.values = [(x, x.detach().clone()) for x in tensors if not x.is_inference() and not x.is_meta]

    def has_changed(self) -> bool:
        now = {name: value for name, value in self.module.__dict__.items() if name not in self.left}
        return (
            not _same(now, self.attributes)
            or not _same(self.module._buffers, self.buffers)
            or any(len(value) != len(self.attributes[name]) for name, value in self.inside.items())
            or not all(torch.equal(tensor, value) for tensor, value in self.values)
        )

    def put_back(self) -> None:
        self.module._buffers.clear()
        self.module._buffers.update(self.buffers)
        own = self.module.__dict__
        for name in [name for name in own if name not in self.left and name not in self.attributes]:
            del own[name]
        own.update(self.attributes)
        for name, before in self.inside.items():
            value = own[name]
            if isinstance(value, list):
                value[:] = before
            else:
                value.clear()
                value.update(before)
        with torch.no_grad():
            for tensor, value in self.values:
                if not torch.equal(tensor, value):  # not by its version, which a batch norm does not raise
                    tensor.copy_(value)


def _same(a: Mapping[str, Any], b: Mapping[str, Any]) -> bool:
    return a.keys() == b.keys() and all(value is b[name] for name, value in a.items())


def own_copy(inputs: Any) -> Any:
    """Return a batch whose objects a pass may change, such as a cache of keys; tensors are the same.

    >>> batch = {"x": torch.ones(1), "cache": [torch.ones(1)]}
    >>> copied = own_copy(batch)
    >>> copied["x"] is batch["x"], copied["cache"] is batch["cache"]
    (True, False)
    """
    if isinstance(inputs, Tensor):  # what was made in inference mode has no gradients outside it
        return inputs.clone() if inputs.is_inference() and not torch.is_inference_mode_enabled() else inputs
    if inputs is None or isinstance(inputs, (str, bytes, int, float, complex)):
        return inputs
    if isinstance(inputs, Mapping):
        return {name: own_copy(value) for name, value in inputs.items()}
    if type(inputs) in (list, tuple):
        return type(inputs)(own_copy(value) for value in inputs)
    if isinstance(inputs, nn.Module) or callable(inputs):
        return inputs
    try:
        return copy.deepcopy(inputs)
    except (TypeError, RuntimeError):  # an open file, a tensor of somebody's graph: as it was given
        return inputs
