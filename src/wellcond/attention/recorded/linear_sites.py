"""Linear attention in a pass: keys times values first, then queries times that, normalised by a sum or before."""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor

from wellcond.attention.recorded.columns import Undescribed
from wellcond.attention.recorded.operands import Operands
from wellcond.attention.recorded.origins import Origins
from wellcond.attention.recorded.sites import Products, Site, batched, matrices, projected
from wellcond.attention.recorded.sources import Origin, Source


def linear_mixtures(origins: Origins) -> Iterator[tuple[Source, int]]:
    """Yield the products of queries with what keys and values made, and which factor the latter is.

    Something has to normalise: a softmax of the keys alone, or a quotient of which the product is the numerator. Where
    something is added to what keys and values made, it is the state of a recurrence, and no attention.
    """
    for source in origins.sources:
        for place, origin in enumerate(source.origins):
            if source.kind == "linear" or origin is None or origin.source is None or origin.plus:
                continue
            first, queries = origin.source, source.origins[1 - place]
            from_maps = all(_is_projection(o) for o in (queries, *first.origins))
            normalised = first.kind == "mixture" or (first.kind == "scores" and source in origins.quotients)
            if from_maps and normalised:
                yield source, place


def linear_site(mixture: Source, place: int, origins: Origins) -> Site:
    """Return the site of a product of queries, or raise `Undescribed` with the reason."""
    weights, queries = mixture.origins[place], mixture.origins[1 - place]
    assert weights is not None
    assert weights.source is not None
    scores, left = weights.source, place == 0
    # Of the first product, the factor whose channels are summed with the queries' is the key.
    contracted = batched(weights.first)[0, 0] if left else batched(weights.first)[0, :, 0]
    rows = _along_rows(contracted, scores)
    key, value = (scores.origins[0], scores.origins[1]) if rows else (scores.origins[1], scores.origins[0])
    given = {
        "query": matrices(projected("query", queries, mixture.right if left else mixture.left, origins), turn=left),
        "key": matrices(projected("key", key, scores.left if rows else scores.right, origins), turn=rows),
        "value": matrices(projected("value", value, scores.right if rows else scores.left, origins), turn=not rows),
    }
    operands = Operands(origins)
    if operands.are_channels(given["query"].first) or operands.are_channels(given["key"].first):
        raise Undescribed("linear attention whose products are not of tokens")
    quotient = origins.quotients.get(mixture)
    return Site(Products("linear", scores, mixture, weights, left, 0, "query", quotient), given, operands)


def _is_projection(origin: Origin | None) -> bool:
    return origin is not None and origin.source is not None and origin.source.kind == "linear"


def _along_rows(numbers: Tensor, source: Source) -> bool:
    """Whether numbers run from one row of a product to the next, not along one of its rows."""
    rows, columns = source.result.shape[-2:]
    if rows == columns == 1:
        raise Undescribed("its keys and values are one number wide, which does not show which of them is which")
    return rows == 1 if len(numbers) == 1 else not bool((numbers.diff() % columns).any())
