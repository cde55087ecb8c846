r"""Gradients of a random decoder, position by position: early tokens are seen by many, and gather their gradients.

The state is $B_{tu} = g_t \cdot g_u$, g the gradient of the loss with respect to the stream. Softmax rows sum to 1, and
columns that two rows share are alike, so what fluctuates is, for the $m = \min(t, u)$ columns s, s' of rows t and u,
$F_{tu} (\delta_{ss'} - 1/m)/(m - 1)$, with F their total. Values, queries and keys give

$$B \to \alpha^2 B + g_{coh} \bar A^T B \bar A + \sigma_a^2 g_{inc} (1-P)^2 S B
  + g_{inc} \sum_{m \ge s, s'} \frac{\delta_{ss'} - 1/m}{m - 1}
  \sum_{\min(t,u) = m} B_{tu} (F + \sigma_a^2 (1-P) S G)_{tu}.$$
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from wellcond.errors import WellcondError
from wellcond.propagation.causal_rows import CausalRows, mean_attention_parts
from wellcond.propagation.causal_stream import CausalStream, dissimilarity, mean_attention, normalize_gram


@dataclass(frozen=True)
class PositionGradients:
    """Gradients at one block, for a loss whose gradient has unit length at each token of the output."""

    gram: Tensor  # (T, T), mean of g_t · g_u before the block
    query: float  # E‖∂L/∂W_Q‖² ÷ (D T), and that of W_K for equal scales of both
    value: float  # the same of W_V
    mlp: tuple[float, float]  # the same of the MLP's two matrices, the second ÷ (d_ff T)


def decoder_gradients(stream: Sequence[CausalStream], loss: str = "token") -> Iterator[PositionGradients]:
    """Yield the gradients of a decoder on the way back, the last block first.

    `stream` is all of `decoder_stream`; a `"token"` loss has gradients that differ, a `"pooled"` one the same for all.

    >>> from wellcond.propagation.block import Architecture
    >>> from wellcond.propagation.causal_stream import decoder_stream
    >>> from wellcond.propagation.activation_kernels import kernel
    >>> block = Architecture(tokens=64, beta=1.0, incoherent=1.0, coherent=1.0, kernel=kernel("gelu"))
    >>> *_, first = decoder_gradients(list(decoder_stream(2, block)))
    >>> [round(float(first.gram[t, t]), 1) for t in (0, 7, 63)]
    [15.0, 6.4, 2.1]
    """
    if loss not in ("token", "pooled"):
        raise WellcondError(f"loss is one of token, pooled; got {loss!r}")
    if len(stream) < 2 or stream[0].rows is not None:
        raise WellcondError("stream begins with the input and has a block: give list(decoder_stream(…)), all of it")
    return _blocks(stream, loss)


def _blocks(stream: Sequence[CausalStream], loss: str) -> Iterator[PositionGradients]:
    n = len(stream[0].gram)
    back = torch.eye(n, dtype=torch.float64) if loss == "token" else torch.ones(n, n, dtype=torch.float64)
    for before, behind in zip(reversed(stream[:-1]), reversed(stream[1:]), strict=True):
        if behind.rows is None or behind.middle is None:
            raise WellcondError("stream is that of one decoder: give list(decoder_stream(…)), nothing else")
        back, mlp = _through_mlp(back, behind, behind.middle)
        back, query, value = _through_attention(back, before, behind.rows)
        yield PositionGradients(back, query, value, mlp)


def _through_mlp(back: Tensor, behind: CausalStream, middle: Tensor) -> tuple[Tensor, tuple[float, float]]:
    m = behind.block.architecture
    (read, size), n = normalize_gram(middle), len(middle)
    activated, slope = behind.block.value(read), behind.block.slope(read)
    if m.norm == "post":
        back = back / (m.skip_mlp**2 + m.mlp[1] * float(activated[0, 0]) + m.bias[2])  # unit tokens: the same for all
    first = float(m.mlp[1]) * float((back * slope * read).sum()) / n
    second = float((back * activated).sum()) / n
    # A norm divides the gradient by what it divides the token: in pre-norm the branch's, in post-norm all.
    branch = m.mlp[0] * m.mlp[1] * slope
    scale = size * size[:, None]
    back = back * (m.skip_mlp**2 + branch / scale) if m.norm == "pre" else back * (m.skip_mlp**2 + branch) / scale
    return back, (first, second)


def _through_attention(back: Tensor, before: CausalStream, rows: CausalRows) -> tuple[Tensor, float, float]:
    m, heat, n = before.block.architecture, before.block.heat, len(back)
    read, size = normalize_gram(before.gram)
    size = size if m.norm == "pre" else torch.ones_like(size)
    spread = dissimilarity(read)
    mean, _ = mean_attention(read, rows.own, centred=m.centred)
    value = float((back * (mean + rows.varies * spread)).sum()) / n
    query = heat * float(m.incoherent) * float((back * read * spread**2 * rows.gradient).sum()) / n

    gathered = _gather(back, rows.own, centred=m.centred)
    cross = m.skip_attention * m.trace * gathered / size[:, None]
    values = m.coherent * _gather(gathered.mT, rows.own, centred=m.centred)
    queries = heat**2 * m.incoherent * spread**2 * rows.gradient * back
    columns = _columns(back * (rows.varies + heat**2 * read * spread * rows.gradient))
    branch = (values + queries + m.incoherent * columns) / (size * size[:, None])
    return m.skip_attention**2 * back + branch + cross + cross.mT, query, value


def _gather(back: Tensor, own: Tensor, *, centred: bool) -> Tensor:
    """ĀᵀB, by sums over suffixes."""
    alone, each = mean_attention_parts(own, centred=centred)
    return alone[:, None] * back + _suffix(each[:, None] * back)


def _columns(total: Tensor) -> Tensor:
    """The part that fluctuates in the columns of pairs of rows, from its total for each pair."""
    t = torch.arange(1.0, len(total) + 1, dtype=torch.float64)
    shared = (torch.triu(total).sum(1) + torch.tril(total, -1).sum(0)) / (t - 1).clamp_min(1.0)
    shared[0] = 0.0  # one column has nothing to vary with
    later = torch.maximum(t, t[:, None]).long() - 1
    return torch.diag(_suffix(shared)) - _suffix(shared / t)[later]


def _suffix(x: Tensor) -> Tensor:
    return x.flip(0).cumsum(0).flip(0)
