"""Many stacks at once: what a diagram wants of each cell, in one pass through the blocks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from operator import itemgetter
from typing import Any

import torch
from torch import Tensor

from wellcond.propagation.block import forward, transfer
from wellcond.propagation.parameters import architecture, changed, common_shape, tensors
from wellcond.propagation.stack import growth, next_floor
from wellcond.propagation.statistics import Statistics, Value, asymptotic
from wellcond.propagation.tables import tabulated, tabulated_kernel

CELLS = 65536  # at a time; fewer would fit the cache, but calls cost more than memory
ANY_SIZE = (1e-3, 1e3)  # of what an activation reads, where nothing normalises the stream


@dataclass(frozen=True)
class Cells:
    """What became of each cell.

    Args:
        cosine: of the tokens after the last block.
        entropy: E[H] ÷ log T of the sharpest layer.
        participation: E[Σ p²] of the sharpest layer.
        own: weight of the own token in the layer that has most of it.
        growth: log10 of the squared gradient at the input ÷ that at the output.
        collapse: the first block behind which tokens are more alike than the threshold says; the depth + 1 if none is.
    """

    cosine: Tensor
    entropy: Tensor
    participation: Tensor
    own: Tensor
    growth: Tensor
    collapse: Tensor


def run_cells(given: Mapping[str, Any], depths: list[int], threshold: float, *, gradients: bool = True) -> list[Cells]:
    """Run all cells of parameters that are numbers or tensors of one shape; the state after each of the depths."""
    shape = torch.Size(common_shape(given))
    count = shape.numel()
    flat = changed(given, lambda t: t.expand(shape).reshape(-1).double())
    statistics = _statistics(given)
    parts = []
    for start in range(0, count, CELLS):
        part = changed(flat, itemgetter(slice(start, start + CELLS)))
        parts.append(_run(part, min(CELLS, count - start), depths, threshold, statistics, gradients=gradients))
    return [_join([part[i] for part in parts], shape) for i in range(len(depths))]


def _run(
    given: Mapping[str, Any],
    count: int,
    depths: list[int],
    threshold: float,
    statistics: Statistics,
    *,
    gradients: bool,
) -> list[Cells]:
    block = architecture(given)
    if not block.kernel.closed:
        low, high = ANY_SIZE
        if given["norm"] != "none":
            hidden = torch.as_tensor(block.mlp[0] * 1.0 + block.bias[1])
            low, high = float(hidden.min()), float(hidden.max())
        block = replace(block, kernel=tabulated_kernel(block.kernel, low, high))
    device = next((t.device for t in tensors(given)), torch.device("cpu"))
    p = torch.as_tensor(given["cosine"], dtype=torch.float64, device=device).expand(count)
    q: Value = 1.0
    entropy, own, participation = torch.full_like(p, torch.inf), torch.zeros_like(p), torch.zeros_like(p)
    apart = torch.ones_like(p, dtype=torch.bool)
    collapse = torch.ones_like(p, dtype=torch.int16)
    row: tuple[Value, Value] = (1.0, 0.0)
    behind = 0.0 if given["loss"] == "token" else 1.0
    floor: Value = 1 / given["width"] if given["width"] is not None else 0.0
    found = {}
    for layer in range(1, max(depths) + 1):
        q, p, state = forward(q, p, block, statistics)
        if gradients:
            row = transfer(state, block, floor).ahead(row)
        if given["width"] is not None:
            floor = next_floor(floor, state, block, given["width"])
        seen = state.attention
        entropy = torch.minimum(entropy, seen.entropy)
        own = torch.maximum(own, seen.own) if isinstance(seen.own, Tensor) else own
        participation = torch.maximum(participation, seen.participation)
        apart = apart & (p <= threshold * q)
        collapse = collapse + apart
        if layer in depths:
            rate = growth(torch.zeros_like(p) + row[0] + behind * row[1], 1.0, q) if gradients else torch.zeros_like(p)
            found[layer] = Cells(p / q, entropy, participation, own, rate, collapse.double())
    return [found[depth] for depth in depths]


def _statistics(given: Mapping[str, Any]) -> Statistics:
    if given["theory"] == "asymptotic":
        return asymptotic(given["tokens"])
    hottest = architecture(given).temperature
    largest = float(torch.as_tensor(hottest).max()) ** 0.5 * (given["tokens"] / (given["tokens"] - 1)) ** 0.5
    shifted = isinstance(given["self_bias"], Tensor) or given["self_bias"] != 0
    return tabulated(
        given["tokens"], largest if given["norm"] != "none" else torch.inf, given["head_dim"], shifted=shifted
    )


def _join(parts: list[Cells], shape: torch.Size) -> Cells:
    return Cells(*(torch.cat([getattr(p, name) for p in parts]).reshape(shape) for name in vars(parts[0])))
