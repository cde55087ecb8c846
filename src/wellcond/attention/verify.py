"""Verify a view on a call: rebuild the module's own output from it and its replay."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from wellcond._core.safe_text import briefly
from wellcond.attention.apart import tied_roles
from wellcond.attention.capture import evaluating
from wellcond.attention.replay import Call, Mixing, Softmax, project, project_out
from wellcond.attention.roles import QKV
from wellcond.attention.view import AttentionLayer

# Rounding of one forward pass, relative to the largest output; 1e-6 also covers a float32 softmax inside a
# float64 model, which several libraries use.
TOLERANCE = {torch.float64: 1e-6, torch.float32: 1e-4, torch.bfloat16: 5e-2, torch.float16: 1e-2}
# Error of what queries do to an output, relative to that, from which on another replay might have passed too: where the
# class is known, and where the replay is a guess. In half precision a guess cannot be told.
CONCLUSIVE = {torch.float64: 1e-3, torch.float32: 0.1, torch.bfloat16: 0.5, torch.float16: 0.5}
CONCLUSIVE_GUESS = {torch.float64: 1e-8, torch.float32: 1e-3, torch.bfloat16: 0.0, torch.float16: 0.0}


@dataclass(frozen=True)
class Verification:
    """The outcome of `AttentionLayer.verify`; true if the view is right.

    Args:
        name: the layer.
        method: `"replay"`, an adapter's, or `"recording"`, the module's own steps.
        error: largest difference ÷ largest output.
        tolerance: what rounding in the model's dtype allows.
        detail: why the output could not be rebuilt at all, if so.
        conclusive: whether queries matter so much on this batch that another replay would not have passed.
    """

    name: str
    method: str
    error: float
    tolerance: float
    detail: str = ""
    conclusive: bool = True

    @property
    def passed(self) -> bool:
        """Whether the error is within the tolerance (a NaN is not)."""
        return self.error <= self.tolerance

    @property
    def words(self) -> str:
        """Why the view is not right; empty if it is."""
        if self.passed:
            return ""
        return self.detail or f"its {self.method} differs from the module by {self.error:.1e} of the largest output"

    def __bool__(self) -> bool:
        return self.passed


def check_call(layer: AttentionLayer, call: Call) -> Verification:
    """Verify a layer and its replay against a call captured before.

    A view in which Q and K, two heads, or two groups are swapped cannot pass. In float64 the tolerance is 1e-6.
    """
    reason = tied_roles(layer) or ("it has no replay" if layer.replay is None else "")
    if reason or layer.replay is None:
        return Verification(layer.name, "replay", math.inf, 0.0, reason)
    try:
        target = layer.replay.target(call)
        rebuilt, effect = rebuild(layer, call)
    except (RuntimeError, LookupError, TypeError, ValueError) as problem:  # what does not fit may not even compute
        return Verification(layer.name, "replay", math.inf, 0.0, f"its replay fails: {briefly(problem, 100)}")
    found = compare(layer.name, "replay", rebuilt, target)
    bar = (CONCLUSIVE_GUESS if layer.replay.guess else CONCLUSIVE)[target.dtype]
    # The error may be rounding alone, which an output far larger than what queries do to it hides.
    error = max(found.error, torch.finfo(target.dtype).eps)
    shown = not (layer.replay.guess and call.repeats)
    return replace(found, conclusive=shown and error * _size(target) <= bar * effect)


def compare(name: str, method: str, rebuilt: Tensor, target: Tensor) -> Verification:
    """Compare a rebuilt output with the module's own; where that is not finite there is nothing to compare."""
    if rebuilt.numel() != target.numel():
        detail = f"its {method} gives shape {tuple(rebuilt.shape)}, the module {tuple(target.shape)}"
        return Verification(name, method, math.inf, 0.0, detail)
    rebuilt = rebuilt.reshape(target.shape)
    if not bool(torch.isfinite(target.sum())):
        finite = torch.isfinite(target)
        rebuilt, target = rebuilt[finite], target[finite]
    if not target.numel():
        return Verification(name, method, 0.0, TOLERANCE[target.dtype])
    return Verification(name, method, float((rebuilt - target).abs().max()) / _size(target), TOLERANCE[target.dtype])


def _size(target: Tensor) -> float:
    """The largest number of an output that is finite; never zero."""
    return float(target.abs().nan_to_num(0.0, 0.0).max().clamp_min(torch.finfo(target.dtype).tiny))


@torch.no_grad()
def rebuild(layer: AttentionLayer, call: Call) -> tuple[Tensor, float]:
    """Compute the layer's output from its view and replay alone; and what its queries (or values) do to that.

    Of a guess each head has to show itself, so that counts which does least: one without values may score by any rule.
    """
    replay = layer.replay
    assert replay is not None
    with evaluating(call.module):  # some modules compute a position bias with dropout in it
        tokens = replay.tokens(call)
        q, k, v = (
            project(p, tokens[role]) if (p := getattr(layer, role)) is not None else torch.empty(0) for role in QKV
        )
        mixing = replay.mixing(call)
        mixed = mixing(q, k, v)
        still = _unasked(mixing, q, k, v) if q.numel() else torch.zeros_like(mixed)
        output = finished(layer, call, mixed)
        by_head = _by_head(layer, mixed - still) if replay.guess else [output - finished(layer, call, still)]
        return output, min(float(part.abs().max()) for part in by_head)


def _unasked(mixing: Mixing, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return mixing.unasked(q, k, v) if isinstance(mixing, Softmax) else mixing(torch.zeros_like(q), k, v)


def _by_head(layer: AttentionLayer, mixed: Tensor) -> Iterator[Tensor]:
    """What each head writes to the output."""
    weights = mixed.new_empty(0) if layer.output is None else layer.output.read()
    return (x if layer.output is None else x @ weights[head].mT for head, x in enumerate(mixed.unbind(1)))


def finished(layer: AttentionLayer, call: Call, mixed: Tensor) -> Tensor:
    """Compute the layer's output from what its heads have mixed."""
    assert layer.replay is not None
    mixed = layer.replay.assemble(call, mixed)
    return layer.replay.finish(call, mixed if layer.output is None else project_out(layer.output, mixed))
