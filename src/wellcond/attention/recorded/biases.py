"""Vectors of parameters that are added to the whole result of a linear map in a step of their own."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from wellcond.attention.recorded import operators as ops
from wellcond.attention.recorded.sources import Source
from wellcond.attention.recorded.tape import Step, Tape, memory
from wellcond.attention.recorded.weights import Weights

WITH_BIAS = {"addmm", "convolution"}  # linear maps that add a vector themselves


def find_biases(tape: Tape, sources: Sequence[Source], weights: Weights) -> dict[Step, tuple[Tensor, Tensor]]:
    """Return, by the step of a linear map, its result with the bias, and the bias.

    A bias is all that reads the result without it: Transformer-XL adds two vectors to the same queries, for two
    products, and neither is a bias of the map.
    """
    maps = {memory(s.result): s for s in sources if s.kind == "linear" and s.step.name not in WITH_BIAS}
    readers: dict[Step, list[Step]] = {source.step: [] for source in maps.values()}
    for step in tape.steps:
        source = next((maps[m] for x in step.operands if (m := memory(x)) in maps), None)
        if source is not None and not (ops.is_rearrangement(step) and memory(step.results[0]) in maps):
            readers[source.step].append(step)
    found: dict[Step, tuple[Tensor, Tensor]] = {}
    for source in maps.values():
        first, *more = readers[source.step] or [source.step]
        vector = _added(first, source, weights)
        if vector is not None and (not more or first.written is not None):
            found[source.step] = first.results[0], vector
    return found


def _added(step: Step, source: Source, weights: Weights) -> Tensor | None:
    """The vector of parameters that a step adds to a whole result, column by column."""
    if step.name.removesuffix("_") != "add" or step.kwargs.get("alpha", 1) != 1:
        return None
    vectors = [x for x in step.operands if x in weights]
    others = [x for x in step.operands if x not in weights]
    if len(vectors) != 1 or len(others) != 1 or others[0].numel() != source.result.numel():
        return None
    vector, columns = vectors[0], source.result.shape[-1]
    last = vector.shape == others[0].shape[others[0].ndim - vector.ndim :]
    return vector if last and vector.numel() == columns and weights.is_stored(vector) else None
