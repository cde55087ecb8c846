"""Compare weights of a model with those that do the same work, in the same layer and in others."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import median

from wellcond.advice.stream_entry import rms
from wellcond.attention.layers import AttentionLayers
from wellcond.attention.projection import Projection
from wellcond.attention.view import AttentionLayer

LARGER = 4.0  # times the weights that do the same work, from which on weights are out of line


def times_others(
    layers: Sequence[AttentionLayer], roles: Sequence[str], others: Sequence[str], *, by_inputs: bool = True
) -> float:
    """Return the median over layers of the size of some roles' weights ÷ that of others'; 0 where one is not there."""
    found = _compared(layers, roles, others, by_inputs)
    return median(times for _, times in found.values()) if found else 0.0


def larger_in_some(layers: Sequence[AttentionLayer], roles: Sequence[str], others: Sequence[str]) -> str:
    """Say in which layers the weights of some roles are out of line with those of the others; nothing if in none.

    They are if both their size ÷ that of what does the same work in the layer is `LARGER` times that of the others,
    and they themselves are larger: stages differ in width, and a layer may be scaled by its depth.
    """
    found, apart = _compared(layers, roles, others, by_inputs=True), dict[str, float]()
    for name, (size, times) in found.items():
        rest = [found[other] for other in found if other != name]
        sizes, usual = (median(each) for each in zip(*rest, strict=True)) if rest else (0.0, 0.0)
        if usual and times >= LARGER * usual and size >= LARGER / 2 * sizes:
            apart[name] = times / usual
    if not apart:
        return ""
    names, more = [f"'{name}'" for name in apart], f" and {len(apart) - 3} more" * (len(apart) > 3)
    return f"in {', '.join(names[:3])}{more}: {max(apart.values()):.2g} × the size of those in other layers"


def _compared(
    layers: Sequence[AttentionLayer], roles: Sequence[str], others: Sequence[str], by_inputs: bool
) -> dict[str, tuple[float, float]]:
    """By layer, the size of some roles' weights, and the same ÷ that of others', where both are there."""
    found = {}
    for layer in layers:
        own, rest = ([size for role in some for size in _sizes(layer, role, by_inputs)] for some in (roles, others))
        if own and rest and median(rest) > 0:
            found[layer.name] = min(own), min(own) / median(rest)
    return found


def _sizes(layer: AttentionLayer, role: str, by_inputs: bool) -> list[float]:
    """What each matrix of a role multiplies independent unit inputs by, as it is stored, or the RMS of its entries."""
    if role in ("mlp_in", "mlp_out"):
        parts = getattr(layer.block, role) if layer.block is not None else ()
    else:
        parts = tuple(p for _, p in layer.projections(role))
    writes = role in ("output", "mlp_out")
    return [rms(p.read()) * (math.sqrt(_inputs(p, writes)) if by_inputs else 1) for p in parts if not p.refusal()]


def _inputs(projection: Projection, writes: bool) -> int:
    """The number of inputs, which of what writes to the stream are the columns."""
    heads, width, d = projection.shape
    return heads * d if writes else width


def median_size(layers: AttentionLayers, *, by_inputs: bool) -> float:
    """Return the median size of what reads the stream: RMS of its entries, or of what it makes of unit inputs."""
    sizes = [size for layer in layers for role in ("value", "mlp_in") for size in _sizes(layer, role, by_inputs)]
    return median(sizes) if sizes else 0.0
