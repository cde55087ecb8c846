"""Predict a decoder position by position, and average over positions: a `Propagation`, as for an encoder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from wellcond._core.progress import bar
from wellcond.errors import ArgumentError, WellcondError
from wellcond.propagation.causal_gradients import decoder_gradients
from wellcond.propagation.causal_stream import decoder_stream
from wellcond.propagation.parameters import architecture
from wellcond.propagation.stack import Propagation, log_gradient_growth
from wellcond.propagation.thresholds import Thresholds, phases

MAX_DECODER_TOKENS = 8192  # of which each block keeps several matrices of half a gigabyte


def propagate_decoder(given: Mapping[str, Any], thresholds: Thresholds | None) -> Propagation:
    """Predict a stack of causal blocks; the entropy of row t is divided by log t, the first row left out."""
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
