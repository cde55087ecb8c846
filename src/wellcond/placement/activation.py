"""Find the activation between an MLP's two matrices by what it does to a few tokens, whatever it is called."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from wellcond.attention.storage import split_path
from wellcond.attention.view import ResidualBlock
from wellcond.placement.watched_pass import Watched
from wellcond.placement.wiring import NotPlaced
from wellcond.propagation.activation_kernels import Activation, Kernel, kernel

Function = Callable[[Tensor], Tensor]
# Those with closed forms first: where two agree on the sample, the first is taken.
KNOWN_ACTIVATIONS: tuple[tuple[Activation, Function], ...] = (
    ("gelu", functional.gelu),
    ("relu", functional.relu),
    ("tanh", torch.tanh),
    *(
        (phi, phi)
        for phi in (
            lambda x: functional.gelu(x, approximate="tanh"),
            functional.silu,
            lambda x: x * torch.sigmoid(1.702 * x),
            lambda x: functional.relu(x).square(),
            functional.mish,
            functional.softplus,
        )
    ),
)


@dataclass(frozen=True)
class MLPActivation:
    """The activation between an MLP's matrices, and its gate."""

    kernel: Kernel  # of the activation alone
    gate: slice | None  # its columns among those of all matrices that read the stream; None where there is no gate
    up: slice  # the columns that the gate multiplies, else all


@torch.no_grad()
def find_activation(block: ResidualBlock, module: nn.Module, watched: Watched) -> MLPActivation:
    """Return the activation of a block's MLP, or raise `NotPlaced` with the reason.

    >>> import wellcond as wc
    >>> from wellcond.placement.watched_pass import watch
    >>> layer = nn.TransformerEncoderLayer(8, 2, activation=functional.silu, batch_first=True)
    >>> layers = wc.attention_layers(layer)
    >>> found = find_activation(layers[0].block, layer, watch(layers, torch.randn(1, 5, 8)))
    >>> one = torch.ones((), dtype=torch.float64)
    >>> round(float(found.kernel.value(one, one)), 3), found.gate
    (0.356, None)
    """
    if len(block.mlp_in) > 2 or len(block.mlp_out) != 1:
        raise NotPlaced(
            f"its MLP reads the stream with {len(block.mlp_in)} matrices and writes with {len(block.mlp_out)}"
        )
    traces = [watched.traces.get(split_path(p.weight.path)[0]) for p in (*block.mlp_in, *block.mlp_out)]
    first = [trace.gave.rows for trace in traces[:-1] if trace is not None and trace.gave is not None]
    last = traces[-1].given if traces[-1] is not None else None
    if len(first) != len(block.mlp_in) or last is None or any(len(u) != len(last.rows) for u in first):
        raise NotPlaced("its MLP's matrices are not called as modules, token by token")
    u, h = torch.cat(first, dim=1), last.rows
    size, width = h.shape[1], u.shape[1]
    if width not in (size, 2 * size):
        raise NotPlaced(f"its MLP goes from {width} to {size} numbers in a way that is no activation and no gate")
    best: tuple[float, Activation, slice | None, slice] | None = None
    halves = slice(0, size), slice(size, None)
    for gate, up in ((None, slice(None)),) if width == size else (halves, halves[::-1]):
        read = u if gate is None else u[:, gate]
        for name, phi in _candidates(module, read):
            value = phi(read) if gate is None else phi(read) * u[:, up]
            error = float((value - h).abs().max() / h.abs().max().clamp_min(1e-300))
            if best is None or error < 0.5 * best[0]:
                best = error, name, gate, up
    if best is None or not best[0] < 0.02:
        raise NotPlaced("between its MLP's matrices there is more than an activation, or one that is not known")
    _, found, gate, up = best
    return MLPActivation(kernel(found), gate, up)


def _candidates(module: nn.Module, u: Tensor) -> Iterator[tuple[Activation, Function]]:
    """The known ones, then whatever module of the block maps numbers to as many numbers and has no weights."""
    yield from KNOWN_ACTIVATIONS
    for child in module.modules():
        own = [child] if not list(child.children()) and not list(child.parameters()) else []
        named = [f for name, f in vars(child).items() if "act" in name and callable(f) and not isinstance(f, nn.Module)]
        for phi in (*own, *named):
            if _acts(phi, u):
                yield phi, phi


def _acts(phi: Function, u: Tensor) -> bool:
    """Whether a function can be asked: some of a block's parts take other arguments."""
    try:
        value = phi(u[:1])
    except (TypeError, ValueError, RuntimeError, IndexError, AttributeError):
        return False
    return isinstance(value, Tensor) and value.shape == u[:1].shape and not torch.equal(value, u[:1])
