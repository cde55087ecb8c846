"""`wc.propagate`: predict what a stack of random blocks does to tokens and gradients, layer by layer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import torch
from torch import Tensor

from wellcond._core.checked import checked
from wellcond._core.progress import bar
from wellcond.errors import ArgumentError, WellcondError
from wellcond.propagation.activation_kernels import Activation
from wellcond.propagation.attention_statistics import Value, asymptotic_statistics, exact_statistics
from wellcond.propagation.causal_gradients import decoder_gradients
from wellcond.propagation.causal_stream import decoder_stream
from wellcond.propagation.parameters import architecture, check_parameters, in_double_precision
from wellcond.propagation.stack import Propagation, log_gradient_growth, propagate_blocks
from wellcond.propagation.thresholds import Thresholds, phases

MAX_DECODER_TOKENS = 8192  # of which each block keeps several matrices of half a gigabyte


@checked
def propagate(
    depth: int,
    tokens: int,
    beta: Value,
    value_gain: Value | tuple[Value, Value, Value] = 1.0,
    mlp_gain: tuple[Value, Value] = (1.0, 1.0),
    bias: Value = 0.0,
    residual_attention: Value = 1.0,
    residual_mlp: Value = 1.0,
    norm: Literal["pre", "post", "none"] = "pre",
    activation: Activation = "gelu",
    cosine: Value = 0.2,
    self_bias: Value = 0.0,
    width: int | None = None,
    head_dim: int | None = None,
    attention: Literal["softmax", "centred"] = "softmax",
    causal: bool = False,
    loss: Literal["token", "pooled"] = "token",
    theory: Literal["finite", "asymptotic"] = "finite",
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
        causal: whether a token sees itself and earlier ones only; then every position is followed, and averaged at the
            end.
        loss: `"token"`: gradients differ from token to token; `"pooled"`: all have the same.
        theory: `"finite"` or `"asymptotic"`.
        thresholds: of the verdict.

    >>> import wellcond as wc
    >>> wc.propagate(depth=6, tokens=64, beta=6.0).verdict
    'entropy collapse'
    """
    given = in_double_precision(locals())
    check_parameters(given)
    if causal:
        return _propagate_decoder(given, thresholds)
    return propagate_blocks(
        [architecture(given)] * depth,
        cosine=given["cosine"],
        statistics=asymptotic_statistics(tokens) if theory == "asymptotic" else exact_statistics(tokens, head_dim),
        loss=loss,
        width=width,
        thresholds=thresholds,
    )


def _propagate_decoder(given: Mapping[str, Any], thresholds: Thresholds | None) -> Propagation:
    """Average a prediction by position over positions; the entropy of row t is divided by log t, the first left out."""
    _refuse(given)
    blocks = decoder_stream(given["depth"], architecture(given), given["cosine"])
    stream = list(bar(blocks, "blocks", total=given["depth"] + 1, unit="block"))
    back = list(decoder_gradients(stream, given["loss"]))[::-1]
    rows = [behind.rows for behind in stream if behind.rows is not None]
    cosine = _vector([behind.cosine() for behind in stream])
    size = _vector([behind.gram.diagonal().mean() for behind in stream])
    stream_gradient = _vector([*(b.gram.diagonal().mean() for b in back), 1.0])
    entropy, own = _vector([r.entropy.mean() for r in rows]), _vector([r.own.mean() for r in rows])
    rate = log_gradient_growth(stream_gradient[0] / stream_gradient[-1], size[0], size[-1])
    return Propagation(
        cosine=cosine,
        size=size,
        entropy=entropy,
        participation=_vector([r.participation.mean() for r in rows]),
        overlap=_vector([r.overlap.mean() for r in rows]),
        own=own,
        query_gradient=_vector([b.query for b in back]),
        value_gradient=_vector([b.value for b in back]),
        mlp_gradient=torch.tensor([b.mlp for b in back], dtype=torch.float64),
        stream_gradient=stream_gradient,
        phase=phases(cosine[-1], entropy.amin(), own.amax(), rate, thresholds or Thresholds()),
    )


def _refuse(given: Mapping[str, Any]) -> None:
    """Refuse parameters that the prediction by position does not have."""
    for name in ("width", "head_dim"):
        if given[name] is not None:
            raise WellcondError(f"{name} is not taken into account in a decoder: leave it out, or set causal=False")
    if given["tokens"] > MAX_DECODER_TOKENS:
        raise ArgumentError(
            f"tokens of a decoder, whose every pair of positions is followed, are at most {MAX_DECODER_TOKENS:,}; got "
            f"{given['tokens']}"
        )
    if given["theory"] == "asymptotic":
        raise WellcondError(
            "a decoder is predicted by position at finite length only: theory='finite', or causal=False"
        )
    tensors = [name for name, value in given.items() if isinstance(value, Tensor)]
    if tensors:
        raise WellcondError(f"a decoder is predicted for numbers, one at a time: {tensors[0]} is a tensor")


def _vector(values: Sequence[Tensor | float]) -> Tensor:
    return torch.tensor([float(value) for value in values], dtype=torch.float64)
