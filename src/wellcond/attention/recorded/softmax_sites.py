"""Softmax attention in a pass: normalised scores of queries and keys that multiply values."""

from __future__ import annotations

import torch

from wellcond.attention.recorded.columns import Undescribed
from wellcond.attention.recorded.operands import Operands
from wellcond.attention.recorded.operators import SOFTMAX
from wellcond.attention.recorded.origins import Origins
from wellcond.attention.recorded.reductions import NEITHER, score_axis
from wellcond.attention.recorded.sites import Products, Site, matrices, projected
from wellcond.attention.recorded.sources import Origin, Source
from wellcond.attention.roles import QKV


def softmax_site(mixture: Source, origins: Origins) -> Site:
    """Return the site of a mixture, or raise `Undescribed` with the reason."""
    left = bool(mixture.origins[0] is not None and mixture.origins[0].over)
    weights, values = mixture.origins if left else mixture.origins[::-1]
    assert weights is not None
    scores, over = _scores(weights, origins)
    if score_axis(weights, -1 if left else -2, scores) not in (over, NEITHER):
        raise Undescribed("its scores are normalised over its queries, not over the keys that it averages by them")
    if any(_reads(other, weights) for other in origins.sources if other is not mixture):
        raise Undescribed("its scores multiply more than its values: relative positions, or another part of them")
    names = ("query", "key") if over == 2 else ("key", "query")
    factors = [
        *zip(names, scores.origins, (scores.left, scores.right), strict=True),
        ("value", values, mixture.right if left else mixture.left),
    ]
    turned = {"query": over == 1, "key": over == 2, "value": not left}
    given = {
        role: matrices(projected(role, origin, tensor, origins), turn=turned[role]) for role, origin, tensor in factors
    }
    operands = Operands(origins)
    channel = operands.are_channels(given["query"].first)
    kind = "channel" if channel else "softmax"
    products = Products(kind, scores, mixture, weights, left, over, at_mixture="value")
    return Site(products, {role: matrices(given[role], turn=channel) for role in QKV}, operands)


def _reads(product: Source, weights: Origin) -> bool:
    """Whether a product has the same normalised scores as a factor."""
    given = (origin for origin in product.origins if origin is not None and origin.over)
    return any(origin.source is weights.source and origin.softmax is weights.softmax for origin in given)


def _scores(weights: Origin, origins: Origins) -> tuple[Source, int]:
    """The product that a mixture's weights are normalised scores of, and which of its axes is normalised."""
    if weights.source is None or not weights.first.numel() or int(weights.first.max()) < 0:
        raise Undescribed("what it normalises is no product that could be followed")
    low, high = weights.first.aminmax()
    low = low if int(low) >= 0 else weights.first[weights.first >= 0].min()
    first, last = (int(torch.bucketize(number, origins.starts, right=True)) - 1 for number in (low, high))
    if first != last:
        raise Undescribed("one product mixes by several products of queries and keys")
    scores, over, step = origins.sources[first], weights.over, weights.softmax
    if scores.kind != "scores":
        raise Undescribed("its scores are a linear map of tokens: no projected query, or no key, makes them")
    if scores.area == 1:
        raise Undescribed("it scores one query with one key, which does not show which of them is which")
    if scores is not weights.source and step is not None and step.name in SOFTMAX:
        whole = origins.of(step.operands[0])
        over = NEITHER if whole is None else score_axis(whole, step.args[SOFTMAX[step.name]], scores)
    if over == NEITHER:
        raise Undescribed("its scores are normalised over neither queries nor keys")
    return scores, over
