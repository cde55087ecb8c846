"""Predict many stacks at once, one for each cell of a diagram, in one pass through the blocks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from operator import itemgetter
from typing import Any

import torch
from torch import Tensor

from wellcond._core.progress import bar
from wellcond.propagation.attention_statistics import Statistics, Value, asymptotic_statistics
from wellcond.propagation.block import forward, is_present
from wellcond.propagation.block_gradients import transfer
from wellcond.propagation.diagram_axes import SETS_STATISTICS, as_parameter
from wellcond.propagation.lookup_tables import tabulated_kernel, tabulated_statistics
from wellcond.propagation.parameters import architecture, common_shape, map_tensors, tensors_in
from wellcond.propagation.stack import log_gradient_growth, next_floor

CELLS_AT_ONCE = 65536  # at a time; fewer would fit the cache, but calls cost more than memory
UNNORMALISED_SIZES = (1e-3, 1e3)  # of what an activation reads, where nothing normalises the stream


@dataclass(frozen=True)
class Cells:
    """The state of every cell behind its last block."""

    cosine: Tensor  # of the tokens after the last block
    entropy: Tensor  # E[H] ÷ log T of the sharpest layer
    participation: Tensor  # E[Σ p²] of the sharpest layer
    own: Tensor  # weight of the own token in the layer that has most of it
    growth: Tensor  # log10 of the squared gradient at the input ÷ that at the output
    collapse: Tensor  # the first block behind which tokens are more alike than the threshold; the depth + 1 if none is


def plane_cells(
    grids: Mapping[str, Tensor], given: Mapping[str, Any], threshold: float, *, gradients: bool = True
) -> Cells:
    """Compute every cell of a plane, its two parameters in `grids`; cells that share a length are taken together."""
    name = next((name for name in grids if name in SETS_STATISTICS), None)
    if name is None:
        if "depth" not in grids:
            return run_cells({**given, **_named(grids)}, [given["depth"]], threshold, gradients=gradients)[0]
        depths = sorted({int(d) for d in grids["depth"].flatten().tolist()})
        others = {k: v for k, v in grids.items() if k != "depth"}
        found = run_cells({**given, **_named(others)}, depths, threshold, gradients=gradients)
        return _chosen(found, [grids["depth"] == depth for depth in depths])
    each = sorted(set(grids[name].flatten().tolist()))
    parts, masks = [], []
    others = {k: v for k, v in grids.items() if k != name}
    for value in bar(each, name):
        parts.append(plane_cells(others, {**given, name: int(value)}, threshold, gradients=gradients))
        masks.append(grids[name] == value)
    return _chosen(parts, masks)


def _chosen(parts: Sequence[Cells], masks: Sequence[Tensor]) -> Cells:
    """Join parts of a plane, each where its mask is set."""
    joined = parts[0]
    for part, mask in zip(parts[1:], masks[1:], strict=True):
        joined = Cells(
            *(torch.where(mask, new, old) for new, old in zip(vars(part).values(), vars(joined).values(), strict=True))
        )
    return joined


def _named(grids: Mapping[str, Tensor]) -> dict[str, Any]:
    return {name: as_parameter(name, grid) for name, grid in grids.items()}


def run_cells(given: Mapping[str, Any], depths: list[int], threshold: float, *, gradients: bool = True) -> list[Cells]:
    """Predict the cells of parameters that are numbers or tensors of one shape, after each of the depths."""
    shape = torch.Size(common_shape(given))
    count = shape.numel()
    flat = map_tensors(given, lambda t: t.expand(shape).reshape(-1).double())
    statistics = _statistics(given)
    parts = []
    for start in range(0, count, CELLS_AT_ONCE):
        part = map_tensors(flat, itemgetter(slice(start, start + CELLS_AT_ONCE)))
        parts.append(_run(part, min(CELLS_AT_ONCE, count - start), depths, threshold, statistics, gradients=gradients))
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
        low, high = UNNORMALISED_SIZES
        if given["norm"] != "none":
            hidden = torch.as_tensor(block.mlp[0] * 1.0 + block.bias[1])
            low, high = float(hidden.min()), float(hidden.max())
        block = replace(block, kernel=tabulated_kernel(block.kernel, low, high))
    device = next((t.device for t in tensors_in(given)), torch.device("cpu"))
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
            grown = torch.zeros_like(p) + row[0] + behind * row[1]
            rate = log_gradient_growth(grown, 1.0, q) if gradients else torch.zeros_like(p)
            found[layer] = Cells(p / q, entropy, participation, own, rate, collapse.double())
    return [found[depth] for depth in depths]


def _statistics(given: Mapping[str, Any]) -> Statistics:
    if given["theory"] == "asymptotic":
        return asymptotic_statistics(given["tokens"])
    hottest = architecture(given).temperature
    largest = float(torch.as_tensor(hottest).max()) ** 0.5 * (given["tokens"] / (given["tokens"] - 1)) ** 0.5
    largest = largest if given["norm"] != "none" else torch.inf
    return tabulated_statistics(given["tokens"], largest, given["head_dim"], shifted=is_present(given["self_bias"]))


def _join(parts: list[Cells], shape: torch.Size) -> Cells:
    return Cells(*(torch.cat([getattr(p, name) for p in parts]).reshape(shape) for name in vars(parts[0])))
