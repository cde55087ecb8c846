"""Run a model once and keep what shows how its blocks are wired: a few tokens around each part, and the stream."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from wellcond.attention.layers import AttentionLayers
from wellcond.attention.paths import resolve, walk
from wellcond.attention.storage import split_path
from wellcond.diagnosis.measure.probe import Seen, look_at_layers

SAMPLED_TOKENS = 8  # of each tensor: enough to tell tensors apart, and to check a sum coordinate by coordinate


@dataclass(frozen=True)
class Sample:
    """A few tokens of one tensor."""

    rows: Tensor  # `(up to 8, width)` in float64, evenly spaced
    count: int  # how many tokens there were

    def same(self, other: Sample) -> bool:
        """Return whether both are of one tensor, bit by bit."""
        return self.count == other.count and torch.equal(self.rows, other.rows)


def sample_tokens(x: Tensor) -> Sample:
    """Return a few tokens of `(…, width)`.

    >>> sample_tokens(torch.arange(60.0).view(2, 10, 3)).rows[:2].tolist()
    [[0.0, 1.0, 2.0], [6.0, 7.0, 8.0]]
    """
    flat = x.detach().reshape(-1, x.shape[-1])
    picked = torch.linspace(0, max(len(flat) - 1, 0), min(SAMPLED_TOKENS, len(flat))).long()
    return Sample(flat[picked.to(flat.device)].cpu().double(), len(flat))


@dataclass(frozen=True)
class Trace:
    """Input and output of one module in its first call; `calls` counts all of them."""

    module: nn.Module
    given: Sample | None
    gave: Sample | None
    calls: list[int] = field(default_factory=lambda: [1])


@dataclass(frozen=True)
class Watched:
    """The record of one pass."""

    seen: list[Seen]  # each layer's call, in the order of the layers
    traces: dict[str, Trace]  # of blocks, attention layers, norms and MLP matrices, by canonical path
    norms: tuple[str, ...]  # which of these paths are norms
    streams: dict[str, tuple[Tensor, Tensor]]  # what each block was given and gave, whole, by the block's path


def watch(layers: AttentionLayers, batch: Any) -> Watched:
    """Run the model once in evaluation mode, without a trace, and keep what tells how its blocks are wired.

    >>> import wellcond as wc
    >>> seen = watch(wc.attention_layers(nn.TransformerEncoderLayer(8, 2, batch_first=True)), torch.randn(1, 5, 8))
    >>> sorted(seen.traces), seen.norms
    (['', 'linear1', 'linear2', 'norm1', 'norm2', 'self_attn'], ('norm1', 'norm2'))
    """
    root = layers[0].root
    assert root is not None
    blocks = {layer.block.name for layer in layers if layer.block}
    norms = tuple(path for path, module in walk(root) if type(module).__name__.endswith("Norm"))
    matrices = {
        split_path(p.weight.path)[0]
        for layer in layers
        if layer.block
        for p in (*layer.block.mlp_in, *layer.block.mlp_out)
    }
    wanted = blocks | matrices | set(norms) | {layer.path for layer in layers}
    modules = {path: module for path, module in walk(root) if path in wanted}
    modules |= {path: _called(root, path) for path in blocks}
    watched = Watched([], {}, norms, {})
    watched.seen.extend(look_at_layers(layers, batch, _hooked(modules, watched, blocks)))
    return watched


def _called(root: nn.Module, path: str) -> nn.Module:
    """The module of a block: T5 keeps a block's parts in a list, which is never called."""
    while isinstance(resolve(root, path), nn.ModuleList) and path:
        path = path.rpartition(".")[0]
    return resolve(root, path)


@contextmanager
def _hooked(modules: Mapping[str, nn.Module], watched: Watched, blocks: set[str]) -> Iterator[None]:
    """Take samples before a module works, since it may work in place, and after."""
    handles: list[Any] = []
    entered: dict[str, tuple[Sample | None, Tensor | None]] = {}

    def enter(path: str, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if path not in entered:
            x = first_tensor((*args, *kwargs.values()))
            whole = x.detach().clone() if path in blocks and x is not None else None
            entered[path] = None if x is None else sample_tokens(x), whole

    def leave(path: str, module: nn.Module, args: Any, output: Any) -> None:
        if path in watched.traces:
            watched.traces[path].calls[0] += 1
            return
        given, stream = entered[path]
        y = first_tensor(output if isinstance(output, (tuple, list)) else (output,))
        watched.traces[path] = Trace(module, given, None if y is None else sample_tokens(y))
        if stream is not None and y is not None:
            watched.streams[path] = stream, y.detach().clone()

    try:
        for path, module in modules.items():
            handles.append(module.register_forward_pre_hook(partial(enter, path), with_kwargs=True))
            handles.append(module.register_forward_hook(partial(leave, path)))
        yield
    finally:
        for handle in handles:
            handle.remove()


def first_tensor(values: Any) -> Tensor | None:
    """Return the first tensor of numbers with a token and a width axis."""
    return next((x for x in values if isinstance(x, Tensor) and x.is_floating_point() and x.ndim >= 2), None)
