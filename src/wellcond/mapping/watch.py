"""One pass that shows how blocks are wired: a few tokens of what each part was given and gave, and the whole stream."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from wellcond.attention.find import AttentionLayers
from wellcond.attention.paths import resolve, walk
from wellcond.attention.storage import split
from wellcond.diagnose.probe import Seen, look

ROWS = 8  # tokens kept of each tensor: enough to tell tensors apart, and to check a sum coordinate by coordinate


@dataclass(frozen=True)
class Sample:
    """A few tokens of one tensor.

    Args:
        rows: `(up to 8, width)` in float64, evenly spaced.
        count: how many tokens there were.
    """

    rows: Tensor
    count: int

    def same(self, other: Sample) -> bool:
        """Whether both are of one tensor, bit by bit."""
        return self.count == other.count and torch.equal(self.rows, other.rows)


def sample(x: Tensor) -> Sample:
    """A few tokens of `(…, width)`.

    >>> sample(torch.arange(60.0).view(2, 10, 3)).rows[:2].tolist()
    [[0.0, 1.0, 2.0], [6.0, 7.0, 8.0]]
    """
    flat = x.detach().reshape(-1, x.shape[-1])
    picked = torch.linspace(0, max(len(flat) - 1, 0), min(ROWS, len(flat))).long()
    return Sample(flat[picked.to(flat.device)].cpu().double(), len(flat))


@dataclass(frozen=True)
class Trace:
    """What one module was given and gave in its first call; `calls` counts all of them."""

    module: nn.Module
    given: Sample | None
    gave: Sample | None
    calls: list[int] = field(default_factory=lambda: [1])


@dataclass(frozen=True)
class Watched:
    """One pass.

    Args:
        seen: each layer's call, in the order of the layers.
        traces: of blocks, attention layers, norms and MLP matrices, by canonical path.
        norms: which of these paths are norms.
        streams: what each block was given and gave, whole, by the block's path.
    """

    seen: list[Seen]
    traces: dict[str, Trace]
    norms: tuple[str, ...]
    streams: dict[str, tuple[Tensor, Tensor]]


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
        split(p.weight.path)[0] for layer in layers if layer.block for p in (*layer.block.mlp_in, *layer.block.mlp_out)
    }
    wanted = blocks | matrices | set(norms) | {layer.name for layer in layers}
    modules = {path: module for path, module in walk(root) if path in wanted}
    modules |= {path: _called(root, path) for path in blocks}
    traces: dict[str, Trace] = {}
    streams: dict[str, tuple[Tensor, Tensor]] = {}
    with _hooked(modules, traces, streams, blocks):
        seen = look(layers, batch, norms=False)
    return Watched(seen, traces, norms, streams)


def _called(root: nn.Module, path: str) -> nn.Module:
    """The module of a block: T5 keeps a block's parts in a list, which is never called."""
    while isinstance(resolve(root, path), nn.ModuleList) and path:
        path = path.rpartition(".")[0]
    return resolve(root, path)


@contextmanager
def _hooked(
    modules: Mapping[str, nn.Module],
    traces: dict[str, Trace],
    streams: dict[str, tuple[Tensor, Tensor]],
    blocks: set[str],
) -> Iterator[None]:
    handles: list[Any] = []
    entered: dict[str, tuple[Sample | None, Tensor | None]] = {}
    try:
        for path, module in modules.items():
            enter, leave = _keeper(path, path in blocks, entered, traces, streams)
            handles.append(module.register_forward_pre_hook(enter, with_kwargs=True))
            handles.append(module.register_forward_hook(leave))
        yield
    finally:
        for handle in handles:
            handle.remove()


def _keeper(
    path: str,
    whole: bool,
    entered: dict[str, tuple[Sample | None, Tensor | None]],
    traces: dict[str, Trace],
    streams: dict[str, tuple[Tensor, Tensor]],
) -> tuple[Callable[..., None], Callable[..., None]]:
    """Hooks that take their samples before a module works, since it may work in place, and after."""

    def enter(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if path not in entered:
            x = first_tensor((*args, *kwargs.values()))
            entered[path] = None if x is None else sample(x), x.detach().clone() if whole and x is not None else None

    def leave(module: nn.Module, args: Any, output: Any) -> None:
        if path in traces:
            traces[path].calls[0] += 1
            return
        given, stream = entered[path]
        y = first_tensor(output if isinstance(output, (tuple, list)) else (output,))
        traces[path] = Trace(module, given, None if y is None else sample(y))
        if stream is not None and y is not None:
            streams[path] = stream, y.detach().clone()

    return enter, leave


def first_tensor(values: Any) -> Tensor | None:
    """The first tensor of numbers with a token and a width axis."""
    return next((x for x in values if isinstance(x, Tensor) and x.is_floating_point() and x.ndim >= 2), None)
