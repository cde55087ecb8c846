"""`wc.propagate`: what a stack of random blocks does to tokens and gradients, layer by layer."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from wellcond.errors import WellcondError
from wellcond.propagation.block import Architecture, State, backward, forward
from wellcond.propagation.kernels import Activation, kernel
from wellcond.propagation.statistics import asymptotic, finite
from wellcond.propagation.verdict import Thresholds, phases, words

Gain = float | tuple[float, float, float]


@dataclass(frozen=True)
class Propagation:
    """A prediction, layer by layer.

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
        mlp_gradient: the same of the MLP's two matrices.
        stream_gradient: mean square of the gradient with respect to the stream, `depth + 1` of them, the input's first.
        phase: bit mask of what is wrong, 0 if nothing is: see `wellcond.propagation.verdict`.
        verdict: the same in words.

    >>> import wellcond as wc
    >>> r = wc.propagate(depth=12, tokens=64, beta=0.4, value_gain=0.3)
    >>> [round(c, 2) for c in r.cosine[::4]], r.verdict
    ([0.2, 0.41, 0.5, 0.56], 'trainable')
    """

    cosine: tuple[float, ...]
    size: tuple[float, ...]
    entropy: tuple[float, ...]
    participation: tuple[float, ...]
    overlap: tuple[float, ...]
    own: tuple[float, ...]
    query_gradient: tuple[float, ...]
    value_gradient: tuple[float, ...]
    mlp_gradient: tuple[tuple[float, float], ...]
    stream_gradient: tuple[float, ...]
    phase: int
    verdict: str

    @property
    def gradient_growth(self) -> float:
        """log10 of the squared gradient at the input ÷ that at the output, growth of the stream itself left out."""
        start, end = self.stream_gradient[0] * self.size[0], self.stream_gradient[-1] * self.size[-1]
        return math.log10(start / end) if start > 0 < end else -math.inf

    def plot(self, path: str | os.PathLike[str] | None = None) -> Any:
        """Similarity, entropy and gradients against depth as a matplotlib figure, also written to a file."""
        from wellcond.report.propagation import propagation_figure

        return propagation_figure(self, path)


def propagate(
    depth: int,
    tokens: int,
    beta: float,
    value_gain: Gain = 1.0,
    mlp_gain: tuple[float, float] = (1.0, 1.0),
    bias: float = 0.0,
    residual_attention: float = 1.0,
    residual_mlp: float = 1.0,
    norm: str = "pre",
    activation: Activation = "gelu",
    cosine: float = 0.2,
    self_bias: float = 0.0,
    width: int | None = None,
    head_dim: int | None = None,
    attention: str = "softmax",
    loss: str = "token",
    theory: str = "finite",
    thresholds: Thresholds | None = None,
) -> Propagation:
    """Predict similarity, entropy and gradients of a random Transformer at initialisation.

    Two failure modes of deep Transformers (arXiv 2505.24333) in its infinite-length limit; exact at finite length here.

    Args:
        depth: number of blocks.
        tokens: T.
        beta: β = σ_a ÷ √log T, the inverse temperature: logits of unit tokens have standard deviation σ_a.
        value_gain: variance gain of W_O W_V; or the triple of the gain of what differs between tokens, of what they
            have in common, and the trace of the product ÷ D.
        mlp_gain: variance gains of the MLP's two matrices, fan-in times entry variance.
        bias: variance of the biases of the value and of both MLP matrices.
        residual_attention: multiplies the skip around attention.
        residual_mlp: multiplies the skip around the MLP.
        norm: `"pre"`, `"post"` or `"none"`.
        activation: `"gelu"`, `"relu"`, `"tanh"`, `"erf"`, or a smooth function of a tensor.
        cosine: of different tokens at the input.
        self_bias: tr(W_QᵀW_K) ÷ √d: draws attention to the own token.
        width: D, for what finite width adds to small query gradients; infinite if None.
        head_dim: d, for the scatter of query norms; infinite if None.
        attention: `"softmax"`, or `"centred"`: minus 1/T.
        loss: `"token"`: gradients differ from token to token; `"pooled"`: all have the same.
        theory: `"finite"` or `"asymptotic"`.
        thresholds: of the verdict.

    >>> import wellcond as wc
    >>> wc.propagate(depth=6, tokens=64, beta=5.0).verdict
    'entropy-collapsed'
    """
    _check(locals())
    triple = value_gain if isinstance(value_gain, tuple) else (value_gain, value_gain, 0.0)
    architecture = Architecture(
        tokens=tokens,
        beta=beta,
        incoherent=triple[0],
        coherent=triple[1],
        trace=triple[2],
        mlp=mlp_gain,
        bias=bias,
        skip_attention=residual_attention,
        skip_mlp=residual_mlp,
        norm=norm,
        centred=attention == "centred",
        self_bias=self_bias,
    )
    statistics = asymptotic(tokens) if theory == "asymptotic" else finite(tokens, head_dim)
    moments = kernel(activation)
    q, p = 1.0, cosine
    states: list[State] = []
    sizes, cosines = [q], [cosine]
    for _ in range(depth):
        try:
            q, p, state = forward(q, p, architecture, moments, statistics)
        except ZeroDivisionError:
            raise WellcondError(
                f"nothing is left of the stream in block {len(states)}, so it cannot be normalised: raise a gain, or a "
                "residual strength"
            ) from None
        if not math.isfinite(q):
            raise WellcondError(f"the stream overflows after {len(states) + 1} blocks: lower the gains or add a norm")
        states.append(state)
        sizes.append(q)
        cosines.append(p / q if q > 0 else 1.0)
    a, b = (1.0, 0.0) if loss == "token" else (1.0, 1.0)
    floors = _floors(width, states, architecture) if width else [0.0] * depth
    streams, gradients = [a], []
    for state, floor in zip(reversed(states), reversed(floors), strict=True):
        a, b, found = backward(a, b, state, architecture, moments, floor)
        streams.append(a)
        gradients.append(found)
    gradients.reverse()
    seen = [state.attention for state in states]
    bare = Propagation(
        tuple(cosines),
        tuple(sizes),
        tuple(s.entropy for s in seen),
        tuple(s.participation for s in seen),
        tuple(s.overlap for s in seen),
        tuple(s.own for s in seen),
        tuple(g.query for g in gradients),
        tuple(g.value for g in gradients),
        tuple(g.mlp for g in gradients),
        tuple(reversed(streams)),
        0,
        "",
    )
    limits = thresholds or Thresholds()
    phase = phases(bare.cosine[-1], min(bare.entropy), max(bare.own), bare.gradient_growth, limits)
    return replace(bare, phase=phase, verdict=words(phase))


def _floors(width: int, states: list[State], architecture: Architecture) -> list[float]:
    """The relative variance of the tokens' overlaps before each block: 1/D for random tokens, more with depth."""
    found, w = [], 1 / width
    for state in states:
        found.append(w)
        (q, p), (own, cross) = state.middle, state.activated
        branch, stream = architecture.mlp[1] * (own - cross), architecture.skip_mlp**2 * max(q - p, 0.0)
        if stream + branch > 0:
            # The MLP's hidden layer is taken to be four times as wide as the stream.
            w += (2 * stream * branch + branch**2 * 1.25) / (width * (stream + branch) ** 2)
    return found


CHOICES = {
    "norm": ("pre", "post", "none"),
    "attention": ("softmax", "centred"),
    "loss": ("token", "pooled"),
    "theory": ("finite", "asymptotic"),
}


def _check(given: Mapping[str, Any]) -> None:
    """Refuse what has no meaning, before any work."""
    for name, choices in CHOICES.items():
        if given[name] not in choices:
            raise WellcondError(f"{name} is one of {', '.join(choices)}; got {given[name]!r}")
    for name, least in (("depth", 1), ("tokens", 2), ("width", 1), ("head_dim", 1)):
        value, optional = given[name], name in ("width", "head_dim")
        if not (optional and value is None) and not (_whole(value) and value >= least):
            raise WellcondError(f"{name} is a whole number of at least {least}, got {value!r}")
    for name in ("beta", "bias", "residual_attention", "residual_mlp"):
        if not _number(given[name]) or given[name] < 0:
            raise WellcondError(f"{name} is a number of at least 0, got {given[name]!r}")
    for name, sizes in (("value_gain", (1, 3)), ("mlp_gain", (2,))):
        value = given[name]
        parts = value if isinstance(value, tuple) else (value,)
        if len(parts) not in sizes or not all(map(_number, parts)) or min(parts[:2]) < 0:
            shape = "a number, or three" if len(sizes) > 1 else "a pair of numbers"
            raise WellcondError(f"{name} is {shape}, gains of at least 0; got {value!r}")
    if not _number(given["self_bias"]):
        raise WellcondError(f"self_bias is a number, got {given['self_bias']!r}")
    least = -1 / (given["tokens"] - 1)
    if not _number(given["cosine"]) or not least <= given["cosine"] <= 1:
        raise WellcondError(
            f"cosine lies between {least:.3g}, the least that {given['tokens']} tokens can have in common, and 1; "
            f"got {given['cosine']!r}"
        )


def _whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
