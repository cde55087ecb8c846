r"""Expected attention rows of a layer, from its logits' numbers and the tokens it reads.

Head h has logits of variance $s_h^2 = (\sigma_h^2 q + B_h)(q - p)$ along a row, and $(q - p)\,\mathrm{tr} M_h$ more in
the own column. Heads, query norms and rows of different length are averaged over.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch

from wellcond.placement.batch_statistics import BatchStatistics
from wellcond.placement.token_moments import TokenMoments
from wellcond.placement.weight_estimates import Logits
from wellcond.propagation.exact_rows import exact_row

SMALLEST_SPREAD = 1e-9  # q (q − p) below which tokens are alike, and logits say nothing of the weights
HEAD_GROUPS = 4  # heads that differ little are taken together

_row = lru_cache(maxsize=4096)(exact_row)


@dataclass(frozen=True)
class ExpectedRows:
    """Means over rows: entropy ÷ log T, Σ p², weight of the own token."""

    entropy: float
    participation: float
    own: float


def deviations(logits: Logits, read: TokenMoments) -> list[tuple[float, float, float]]:
    """Return (s, μ, lean) of each head for tokens of these moments.

    >>> deviations(Logits((4.0,), (0.0,), (2.0,), (8.0,), (0.0,)), TokenMoments(1.0, 0.75))
    [(1.0, 0.5, 0.0)]
    """
    spread = max(read.size - read.overlap, 0.0)
    return [
        (math.sqrt((variance * read.size + bias) * spread), spread * trace, spread * lean)
        for variance, bias, trace, lean in zip(logits.variance, logits.bias, logits.trace, logits.lean, strict=True)
    ]


def expected_rows(logits: Logits, read: TokenMoments, columns: tuple[tuple[int, float], ...]) -> ExpectedRows:
    """Return means over heads and rows; `columns` are numbers of columns, and the share of rows that see as many.

    The moments are those of the tokens before the norm's gain.

    >>> even = Logits((0.0,), (0.0,), (0.0,), (8.0,), (0.0,))
    >>> round(expected_rows(even, TokenMoments(1.0, 0.5), ((16, 1.0),)).participation, 4)
    0.0625
    """
    entropy = participation = own = 0.0
    for deviation, shift, lean, share in _grouped(deviations(logits, read)):
        for scale, weight in _query_norms(harmonic_mean(logits.head_dim)):
            for count, part in columns:
                row, mass = _row(deviation * scale, count, shift + lean * (scale**2 - 1)), share * weight * part
                entropy += mass * row.entropy / math.log(count)
                participation += mass * row.participation
                own += mass * row.own
    return ExpectedRows(entropy, participation, own)


def logits_from_batch(measured: BatchStatistics) -> Logits:
    """Return the logits that a batch implies, as if of one head; for layers whose weights do not set them."""
    spread = measured.read.size - measured.read.overlap
    if measured.variance is None or spread * measured.read.size < SMALLEST_SPREAD:
        return Logits((0.0,), (0.0,), (0.0,), (math.inf,), (0.0,))
    variance = measured.variance / (measured.read.size * spread)
    return Logits((variance,), (0.0,), (measured.shift / spread,), (math.inf,), (0.0,))


def harmonic_mean(numbers: Sequence[float]) -> float:
    """Return the harmonic mean: scatters add up, and 2/d is the scatter of a squared query norm."""
    scatter = sum(1 / max(number, 1.0) for number in numbers)
    return len(numbers) / scatter if scatter else math.inf


def _grouped(heads: list[tuple[float, float, float]]) -> list[tuple[float, float, float, float]]:
    """(s, μ, lean, share) of a few groups of neighbouring heads."""
    ordered = torch.tensor(sorted(heads), dtype=torch.float64)
    parts = [part for part in ordered.tensor_split(HEAD_GROUPS) if len(part)]
    means = [part.mean(0).tolist() for part in parts]
    return [(s, shift, lean, len(p) / len(ordered)) for (s, shift, lean), p in zip(means, parts, strict=True)]


def _query_norms(d: float) -> list[tuple[float, float]]:
    """√(χ²_d/d) and its weights, by Gauss–Hermite's three points and Wilson & Hilferty's cube (1931)."""
    if math.isinf(d):
        return [(1.0, 1.0)]
    points = ((-math.sqrt(3), 1 / 6), (0.0, 2 / 3), (math.sqrt(3), 1 / 6))
    return [(max(0.0, 1 - 2 / (9 * d) + z * math.sqrt(2 / (9 * d))) ** 1.5, weight) for z, weight in points]
