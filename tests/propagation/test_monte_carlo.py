"""Rows, pairs and heads drawn at random average to the theory's."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from scipy import special

from tests.propagation.oracles import Array, within
from wellcond.propagation.exact_pairs import exact_pair
from wellcond.propagation.exact_rows import RowStatistics, exact_row
from wellcond.propagation.propagate import propagate


def softmax(logits: Array) -> Array:
    return special.softmax(logits, axis=-1)


def judge(p: Array, row: RowStatistics) -> None:
    y2, y3 = (p**2).sum(-1), (p**3).sum(-1)
    within(y2, row.participation)
    within(y3, row.cube)
    within(y2**2, row.square)
    within(special.entr(p).sum(-1), row.entropy)
    within(y2 - 2 * y3 + y2**2, row.gradient)


@pytest.mark.parametrize(("tokens", "deviation"), [(256, 2.0), (256, 0.5), (256, 5.0), (16, 1.5), (3, 2.0)])
def test_random_rows_average_to_the_exact_row(tokens: int, deviation: float) -> None:
    rng = np.random.default_rng(1)
    p = softmax(deviation * rng.standard_normal((4000, tokens)))
    judge(p, exact_row(deviation, tokens))


@pytest.mark.parametrize(("tokens", "deviation", "shift"), [(64, 1.5, 3.0), (64, 1.0, 6.0), (16, 2.0, -2.0), (2, 1, 1)])
def test_random_planted_rows_average_to_the_exact_one(tokens: int, deviation: float, shift: float) -> None:
    rng = np.random.default_rng(2)
    logits = deviation * rng.standard_normal((8000, tokens))
    logits[:, 0] += shift
    p, row = softmax(logits), exact_row(deviation, tokens, shift)
    judge(p, row)
    within(p[:, 0], row.own)


def pair_sample(rng: Any, first: float, second: float, rho: float, tokens: int, extra: int) -> tuple[Array, Array]:
    z = rng.standard_normal((2, 8000, tokens))
    a = first * z[0]
    b = second * (rho * z[0] + math.sqrt(1 - rho**2) * z[1])
    b = np.concatenate([b, second * rng.standard_normal((8000, extra))], axis=1)
    p, r = softmax(a), softmax(b)[:, :tokens]
    x = (p * r).sum(-1)
    return x, x - (p * p * r).sum(-1) - (p * r * r).sum(-1) + x * x


@pytest.mark.parametrize("rho", [-0.9, -0.3, 0.0, 0.2, 0.6, 0.95])
@pytest.mark.parametrize(("tokens", "deviation"), [(16, 1.5), (64, 2.5), (128, 1.0)])
def test_random_pairs_average_to_the_exact_pair(tokens: int, deviation: float, rho: float) -> None:
    x, s = pair_sample(np.random.default_rng(3), deviation, deviation, rho, tokens, 0)
    pair = exact_pair(deviation, rho, tokens)
    within(x, pair.overlap)
    within(s, pair.gradient)


@pytest.mark.parametrize(
    ("first", "second", "rho", "tokens", "extra"),
    [(1.5, 1.5, 0.6, 32, 32), (2.0, 1.2, 0.8, 24, 100), (1.0, 2.0, -0.5, 16, 8), (1.5, 1.5, 0.5, 2, 30)],
)
def test_random_causal_pairs_average_to_the_exact_pair(
    first: float, second: float, rho: float, tokens: int, extra: int
) -> None:
    x, s = pair_sample(np.random.default_rng(4), first, second, rho, tokens, extra)
    pair = exact_pair(first, rho, tokens, second=second, extra=extra)
    within(x, pair.overlap)
    within(s, pair.gradient)


@pytest.mark.parametrize("head_dim", [16, 64])
@pytest.mark.parametrize(("beta", "rho"), [(1.0, 0.2), (2.0, 0.6)])
def test_random_heads_scatter_as_their_width_says(head_dim: int, beta: float, rho: float) -> None:
    """Logits of two queries of d components, against keys of which only what differs between tokens counts."""
    tokens, count = 64, 4000
    rng = np.random.default_rng(5)
    s = beta * math.sqrt(math.log(tokens) * (1 - rho))
    z = rng.standard_normal((2, count, head_dim))
    queries = np.stack([z[0], rho * z[0] + math.sqrt(1 - rho**2) * z[1]], axis=1)
    p = softmax(s / math.sqrt(head_dim) * (queries @ rng.standard_normal((count, head_dim, tokens))))
    found = propagate(1, tokens, beta, cosine=rho, head_dim=head_dim)
    # Beyond sampling, three points stand for χ² (exact up to its fifth moment), six for the Wishart law (third degree).
    within((p[:, 0] ** 2).sum(-1), found.participation[0], 2e-4)
    within((p[:, 0] * p[:, 1]).sum(-1), found.overlap[0], 2e-3)
    within(special.entr(p[:, 0]).sum(-1) / math.log(tokens), found.entropy[0], 2e-4)
