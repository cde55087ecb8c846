"""`wc.propagate`: predict what a stack of random blocks does to tokens and gradients, layer by layer."""

from __future__ import annotations

from typing import Literal

from wellcond._core.checked import checked
from wellcond.propagation.activation_kernels import Activation
from wellcond.propagation.attention_statistics import Value, asymptotic_statistics, exact_statistics
from wellcond.propagation.decoder_average import propagate_decoder
from wellcond.propagation.parameters import architecture, check_parameters, in_double_precision
from wellcond.propagation.stack import Propagation, propagate_blocks
from wellcond.propagation.thresholds import Thresholds


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
        return propagate_decoder(given, thresholds)
    return propagate_blocks(
        [architecture(given)] * depth,
        cosine=given["cosine"],
        statistics=asymptotic_statistics(tokens) if theory == "asymptotic" else exact_statistics(tokens, head_dim),
        loss=loss,
        width=width,
        thresholds=thresholds,
    )
