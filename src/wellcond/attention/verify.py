"""Verify a view: rebuild the module's own output from it, or, without a replay, perturb head by head."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from wellcond.attention.capture import capture, evaluating, repeat
from wellcond.attention.replay import Call, Replay, output_of_layer, project, project_out
from wellcond.attention.roles import QKV
from wellcond.attention.view import AttentionLayer
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
        error: largest difference ÷ largest output (replay), or the number of misplaced heads (perturbation).
        tolerance: what rounding in the model's dtype allows.
        detail: why the output could not be rebuilt at all, if so.
    """

    name: str
    method: str
    error: float
    tolerance: float
    detail: str = ""

    @property
    def passed(self) -> bool:
        """Whether the error is within the tolerance (a NaN is not)."""
        return self.error <= self.tolerance

    def __bool__(self) -> bool:
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
        return Verification(layer.name, "perturbation", float(_misplaced_heads(layer, call)), TOLERANCE[dtype])
    try:
        rebuilt = rebuild(layer, call)
    except RuntimeError as problem:  # a view of the wrong weights may not even fit together
        return Verification(layer.name, "replay", math.inf, 0.0, " ".join(str(problem).split()))
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
    with evaluating(call.module):  # some modules compute a position bias with dropout in it
        return _rebuild(layer, layer.replay, call)


def _rebuild(layer: AttentionLayer, replay: Replay, call: Call) -> Tensor:
    tokens = replay.tokens(call)
    projected = [
        project(p, tokens[role]) if (p := getattr(layer, role)) is not None else torch.empty(0) for role in QKV
    ]
    mixed = replay.assemble(call, replay.mixing(call)(*projected))
    if layer.output is not None:
        mixed = project_out(layer.output, mixed)
    return replay.finish(call, mixed)


@torch.no_grad()
def _misplaced_heads(layer: AttentionLayer, call: Call) -> int:
    """Count the heads that, when changed, change more than their own part of what the output projection reads.

    A query head acts on its own columns, a key or value head on those of the query heads that share it. Without an
    output projection the module's result is looked at, which has the same columns.
    """
    wrong = 0
    before = _mixed(call)
    for _, projection in layer.projections(*QKV):
        weight = projection.read()
        shared = max(1, layer.num_heads // projection.heads)
        try:
            for head in range(projection.heads):
                changed = weight.clone()
                changed[head] = weight.std() - changed[head]
                projection.store_(changed)
                moved = (_mixed(call) != before).flatten(0, -2).any(0).reshape(layer.num_heads, -1).any(1)
                expected = torch.arange(layer.num_heads, device=moved.device) // shared == head
                wrong += int(not torch.equal(moved, expected))
        finally:
            projection.store_(weight)
    return wrong


def _mixed(call: Call) -> Tensor:
    """Run the module again as it was called; return what its output projection reads, or its result."""
    again = repeat(call)
    mixed = again.reads.get("output")
    return output_of_layer(again) if mixed is None else mixed
