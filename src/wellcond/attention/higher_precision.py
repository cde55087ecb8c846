"""A captured call in higher precision: the same module, arguments and tokens with every floating tensor widened.

The user's module is not touched. Its copy shares everything but tensors, children and hooks, so that norms, tables and
temperatures inside a replay compute in that precision whatever the model's dtype, sharding or wrapping.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from wellcond._core.deferred_torch import is_dtensor
from wellcond._core.linalg import exact
from wellcond.attention.capture import evaluating
from wellcond.attention.replay import Call, Replay
from wellcond.attention.storage import HALF_DTYPES, full

HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


def widened(call: Call, dtype: torch.dtype = torch.float64) -> Call:
    """Return a copy of a call, to be replayed in this dtype and in evaluation mode.

    >>> import wellcond as wc
    >>> from wellcond.attention.capture import capture
    >>> layers = wc.attention_layers(nn.TransformerEncoderLayer(8, 2, batch_first=True))
    >>> call = widened(capture(list(layers), torch.randn(1, 5, 8))[0])
    >>> call.arguments["query"].dtype, call.module.out_proj.weight.dtype, layers[0].module.out_proj.weight.dtype
    (torch.float64, torch.float64, torch.float32)
    """
    wide = _Widen(dtype)
    arguments, reads = wide(call.arguments), wide(call.reads)
    return replace(call, module=wide.copy(call.module), arguments=arguments, reads=reads, dtype=dtype)


def wide_enough(call: Call, replay: Replay) -> Call:
    """Return a call that can be measured: gathered if its module is sharded, in float32 if it computes in less.

    Half precision may be of the weights or of what autocast makes of tokens; entropies and logits in it are rounding.
    """
    with evaluating(call.module):
        dtypes = {x.dtype for x in replay.tokens(call).values()}
    if call.layer.value is not None:
        dtypes.add(call.layer.value.parameter().dtype)
    if not dtypes.isdisjoint(HALF_DTYPES):
        return widened(call, torch.float32)
    return widened(call, dtypes.pop()) if any(map(is_dtensor, call.module.parameters())) else call


class _Widen:
    """Widens tensors, one and the same tensor once: roles that read the same tokens still do."""

    def __init__(self, dtype: torch.dtype) -> None:
        self.dtype = dtype
        self.done: dict[int, tuple[Tensor, Tensor]] = {}  # the original too, so that its id stays its own

    def __call__(self, value: Any) -> Any:
        if isinstance(value, Tensor):
            return self.tensor(value) if value.is_floating_point() else full(value)
        if isinstance(value, dict):
            return {key: self(item) for key, item in value.items()}
        if type(value) in (tuple, list):
            return type(value)(self(item) for item in value)
        return value

    def tensor(self, value: Tensor) -> Tensor:
        if id(value) not in self.done:
            self.done[id(value)] = value, exact(full(value), self.dtype)
        return self.done[id(value)][1]

    def copy(self, module: nn.Module) -> nn.Module:
        twin: nn.Module = object.__new__(type(module))  # copy.copy would run what a class does when it is restored
        own = twin.__dict__
        own.update(module.__dict__)
        own["_parameters"] = {name: self(value) for name, value in module._parameters.items()}
        own["_buffers"] = {name: self(value) for name, value in module._buffers.items()}
        own["_modules"] = {name: None if child is None else self.copy(child) for name, child in module._modules.items()}
        own.update({name: OrderedDict() for name in HOOKS if name in own})
        own.update(training=False, _compiled_call_impl=None)
        return twin
