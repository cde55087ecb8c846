r"""A decoder in mean field, position by position: token t sees t columns, so early tokens are colder and more alike.

The state is the Gram matrix $G_{tu} = x_t \cdot x_u / D$ of the stream. Random attention is its mean, known exactly,
plus what fluctuates: with Ā the mean attention, $P_{tu}$ the mean of $G_{ss'}$ over the different tokens that rows
t ≤ u see, and $X_{tu}$ the overlap of the two rows (of a row with itself: Y₂),

$$G \to g_{coh} \bar A G \bar A^T + g_{inc} (X_{tu} - (\bar A \bar A^T)_{tu}) (1 - P_{tu}).$$
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from wellcond.errors import WellcondError
from wellcond.propagation.causal_rows import Rows, causal_rows, shares
from wellcond.propagation.kernels import Kernel

ANGLES = 1024

Curve = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Decoder:
    """What all blocks share; see `decoder`. `value` and `slope` are the MLP's kernels as functions of a cosine."""

    heat: float  # σ_a, the deviation of a logit of unit tokens
    incoherent: float
    coherent: float
    trace: float
    mlp: tuple[float, float]
    bias: tuple[float, float, float]
    skip_attention: float
    skip_mlp: float
    norm: str
    self_bias: float
    centred: bool
    value: Curve
    slope: Curve


@dataclass(frozen=True)
class Positions:
    """The stream behind a block.

    Args:
        gram: (T, T), mean of x_t · x_u ÷ D, with the tokens' sizes on its diagonal.
        architecture: of the block.
        rows: of its attention; None for the input.
        middle: the Gram matrix behind its attention, before a post-norm.
    """

    gram: Tensor
    architecture: Decoder
    rows: Rows | None = None
    middle: Tensor | None = None

    def cosine(self, last: int | None = None) -> float:
        """Mean cosine between different tokens, of all or the last few."""
        first = len(self.gram) - (last or len(self.gram))
        cosines, n = unit(self.gram)[0][first:, first:], len(self.gram) - first
        return float((cosines.sum() - n) / (n * (n - 1)))


def decoder(
    depth: int,
    tokens: int,
    beta: float,
    *,
    incoherent: float,
    coherent: float,
    trace: float = 0.0,
    mlp_gain: tuple[float, float] = (1.0, 1.0),
    bias: tuple[float, float, float] = (0.0, 0.0, 0.0),
    residual_attention: float = 1.0,
    residual_mlp: float = 1.0,
    norm: str = "pre",
    kernel: Kernel,
    cosine: float = 0.2,
    self_bias: float = 0.0,
    centred: bool = False,
) -> Iterator[Positions]:
    """The stream of a random decoder, the input first, then behind each block.

    Args as `wc.propagate` has them, but for:
        incoherent, coherent, trace: its triple `value_gain`.
        bias: variances of the biases of attention, of the MLP's first and of its second matrix.
        norm: `"pre"` or `"post"`.
        kernel: of the activation.
        centred: minus 1/t on the columns that position t sees.

    >>> from wellcond.propagation.kernels import kernel
    >>> stream = decoder(2, 64, 1.0, incoherent=1.0, coherent=1.0, kernel=kernel("gelu"))
    >>> [round(behind.cosine(last=16), 3) for behind in stream]
    [0.2, 0.34, 0.447]
    """
    if norm not in ("pre", "post"):
        raise WellcondError(
            f"norm of a decoder is 'pre' or 'post', got {norm!r}: without one, positions differ in size, which the "
            "kernels do not take. Add a norm, or predict the encoder instead"
        )
    lowest = {"depth": 1.0, "tokens": 2.0, "cosine": -1 / max(tokens - 1, 1)}
    given = {"depth": depth, "tokens": tokens, "beta": beta, "incoherent": incoherent, "coherent": coherent}
    given |= {"mlp_gain": min(mlp_gain), "bias": min(bias), "cosine": cosine}
    given |= {"residual_attention": residual_attention, "residual_mlp": residual_mlp}
    for name, number in given.items():
        low, high = lowest.get(name, 0.0), 1.0 if name == "cosine" else math.inf
        if not low <= number <= high or math.isinf(number):
            raise WellcondError(f"{name} of a decoder lies between {low:.3g} and {high}, got {number}")
    value, slope = _tabulate(kernel, mlp_gain[0], bias[1])
    heat = beta * math.sqrt(math.log(tokens))
    gains, skips = (incoherent, coherent, trace), (residual_attention, residual_mlp)
    shared = Decoder(heat, *gains, mlp_gain, bias, *skips, norm, self_bias, centred, value, slope)
    gram = torch.full((tokens, tokens), float(cosine), dtype=torch.float64).fill_diagonal_(1.0)
    return _blocks(depth, gram, shared)


def _blocks(depth: int, gram: Tensor, d: Decoder) -> Iterator[Positions]:
    yield Positions(gram, d)
    for _ in range(depth):
        read, size = unit(gram)
        spread = apart(read)
        rows = causal_rows(read, spread, d.heat, d.self_bias)
        mean, along = averaged(read, rows.own, centred=d.centred)
        cross = d.skip_attention * d.trace * size[:, None] * along
        gram = d.skip_attention**2 * gram + d.coherent * mean + d.incoherent * rows.varies * spread + cross + cross.mT
        middle = gram if d.centred else gram + d.bias[0]
        read, _ = unit(middle)
        gram = d.skip_mlp**2 * (read if d.norm == "post" else middle) + d.mlp[1] * d.value(read) + d.bias[2]
        gram = unit(gram)[0] if d.norm == "post" else gram
        yield Positions(gram, d, rows, middle)


def unit(gram: Tensor) -> tuple[Tensor, Tensor]:
    """Cosines, and the tokens' root mean squares."""
    size = gram.diagonal().sqrt()
    if not bool((size > 0).all() and size.isfinite().all()):
        raise WellcondError("the stream vanishes or overflows: change a gain or a residual strength")
    return (gram / size / size[:, None]).clamp(-1.0, 1.0).fill_diagonal_(1.0), size


def apart(read: Tensor) -> Tensor:
    """1 − P: how far the different tokens that two rows see are apart."""
    t = torch.arange(1.0, len(read) + 1, dtype=torch.float64)
    upper = torch.maximum(t, t[:, None])
    lower = t + t[:, None] - upper
    common = (read.cumsum(0).cumsum(1) - lower) / (lower * (upper - 1)).clamp_min(1.0)
    common[0, 0] = 1.0  # one token has no other
    return (1 - common).clamp_min(0.0)


def averaged(read: Tensor, own: Tensor, *, centred: bool) -> tuple[Tensor, Tensor]:
    """Ā G Āᵀ and G Āᵀ, by sums over prefixes."""
    alone, each = shares(own, centred=centred)
    along = read * alone + read.cumsum(1) * each
    return alone[:, None] * along + each[:, None] * along.cumsum(0), along


def _tabulate(kernel: Kernel, gain: float, bias: float) -> tuple[Curve, Curve]:
    """K and ∂K/∂p of the cosine alone, since tokens have unit size: cubic in the angle, in which they are smooth."""
    step = math.pi / ANGLES
    angle = step * torch.arange(ANGLES + 1, dtype=torch.float64)
    p = gain * angle.cos() + bias
    q = torch.full_like(p, gain + bias)
    value, slope = kernel.value(q, p), kernel.slope(q, p)
    (bend,) = torch.gradient(slope, edge_order=2)

    def cubic(values: Tensor, rises: Tensor) -> Curve:
        def at(cosine: Tensor) -> Tensor:
            x = cosine.acos() / step
            i = x.long().clamp_max(ANGLES - 1)
            x = x - i
            left, right, whole = rises[i], rises[i + 1], values[i + 1] - values[i]
            return values[i] + x * (left + x * (3 * whole - 2 * left - right + x * (left + right - 2 * whole)))

        return at

    return cubic(value, slope * -gain * angle.sin() * step), cubic(slope, bend)
