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
from wellcond.propagation.activation_kernels import Kernel
from wellcond.propagation.block import Architecture
from wellcond.propagation.causal_rows import CausalRows, causal_rows, mean_attention_parts

TABULATED_ANGLES = 1024

Curve = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class DecoderBlock:
    """The block that a decoder repeats, with its MLP's kernels as functions of a cosine."""

    architecture: Architecture
    heat: float  # σ_a, the deviation of a logit of unit tokens
    value: Curve
    slope: Curve


@dataclass(frozen=True)
class CausalStream:
    """The stream behind a block."""

    gram: Tensor  # (T, T), mean of x_t · x_u ÷ D, with the tokens' sizes on its diagonal
    block: DecoderBlock  # that the decoder repeats
    rows: CausalRows | None = None  # of its attention; None for the input
    middle: Tensor | None = None  # the Gram matrix behind its attention, before a post-norm

    def cosine(self, last: int | None = None) -> float:
        """Return the mean cosine between different tokens, of all or the last few."""
        first = len(self.gram) - (last or len(self.gram))
        cosines, n = normalize_gram(self.gram)[0][first:, first:], len(self.gram) - first
        return float((cosines.sum() - n) / (n * (n - 1)))


def decoder_stream(depth: int, block: Architecture, cosine: float = 0.2) -> Iterator[CausalStream]:
    """Return the stream of a random decoder, the input first, then behind each block.

    All blocks are equal, with `"pre"` or `"post"` norms; centred attention is minus 1/t on the columns that position t
    sees. `cosine` is that of different tokens at the input.

    >>> from wellcond.propagation.activation_kernels import kernel
    >>> block = Architecture(tokens=64, beta=1.0, incoherent=1.0, coherent=1.0, kernel=kernel("gelu"))
    >>> [round(behind.cosine(last=16), 3) for behind in decoder_stream(2, block)]
    [0.2, 0.34, 0.447]
    """
    m, tokens = block, block.tokens
    if m.norm not in ("pre", "post"):
        raise WellcondError(
            f"norm of a decoder is 'pre' or 'post', got {m.norm!r}: without one, positions differ in size, which the "
            "kernels do not take. Add a norm, or predict the encoder instead"
        )
    lowest = {"depth": 1.0, "tokens": 2.0, "cosine": -1 / max(tokens - 1, 1)}
    given = {"depth": depth, "tokens": tokens, "beta": m.beta, "incoherent": m.incoherent, "coherent": m.coherent}
    given |= {"mlp_gain": min(m.mlp), "bias": min(m.bias), "cosine": cosine}
    given |= {"residual_attention": m.skip_attention, "residual_mlp": m.skip_mlp}
    for name, number in given.items():
        low, high = lowest.get(name, 0.0), 1.0 if name == "cosine" else math.inf
        if not low <= number <= high or math.isinf(number):
            raise WellcondError(f"{name} of a decoder lies between {low:.3g} and {high}, got {number}")
    heat = float(m.beta) * math.sqrt(math.log(tokens))
    gram = torch.full((tokens, tokens), float(cosine), dtype=torch.float64).fill_diagonal_(1.0)
    return _blocks(depth, gram, DecoderBlock(m, heat, *_tabulate(m.kernel, float(m.mlp[0]), float(m.bias[1]))))


def _blocks(depth: int, gram: Tensor, block: DecoderBlock) -> Iterator[CausalStream]:
    yield CausalStream(gram, block)
    m = block.architecture
    for _ in range(depth):
        read, size = normalize_gram(gram)
        spread = dissimilarity(read)
        rows = causal_rows(read, spread, block.heat, float(m.self_bias))
        mean, along = mean_attention(read, rows.own, centred=m.centred)
        cross = m.skip_attention * m.trace * size[:, None] * along
        gram = m.skip_attention**2 * gram + m.coherent * mean + m.incoherent * rows.varies * spread + cross + cross.mT
        middle = gram if m.centred else gram + m.bias[0]
        read, _ = normalize_gram(middle)
        gram = m.skip_mlp**2 * (read if m.norm == "post" else middle) + m.mlp[1] * block.value(read) + m.bias[2]
        gram = normalize_gram(gram)[0] if m.norm == "post" else gram
        yield CausalStream(gram, block, rows, middle)


def normalize_gram(gram: Tensor) -> tuple[Tensor, Tensor]:
    """Return the cosines of a Gram matrix, and the tokens' root mean squares."""
    size = gram.diagonal().sqrt()
    if not bool((size > 0).all() and size.isfinite().all()):
        raise WellcondError("the stream vanishes or overflows: change a gain or a residual strength")
    return (gram / size / size[:, None]).clamp(-1.0, 1.0).fill_diagonal_(1.0), size


def dissimilarity(read: Tensor) -> Tensor:
    """Return 1 − P, how unlike the different tokens are that two rows see."""
    t = torch.arange(1.0, len(read) + 1, dtype=torch.float64)
    upper = torch.maximum(t, t[:, None])
    lower = t + t[:, None] - upper
    common = (read.cumsum(0).cumsum(1) - lower) / (lower * (upper - 1)).clamp_min(1.0)
    common[0, 0] = 1.0  # one token has no other
    return (1 - common).clamp_min(0.0)


def mean_attention(read: Tensor, own: Tensor, *, centred: bool) -> tuple[Tensor, Tensor]:
    """Return Ā G Āᵀ and G Āᵀ for the mean attention Ā, by sums over prefixes."""
    alone, each = mean_attention_parts(own, centred=centred)
    along = read * alone + read.cumsum(1) * each
    return alone[:, None] * along + each[:, None] * along.cumsum(0), along


def _tabulate(kernel: Kernel, gain: float, bias: float) -> tuple[Curve, Curve]:
    """K and ∂K/∂p of the cosine alone, since tokens have unit size: cubic in the angle, in which they are smooth."""
    step = math.pi / TABULATED_ANGLES
    angle = step * torch.arange(TABULATED_ANGLES + 1, dtype=torch.float64)
    p = gain * angle.cos() + bias
    q = torch.full_like(p, gain + bias)
    value, slope = kernel.value(q, p), kernel.slope(q, p)
    (bend,) = torch.gradient(slope, edge_order=2)

    def cubic(values: Tensor, rises: Tensor) -> Curve:
        def at(cosine: Tensor) -> Tensor:
            x = cosine.acos() / step
            i = x.long().clamp_max(TABULATED_ANGLES - 1)
            x = x - i
            left, right, whole = rises[i], rises[i + 1], values[i + 1] - values[i]
            return values[i] + x * (left + x * (3 * whole - 2 * left - right + x * (left + right - 2 * whole)))

        return at

    return cubic(value, slope * -gain * angle.sin() * step), cubic(slope, bend)
