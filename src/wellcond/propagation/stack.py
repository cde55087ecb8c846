"""Predict a stack of blocks, each with its own numbers: the stream forward through all, and gradients back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from wellcond._core.argument_types import File
from wellcond._core.checked import checked
from wellcond._core.progress import bar
from wellcond._core.result_table import ResultTable, Tabular
from wellcond.errors import WellcondError
from wellcond.propagation.attention_statistics import Statistics, Value
from wellcond.propagation.block import Architecture, State, cosine_of, forward
from wellcond.propagation.block_gradients import transfer, weight_gradients
from wellcond.propagation.thresholds import Thresholds, phase_words, phases


@dataclass(frozen=True, eq=False)  # tensors are equal element by element
class Propagation(Tabular):
    """A prediction of `wc.propagate`, layer by layer.

    Args:
        cosine: mean cosine between different tokens, `depth + 1` of them, the input first.
        size: mean square of an entry of the stream, `depth + 1` of them.
        entropy: E[H] ÷ log T of the attention rows, one per layer.
        participation: E[Σ p²] of the attention rows.
        overlap: E[Σ p p'] of two attention rows.
        own: mean weight of the own token.
        query_gradient: E‖∂L/∂W_Q‖² ÷ (D T), for a loss whose gradient has unit length at each token of the output;
            that of W_K is the same for equal scales.
        value_gradient: the same of W_V.
        mlp_gradient: the same of the MLP's two matrices, a pair per layer.
        stream_gradient: mean square of the gradient with respect to the stream, `depth + 1` of them, the input's first.
        phase: bit mask of what is wrong, 0 if nothing is: see `wellcond.propagation.thresholds`.

    Float64 tensors, the layer first; where parameters were tensors, their shape follows.

    >>> import wellcond as wc
    >>> r = wc.propagate(depth=12, tokens=64, beta=0.4, value_gain=0.3)
    >>> [round(c, 2) for c in r.cosine[::4].tolist()], r.verdict
    ([0.2, 0.41, 0.5, 0.56], 'trainable')
    """

    cosine: Tensor
    size: Tensor
    entropy: Tensor
    participation: Tensor
    overlap: Tensor
    own: Tensor
    query_gradient: Tensor
    value_gradient: Tensor
    mlp_gradient: Tensor
    stream_gradient: Tensor
    phase: Tensor

    @property
    def gradient_growth(self) -> Tensor:
        """Return log10 of the squared gradient at the input ÷ that at the output, without growth of the stream."""
        return log_gradient_growth(self.stream_gradient[0] / self.stream_gradient[-1], self.size[0], self.size[-1])

    @property
    def verdict(self) -> str | list[str]:
        """Say what is wrong; one string for each prediction."""
        words = [phase_words(int(bits)) for bits in self.phase.flatten()]
        return words if self.phase.dim() else words[0]

    def records(self) -> list[dict[str, Any]]:
        """Return one row per block: the stream before it, its attention and gradients; last, what leaves the stack.

        Where parameters were tensors, `setting` counts their entries.

        >>> import wellcond as wc
        >>> rows = wc.propagate(depth=2, tokens=64, beta=0.4, value_gain=0.3).records()
        >>> [(row["block"], round(row["cosine"], 2), row["entropy"] is None) for row in rows]
        [(0, 0.2, False), (1, 0.28, False), (2, 0.33, True)]
        """
        named = {name: value for name, value in vars(self).items() if name not in ("phase", "mlp_gradient")}
        named |= {f"mlp_gradient_{i + 1}": self.mlp_gradient[:, i] for i in (0, 1)}
        flat = {name: value.reshape(len(value), -1).tolist() for name, value in named.items()}
        several = self.phase.dim() > 0
        return [
            ({"setting": setting} if several else {})
            | {"block": block}
            | {name: rows[block][setting] if block < len(rows) else None for name, rows in flat.items()}
            for setting in range(max(1, self.phase.numel()))
            for block in range(len(self.cosine))
        ]

    def _result_table(self) -> ResultTable:
        """The stream before each block, its attention, and the gradients that reach it."""
        shown = {"setting": "setting", "block": "block", "cosine": "cosine", "entropy": "entropy"}
        shown |= {"participation": "Σ p²", "own": "own weight", "stream_gradient": "gradient²"}
        rows = self.records()
        header = [name for name in shown if name in rows[0]]
        cells = [["" if row[name] is None else f"{row[name]:.3g}" for name in header] for row in rows]
        verdicts = [self.verdict] if isinstance(self.verdict, str) else self.verdict
        said = [f"{index}: {each}" if len(verdicts) > 1 else each for index, each in enumerate(verdicts)]
        return ResultTable([shown[name] for name in header], cells, notes=said)

    @checked
    def plot(self, path: File | None = None) -> Any:
        """Draw similarity, entropy and gradients against depth as a matplotlib figure, also written to a file."""
        from wellcond.plots.propagation import propagation_figure

        return propagation_figure(self, path)


def log_gradient_growth(ratio: Tensor, first: Value, last: Value) -> Tensor:
    """Return log10 of how the squared gradient changes on its way back, for streams of these sizes at both ends."""
    return (ratio * first / last).log10()


def propagate_blocks(
    blocks: Sequence[Architecture],
    *,
    cosine: Value,
    statistics: Statistics,
    size: Value = 1.0,
    loss: str = "token",
    width: int | None = None,
    thresholds: Thresholds | None = None,
) -> Propagation:
    """Predict a stack layer by layer, the input's block first.

    `cosine` and `size` (mean square of an entry) are those of the tokens at the input; the others as in `wc.propagate`.
    """
    p = torch.as_tensor(cosine * size, dtype=torch.float64)
    q: Value = torch.as_tensor(size, dtype=torch.float64)
    states: list[State] = []
    streams = [(q, p)]
    for block in bar(blocks, "blocks", unit="block"):
        q, p, state = forward(q, p, block, statistics)
        _check_stream(state.raw_end, block.norm, len(states))
        states.append(state)
        streams.append((q, p))
    a, b = torch.ones_like(p), torch.full_like(p, 0.0 if loss == "token" else 1.0)
    floors: list[Value] = [1 / width if width else 0.0]
    for block, state in zip(blocks, states, strict=True):
        floors.append(next_floor(floors[-1], state, block, width) if width else 0.0)
    gradients, back = [], [a]
    for block, state, floor in reversed(list(zip(blocks, states, floors[:-1], strict=True))):
        passing = transfer(state, block, floor)
        gradients.append(weight_gradients(a, b, state, passing, block, floor))
        a, b = passing.back(a, b)
        back.append(a)
    gradients.reverse()
    like = back[-1] + p

    def layers(values: Sequence[Value]) -> Tensor:
        return torch.stack([torch.as_tensor(value, dtype=like.dtype).expand_as(like) for value in values])

    seen = [state.attention for state in states]
    cosines = layers([cosine_of(q, p) for q, p in streams])
    sizes, back_first = layers([q for q, _ in streams]), layers(back[::-1])
    entropy, own = layers([s.entropy for s in seen]), layers([s.own for s in seen])
    rate = log_gradient_growth(back_first[0] / back_first[-1], sizes[0], sizes[-1])
    return Propagation(
        cosine=cosines,
        size=sizes,
        entropy=entropy,
        participation=layers([s.participation for s in seen]),
        overlap=layers([s.overlap for s in seen]),
        own=own,
        query_gradient=layers([g.query for g in gradients]),
        value_gradient=layers([g.value for g in gradients]),
        mlp_gradient=torch.stack([layers([g.mlp[i] for g in gradients]) for i in (0, 1)], 1),
        stream_gradient=back_first,
        phase=phases(cosines[-1], entropy.amin(0), own.amax(0), rate, thresholds or Thresholds()),
    )


def _check_stream(q: Tensor, norm: str, block: int) -> None:
    """The size before the block's last norm says whether it can be normalised."""
    if norm != "none" and not bool((q > 0).all()) and not bool(q.isinf().any()):
        raise WellcondError(
            f"nothing is left of the stream in block {block}, so it cannot be normalised: raise a gain, or a residual "
            "strength"
        )
    if not bool(q.isfinite().all()):
        raise WellcondError(f"the stream overflows after {block + 1} blocks: lower the gains or add a norm")


def next_floor(floor: Value, state: State, block: Architecture, width: Value) -> Tensor:
    """Return the relative variance of the tokens' overlaps behind a block: 1/D for random tokens, more with depth."""
    (q, p), (own, cross) = state.middle, state.activated
    branch, stream = block.mlp[1] * (own - cross), block.skip_mlp**2 * (q - p).clamp_min(0.0)
    # The MLP's hidden layer is taken to be four times as wide as the stream.
    more = (2 * stream * branch + branch**2 * 1.25) / (width * (stream + branch) ** 2)
    return floor + torch.where(stream + branch > 0, more, 0.0)
