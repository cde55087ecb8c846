"""Statistics of causal attention by position: row t is an exact row of t columns, two rows share the earlier one's."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from wellcond.propagation.exact_pairs import COARSE_PAIR_STEP, exact_pair
from wellcond.propagation.exact_rows import exact_row

ROW_POSITIONS, PAIR_POSITIONS = 20, 10  # at which averages are integrated, evenly in log t
LOG_FLOOR = 1e-300  # instead of 0 under a logarithm


@dataclass(frozen=True)
class CausalRows:
    """Attention of one layer by position."""

    participation: Tensor  # E[Σ A²] of row t
    overlap: Tensor  # E[Σ A A'] of row t with another, averaged over all others
    entropy: Tensor  # E[H] ÷ log t, from the second position on: the first has nothing to choose from
    own: Tensor  # E[A_tt]
    varies: Tensor  # (T, T), E[Σ (A − Ā)(A' − Ā')] of rows t and u
    gradient: Tensor  # (T, T), their S, and R on the diagonal: what query gradients are proportional to


def causal_rows(read: Tensor, spread: Tensor, heat: float, self_bias: float) -> CausalRows:
    """Return the attention of unit tokens with these cosines; `spread` is their `dissimilarity`."""
    n = len(read)
    t = torch.arange(1.0, n + 1, dtype=torch.float64)
    deviation, shift = heat * spread.diagonal().sqrt(), spread.diagonal() * self_bias
    nodes, weights = _hats(n, ROW_POSITIONS)
    found = [exact_row(float(deviation[i - 1]), i, float(shift[i - 1])) for i in nodes]

    def smooth(name: str) -> Tensor:
        """Linear in the logarithms: powers of t are exact."""
        values = torch.tensor([getattr(row, name) for row in found], dtype=torch.float64)
        return (weights @ values.clamp_min(LOG_FLOOR).log()).exp()

    y, own, r = smooth("participation"), smooth("own"), smooth("gradient")
    entropy = weights @ torch.tensor([row.entropy for row in found], dtype=torch.float64)
    # With probability `alone` a row is its own token, else a plain row: exact for the mean, and for no shift.
    alone, _ = mean_attention_parts(own, centred=False)
    overlap, s = _pairs(deviation, read)
    plain = torch.triu((1 - alone) * (1 - alone[:, None]) / torch.maximum(t, t[:, None]), 1)
    varies, s = plain * (overlap - 1), plain * s
    varies = varies + varies.mT + torch.diag(y - alone**2 - (1 - alone**2) / t)
    s[0] = r[0] = 0.0  # one column leaves nothing to learn
    met = torch.triu(((1 - alone) / t).expand(n, n), 1)
    mean = (met + met.mT + varies).fill_diagonal_(0.0).sum(0) / (n - 1)
    return CausalRows(y, mean, entropy[1:] / t[1:].log(), own, varies, s + s.mT + torch.diag(r))


def _pairs(deviation: Tensor, read: Tensor) -> tuple[Tensor, Tensor]:
    """X_tu and S_tu, times u, at every t < u; below the diagonal they are continued, and mean nothing."""
    nodes, weights = _hats(len(deviation), PAIR_POSITIONS)
    tables = torch.zeros(2, len(nodes), len(nodes), dtype=torch.float64)  # one column: X = 1/u
    for i, t in enumerate(nodes[1:], 1):
        for j, u in enumerate(nodes[i:], i):
            # One deviation for both rows is several times as fast, and off by 2e-4 in the cosine at most.
            both = math.sqrt(float(deviation[t - 1] * deviation[u - 1]))
            rho = float(read[t - 1, u - 1] if t < u else read[t - 2, t - 1])  # the diagonal: of neighbours
            found = exact_pair(both, rho, t, extra=u - t, step=COARSE_PAIR_STEP)
            tables[0, i, j], tables[1, i, j] = (
                math.log(max(x * u, LOG_FLOOR)) for x in (found.overlap, found.gradient)
            )
    tables[1, 0] = tables[1, 1]
    diagonal = tables.diagonal(0, 1, 2)
    # Flat across the diagonal, where the functions have a crease.
    tables.diagonal(-1, 1, 2).copy_(diagonal[:, 1:] + diagonal[:, :-1] - tables.diagonal(1, 1, 2))
    overlap, gradient = (weights @ tables @ weights.mT).exp()
    return overlap, gradient


def _hats(tokens: int, count: int) -> tuple[list[int], Tensor]:
    """Positions evenly spread in log t, both ends among them, and the matrix that interpolates linearly between."""
    nodes = sorted({round(tokens ** (i / (count - 1))) for i in range(count)})
    x = torch.tensor(nodes, dtype=torch.float64).log()
    at = torch.arange(1, tokens + 1, dtype=torch.float64).log()
    cell = (torch.searchsorted(x, at, right=True) - 1).clamp(0, len(nodes) - 2)
    right = (at - x[cell]) / (x[cell + 1] - x[cell])
    weights = torch.zeros(tokens, len(nodes), dtype=torch.float64)
    weights.scatter_(1, cell[:, None], (1 - right)[:, None]).scatter_(1, cell[:, None] + 1, right[:, None])
    return nodes, weights


def mean_attention_parts(own: Tensor, *, centred: bool) -> tuple[Tensor, Tensor]:
    """Return the mean of each row in two parts: what is on the own token alone, and what is on each token seen."""
    t = torch.arange(1.0, len(own) + 1, dtype=torch.float64)
    alone = (t * own - 1) / (t - 1).clamp_min(1.0)
    return alone, (-alone if centred else 1 - alone) / t
