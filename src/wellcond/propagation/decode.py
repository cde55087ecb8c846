"""A decoder's prediction in the words of an encoder's: averages over its positions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from wellcond.errors import ArgumentError, WellcondError
from wellcond.progress import bar
from wellcond.propagation.causal import decoder
from wellcond.propagation.causal_backward import decoder_gradients
from wellcond.propagation.kernels import kernel
from wellcond.propagation.parameters import triple
from wellcond.propagation.stack import Propagation, growth
from wellcond.propagation.verdict import Thresholds, phases

LONGEST_DECODER = 8192  # of which each block keeps several matrices of half a gigabyte


def run_decoder(given: Mapping[str, Any], thresholds: Thresholds | None) -> Propagation:
    """Predict a stack of causal blocks; the entropy of row t is divided by log t, the first row left out."""
    _refuse(given)
    incoherent, coherent, trace = triple(given["value_gain"])
    bias = given["bias"]
    shared = ("mlp_gain", "residual_attention", "residual_mlp", "norm", "cosine", "self_bias")
    blocks = bar(
        decoder(
            given["depth"],
            given["tokens"],
            given["beta"],
            incoherent=incoherent,
            coherent=coherent,
            trace=trace,
            bias=(bias, bias, bias),
            kernel=kernel(given["activation"]),
            centred=given["attention"] == "centred",
            **{name: given[name] for name in shared},
        ),
        "blocks",
        total=given["depth"] + 1,
        unit="block",
    )
    stream = list(blocks)
    back = list(decoder_gradients(stream, given["loss"]))[::-1]
    rows = [behind.rows for behind in stream if behind.rows is not None]
    cosine = _vector([behind.cosine() for behind in stream])
    size = _vector([behind.gram.diagonal().mean() for behind in stream])
    stream_gradient = _vector([*(b.gram.diagonal().mean() for b in back), 1.0])
    entropy, own = _vector([r.entropy.mean() for r in rows]), _vector([r.own.mean() for r in rows])
    rate = growth(stream_gradient[0] / stream_gradient[-1], size[0], size[-1])
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
    """What the prediction by position does not have."""
    for name in ("width", "head_dim"):
        if given[name] is not None:
            raise WellcondError(f"{name} is not taken into account in a decoder: leave it out, or set causal=False")
    if given["tokens"] > LONGEST_DECODER:
        raise ArgumentError(
            f"tokens of a decoder, whose every pair of positions is followed, are at most {LONGEST_DECODER:,}; got "
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
