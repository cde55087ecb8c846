r"""Lookup tables of the exact statistics of attention, so that a diagram of 40,000 cells takes a second.

Exact values are computed at Chebyshev nodes, the polynomial through them is drawn on a dense image, and cells read the
image bilinearly. What is interpolated is smooth: overlaps as $\log(TX)/\log(TY_2)$, which runs from 0 for independent
rows to 1 for equal ones at any scatter s, against $\sqrt{1-\rho}$.
"""

from __future__ import annotations

import math
from functools import lru_cache

import torch
from torch import Tensor
from torch.nn.functional import grid_sample

from wellcond._core.progress import bar
from wellcond.propagation.activation_kernels import Kernel
from wellcond.propagation.attention_statistics import (
    Attention,
    Statistics,
    pair_averages,
    row_averages,
    self_attending_pairs,
)
from wellcond.propagation.exact_rows import free_energy

MAX_TABLE_DEVIATION = 8.0  # ÷ √(2 log T), up to which images go; beyond, what a row lacks to one-hot falls as 1/s


def chebyshev(count: int) -> Tensor:
    """Return Chebyshev nodes in (0, 1).

    >>> [round(u, 6) for u in chebyshev(2).tolist()]                            # (1 ∓ 1/√2)/2
    [0.146447, 0.853553]
    """
    k = torch.arange(count, dtype=torch.float64)
    return 0.5 - 0.5 * torch.cos(math.pi * (k + 0.5) / count)


def resample(values: Tensor, count: int) -> Tensor:
    """Return the polynomial through values at Chebyshev nodes (last dimension), at `count` even points of [0, 1].

    >>> [round(v, 12) + 0.0 for v in resample(chebyshev(5) ** 3, 3).tolist()]
    [0.0, 0.125, 1.0]
    """
    n = values.shape[-1]
    orders = torch.arange(n, dtype=torch.float64)
    at_nodes = torch.cos(orders[:, None] * torch.acos(2 * chebyshev(n) - 1))  # (order, node)
    points = torch.cos(orders[:, None] * torch.acos(torch.linspace(-1, 1, count, dtype=torch.float64)))
    weights = (1 + (orders > 0).double()) / n  # the orders are orthogonal on the nodes
    return (values @ at_nodes.T * weights) @ points


class Image:
    """Channels over the unit square, read at any points of it; outside, the border's values.

    >>> image = Image(torch.arange(4.0).double().reshape(1, 2, 2))
    >>> image(torch.tensor([0.5]), torch.tensor([0.0]))[0].tolist()
    [1.0]
    """

    def __init__(self, channels: Tensor) -> None:
        """Take `(channels, down, across)`."""
        self.channels = channels[None]

    def __call__(self, down: Tensor, across: Tensor) -> Tensor:
        """Return the channels at coordinates in [0, 1], `(channels, *shape)`."""
        down, across = (x.to(torch.float64) for x in (down, across))
        shape = (down + across).shape
        points = torch.stack([across.expand(shape), down.expand(shape)], -1).reshape(1, 1, -1, 2)
        found = grid_sample(
            self.channels.to(points.device), 2 * points - 1, mode="bilinear", padding_mode="border", align_corners=True
        )
        return found.reshape(-1, *shape)


def tabulated_statistics(
    tokens: int, largest: float, head_dim: float | None = None, *, shifted: bool = False
) -> Statistics:
    """Return `exact_statistics` to four digits and better, for scatters up to `largest`, many points at a time.

    Own columns may be shifted only if `shifted` says so beforehand.
    """
    top = min(largest, MAX_TABLE_DEVIATION * math.sqrt(2 * math.log(tokens)))
    # A little more than asked, in steps, so that neighbouring diagrams share their images.
    top = 2 ** (math.ceil(8 * math.log2(max(top, 0.25))) / 8)
    lowest = max(-1.0, -1 / (tokens - 1))
    both = _both(tokens, top, head_dim)
    planted = _planted(tokens, top, head_dim) if shifted else None

    def at(deviation: Tensor, correlation: Tensor, shift: Tensor) -> Attention:
        down = deviation / top
        y, x, entropy, r, s = both(down, ((1 - correlation) / (1 - lowest)).clamp_min(0.0).sqrt())
        own = torch.full_like(y, 1 / tokens)
        if planted is not None:
            y, entropy, own, r = planted(down, _place(deviation, shift, tokens))
            x, s = self_attending_pairs(x, s, own, tokens)
        if largest > top:
            fading = (1 / down).clamp_max(1.0)
            y, entropy, r, s = 1 - (1 - y) * fading, entropy * fading, r * fading, s * fading
        return Attention(y, x, entropy, own, r, s)

    return at


@lru_cache(maxsize=64)
def _both(tokens: int, top: float, head_dim: float | None) -> Image:
    """y, x, E[H] ÷ log T, R and S over scatter (down) and dissimilarity (across)."""
    # More of them where rows go from diffuse to frozen within a small part of the range.
    wide = top > 3 * math.sqrt(2 * math.log(tokens))
    rows_n, down_n, across_n = (56, 26, 14) if wide else (40, 20, 14 if tokens > 8 else 20)
    lowest = max(-1.0, -1 / (tokens - 1))
    rows = [row_averages(float(u) * top, 0.0, tokens, head_dim) for u in chebyshev(rows_n)]
    log_y, entropy, _, log_r = torch.tensor(rows, dtype=torch.float64).T
    height, width = 513, 513
    log_y, entropy, log_r = (resample(v, height) for v in (log_y.log(), entropy, log_r.log()))
    scatters = (top * chebyshev(down_n)).tolist()
    # Independent and equal rows come last: they are known, but only with the same error of the lattice do ratios hold.
    similar = [*(1 - (1 - lowest) * chebyshev(across_n) ** 2).tolist(), 0.0, 1.0]
    shown = bar(scatters, f"statistics of {tokens} tokens")
    pairs = [[pair_averages(s, rho, tokens, head_dim) for rho in similar] for s in shown]
    x, s = torch.tensor(pairs, dtype=torch.float64).log().permute(2, 0, 1)
    overlap = (x[:, :-2] - x[:, -2:-1]) / (x[:, -1:] - x[:, -2:-1])
    overlap, gradient = (resample(resample(v, width).T, height).T for v in (overlap, s[:, :-2] - s[:, -1:]))
    independent, equal, end = torch.full_like(log_y, -math.log(tokens)), log_y, log_r
    if head_dim is not None:  # norms scatter, and two rows' differently
        independent, equal, end = (resample(v, height) for v in (x[:, -2], x[:, -1], s[:, -1]))
    x = (independent[:, None] + overlap * (equal - independent)[:, None]).exp()
    s = (end[:, None] + gradient).exp()
    y, h, r = (v[:, None].expand(height, width) for v in (log_y.exp(), entropy, log_r.exp()))
    return Image(torch.stack([y, x, h, r, s]))


LOWEST_SHIFT, HIGHEST_SHIFT = -12.0, 12.0  # in units of 1 + s from where half of a row goes to its own column


def _place(deviation: Tensor, shift: Tensor, tokens: int) -> Tensor:
    """Place of a shift between none of the row and all of it, in [0, 1]; half is the free energy of the rest."""
    return ((shift - free_energy(deviation, tokens)) / (1 + deviation) - LOWEST_SHIFT) / (HIGHEST_SHIFT - LOWEST_SHIFT)


@lru_cache(maxsize=16)
def _planted(tokens: int, top: float, head_dim: float | None) -> Image:
    """y, E[H] ÷ log T, E[A_tt] and R over scatter (down) and the place of the shift (across)."""
    scatters, places = top * chebyshev(20), chebyshev(48)
    start = _place(scatters, torch.zeros(()), tokens)  # of no shift
    shifts = (places - start[:, None]) * (HIGHEST_SHIFT - LOWEST_SHIFT) * (1 + scatters[:, None])
    found = [
        [row_averages(s, mu, tokens, head_dim) for mu in along]
        for s, along in zip(scatters.tolist(), shifts.tolist(), strict=True)
    ]
    values = torch.tensor(found, dtype=torch.float64).permute(2, 0, 1)
    return Image(resample(resample(values, 513).mT, 257).mT.clamp(0.0, 1.0))


def tabulated_kernel(exact: Kernel, low: float, high: float) -> Kernel:
    """Return a kernel without a closed form as a table, for variances between two."""
    count = 1 if high <= low * (1 + 1e-12) else 33
    sizes = low * (high / low) ** chebyshev(count)
    apart_ = chebyshev(40)
    q = sizes[:, None].expand(-1, len(apart_))
    values = torch.stack(exact.moments(q, q * (1 - 2 * apart_**2)))
    dense = resample(values, 1025)
    image = Image(resample(dense.mT, 513).mT if count > 1 else dense.expand(2, 2, -1))

    def both(q: Tensor, p: Tensor) -> tuple[Tensor, Tensor]:
        down = (q / low).log() / math.log(high / low) if count > 1 else torch.zeros_like(q)
        value, slope = image(down, ((1 - p / q) / 2).clamp_min(0.0).sqrt())
        return value, slope

    return Kernel(lambda q, p: both(q, p)[0], lambda q, p: both(q, p)[1], both)
