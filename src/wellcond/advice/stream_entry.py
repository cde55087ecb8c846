"""The stream as it enters the first block: how large it is, and which parameters make it."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from wellcond.attention.capture import evaluating, run_model
from wellcond.attention.layers import AttentionLayers
from wellcond.attention.ordinary import with_gradients
from wellcond.attention.paths import resolve
from wellcond.attention.storage import fetch
from wellcond.attention.undisturbed import undisturbed
from wellcond.placement.watched_pass import first_tensor

SAME = 1e-3  # relative distance within which the streams of the parts make up the stream


@dataclass(frozen=True, eq=False)
class StreamEntry:
    """What enters the first block.

    Args:
        size: root mean square of an entry of the stream.
        parts: the same with one parameter at a time and the others zero, by path; empty where the stream is not the sum
            of such parts, as behind a norm.
        makers: paths of all parameters on which it depends.
        batch: the size with all of these at zero, which is of the batch itself.

    >>> model = nn.Sequential(nn.Embedding(9, 8), nn.TransformerEncoderLayer(8, 2, batch_first=True))
    >>> import wellcond as wc
    >>> entry = measure_entry(model, torch.arange(9)[None], wc.attention_layers(model))
    >>> list(entry.parts), entry.parts["0.weight"] == entry.size
    (['0.weight'], True)
    """

    size: float
    parts: Mapping[str, float]
    makers: tuple[str, ...] = ()
    batch: float = 0.0


class _EnteredError(Exception):
    """Ends a pass where the stream was seen."""


def measure_entry(trial: nn.Module, inputs: Any, layers: AttentionLayers) -> StreamEntry | None:
    """Measure what enters the first block of a copy of a model; None where nothing is seen to be given a stream."""
    with ExitStack() as stack:
        stack.enter_context(undisturbed(trial))
        stack.enter_context(evaluating(trial))
        with with_gradients():
            path, stream = _entrance(trial, inputs, layers)
        if stream is None:
            return None
        made = _makers(trial, stream)
        with torch.no_grad():
            batch = _without(trial, inputs, path, made)
            alone = {name: _without(trial, inputs, path, made - {name}) for name in sorted(made)}
    if not all(part.shape == stream.shape for part in (batch, *alone.values())):  # or it is not given one then
        return StreamEntry(rms(stream), {}, tuple(sorted(made)))
    parts = {name: part - batch for name, part in alone.items()}
    if (sum(parts.values(), batch) - stream).norm() > SAME * stream.norm():
        return StreamEntry(rms(stream), {}, tuple(sorted(made)))
    return StreamEntry(rms(stream), {name: rms(part) for name, part in parts.items()}, tuple(sorted(made)), rms(batch))


def _entrance(trial: nn.Module, inputs: Any, layers: AttentionLayers) -> tuple[str, Tensor | None]:
    """The path of the first module that is given the stream, and the stream.

    A block; where that is not called, as a list, or not known, what holds the attention, else the attention itself.
    The whole model is given the batch.
    """
    blocks = {layer.block.name for layer in layers if layer.block is not None} - {""}
    above = {path for layer in layers for path in _above(layer.name)}
    given = _given(trial, inputs, blocks | {layer.name for layer in layers}, above)
    path = next(reversed(given), "")
    for other in () if path in blocks else _above(path):
        if other in given and given[other].grad_fn is not None:  # parameters have made it
            return other, given[other]
    return path, given.get(path)


def _above(path: str) -> list[str]:
    """Paths of what holds a module, the nearest first, but for the whole model."""
    parts = path.split(".")
    return [".".join(parts[:end]) for end in range(len(parts) - 1, 0, -1)]


def _given(trial: nn.Module, inputs: Any, ends: Collection[str], watched: Collection[str] = ()) -> dict[str, Tensor]:
    """What modules are given in a pass, by path, up to the first of `ends`, which is the last; empty if none runs."""
    given = dict[str, Tensor]()

    def enter(name: str, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        stream = first_tensor((*args, *kwargs.values()))
        if stream is not None:
            given.setdefault(name, stream)
            if name in ends:
                raise _EnteredError

    with ExitStack() as stack:
        for name in {*ends, *watched}:
            hook = resolve(trial, name).register_forward_pre_hook(partial(enter, name), with_kwargs=True)
            stack.callback(hook.remove)
        try:
            run_model(trial, inputs)
        except Exception as error:
            cause: BaseException | None = error
            while cause is not None and not isinstance(cause, _EnteredError):
                cause = cause.__cause__
            if cause is None:
                raise
            return given
    return {}


def _makers(trial: nn.Module, stream: Tensor) -> set[str]:
    """Paths of the parameters on which the stream depends."""
    if stream.grad_fn is None:
        return set()
    named = {name: p for name, p in trial.named_parameters() if p.requires_grad}
    drawn = torch.randn(stream.shape, generator=torch.Generator().manual_seed(0)).to(stream)
    found = torch.autograd.grad(stream, list(named.values()), drawn, allow_unused=True)
    return {name for name, grad in zip(named, found, strict=True) if grad is not None and bool(grad.any())}


def _without(trial: nn.Module, inputs: Any, path: str, names: Collection[str]) -> Tensor:
    """The stream when some parameters are zero; empty where it is not seen then."""
    with scaled(trial, dict.fromkeys(names, 0.0)):
        return _given(trial, inputs, {path}).get(path, torch.empty(0))


@contextmanager
def scaled(trial: nn.Module, factors: Mapping[str, float]) -> Iterator[None]:
    """Multiply some parameters by factors, by path, until the block ends."""
    kept = {name: fetch(trial, name).detach().clone() for name in factors}
    with torch.no_grad():
        try:
            for name, factor in factors.items():
                fetch(trial, name).mul_(factor)
            yield
        finally:
            for name, value in kept.items():
                fetch(trial, name).copy_(value)


def rms(x: Tensor) -> float:
    """Return the root mean square of a tensor's entries, in float64."""
    return float(x.detach().double().square().mean().sqrt())
