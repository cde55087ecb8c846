"""Is a view right? Rebuild the module's own output from it, or, without a replay, perturb head by head."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from wellcond.attention.paths import resolve
from wellcond.attention.replay import Call, capture, project, project_out
from wellcond.attention.storage import split
from wellcond.attention.view import AttentionLayer, Projection
from wellcond.errors import WellcondError

# Rounding of one forward pass, relative to the largest output; 1e-6 also covers a float32 softmax inside a
# float64 model, which several libraries use.
TOLERANCE = {torch.float64: 1e-6, torch.float32: 1e-4, torch.bfloat16: 5e-2, torch.float16: 1e-2}


@dataclass(frozen=True)
class Verification:
    """The outcome of `AttentionLayer.verify`; true if the view is right.

    Args:
        name: the layer.
        method: `"replay"`, or `"perturbation"` for a layer whose mixing has no replay yet.
        error: largest difference ÷ largest output (replay), or 1 for each misplaced head (perturbation).
        tolerance: what rounding in the model's dtype allows.
    """

    name: str
    method: str
    error: float
    tolerance: float

    @property
    def passed(self) -> bool:
        """Whether the error is within the tolerance (a NaN is not)."""
        return self.error <= self.tolerance

    def __bool__(self) -> bool:
        """`passed`."""
        return self.passed


def verify(layer: AttentionLayer, inputs: Any) -> Verification:
    """Rebuild a layer's output from its view and replay while the model runs on `inputs`.

    A view in which Q and K, two heads, or two groups are swapped cannot pass. In float64 the tolerance is 1e-6.

    >>> import wellcond as wc
    >>> model = torch.nn.TransformerEncoderLayer(8, 2, batch_first=True).double()
    >>> result = wc.attention_layers(model)[0].verify(torch.randn(1, 5, 8, dtype=torch.float64))
    >>> result.passed, result.method
    (True, 'replay')
    """
    call = capture([layer], inputs)[0]
    if call is None:
        raise WellcondError(f"'{layer.name}' was not called on this input; give one that reaches it")
    return check_call(layer, call)


def check_call(layer: AttentionLayer, call: Call) -> Verification:
    """Verify a layer against a call captured before."""
    if layer.replay is None:
        dtype = next(p for _, p in layer.projections()).parameter().dtype
        wrong = sum(
            _misplaced(layer, p, call.reads.get(role)) for role, p in layer.projections("query", "key", "value")
        )
        return Verification(layer.name, "perturbation", float(wrong), TOLERANCE[dtype])
    rebuilt = rebuild(layer, call)
    target = layer.replay.target(call)
    if rebuilt.numel() != target.numel():
        raise WellcondError(
            f"the replay of '{layer.name}' ({type(call.module).__name__}) gives shape {tuple(rebuilt.shape)}, "
            f"the module {tuple(target.shape)}; its adapter needs an `assemble` of its own"
        )
    difference = (rebuilt.reshape(target.shape) - target).abs().max()
    error = float(difference / target.abs().max().clamp_min(torch.finfo(target.dtype).tiny))
    return Verification(layer.name, "replay", error, TOLERANCE[target.dtype])


@torch.no_grad()
def rebuild(layer: AttentionLayer, call: Call) -> Tensor:
    """Compute the layer's output from its view and replay alone."""
    assert layer.replay is not None
    tokens = layer.replay.tokens(call)
    projected = [
        project(p, tokens[role]) if (p := getattr(layer, role)) is not None else torch.empty(0)
        for role in ("query", "key", "value")
    ]
    mixed = layer.replay.assemble(call, layer.replay.mixing(call)(*projected))
    if layer.output is not None:
        mixed = project_out(layer.output, mixed)
    return layer.replay.finish(call, mixed)


@torch.no_grad()
def _misplaced(layer: AttentionLayer, projection: Projection, tokens: Tensor | None) -> int:
    """How many heads, when changed, change anything but their own part of the projection's output."""
    assert layer.root is not None
    owner = resolve(layer.root, split(projection.weight.path)[0])
    if tokens is None:
        raise WellcondError(f"'{layer.name}' has no replay and '{projection.weight.path}' is not called as a module")
    weight, before, layout = projection.read(), owner(tokens), projection.weight.layout
    wrong = 0
    try:
        for head in range(projection.heads):
            changed = weight.clone()
            changed[head] += 1
            projection.store_(changed)
            moved = (owner(tokens) != before).flatten(0, -2).any(0).nonzero().flatten()
            start = layout.starts[head]
            own = torch.arange(start, start + layout.width * layout.step, layout.step)
            wrong += int(not torch.equal(moved.cpu(), own))
    finally:
        projection.store_(weight)
    return wrong
