"""Gradients of random layers and blocks, by autograd, against those predicted."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional

from tests.propagation.oracles import Array, equicorrelated, within
from wellcond.propagation.propagate import propagate
from wellcond.propagation.stack import Propagation


def layer_gradients(
    draws: int, beta: float, gain: float, cosine: float, loss: str, *, centred: bool = False, trace: float = 0.0
) -> dict[str, Array]:
    """‖∂L/∂W‖² ÷ (D T), and the mean of ‖∂L/∂x_t‖², of random attention layers; ‖∂L/∂output_t‖ = 1."""
    tokens, width = 64, 128
    g = torch.Generator().manual_seed(6)
    found: dict[str, list[float]] = {"query": [], "key": [], "value": [], "stream": [], "size": [], "common": []}
    scale = math.sqrt(beta * math.sqrt(math.log(tokens)) / width)  # of an entry: σ_a² = (scale² D)²
    for _ in range(draws):
        x = equicorrelated(tokens, width, cosine, g, torch.float64).requires_grad_()
        q, k, v = (
            (s * torch.randn(width, width, generator=g, dtype=torch.float64)).requires_grad_()
            for s in (scale, scale, math.sqrt(gain / width))
        )
        v = (v.detach() + trace * torch.eye(width, dtype=torch.float64)).requires_grad_()
        a = torch.softmax((x @ q.mT) @ (x @ k.mT).mT / math.sqrt(width), dim=-1)
        out = x + (a - 1 / tokens if centred else a) @ (x @ v.mT)
        gamma = torch.randn(1 if loss == "pooled" else tokens, width, generator=g, dtype=torch.float64)
        gamma = functional.normalize(gamma, dim=-1).expand(tokens, width)
        grads = torch.autograd.grad((out * gamma).sum(), (q, k, v, x))
        gram = (out @ out.mT).detach() / width
        found["size"].append(float(gram.diagonal().mean()))
        found["common"].append(float((gram.sum() - gram.diagonal().sum()) / (tokens * (tokens - 1))))
        for name, grad in zip(("query", "key", "value", "stream"), grads, strict=True):
            per = tokens if name == "stream" else width * tokens
            found[name].append(float(grad.square().sum()) / per)
    return {name: np.array(values) for name, values in found.items()}


def one_layer(beta: float, gain: Any, cosine: float, loss: str, **kwargs: Any) -> Propagation:
    """A block whose MLP does nothing."""
    return propagate(1, 64, beta, gain, (0.0, 0.0), norm="none", cosine=cosine, loss=loss, **kwargs)


@pytest.mark.parametrize("beta", [0.5, 1.0, 2.0])
def test_autograd_through_one_layer_finds_the_gradients_predicted(beta: float) -> None:
    sample = layer_gradients(16, beta, 0.5, 0.2, "token")
    found = one_layer(beta, 0.5, 0.2, "token")
    for name, predicted in (
        ("query", found.query_gradient[0]),
        ("key", found.query_gradient[0]),
        ("value", found.value_gradient[0]),
        ("stream", found.stream_gradient[0]),
    ):
        # Sixteen draws of this size scatter by about 0.03.
        assert 0.9 <= sample[name].mean() / predicted <= 1.1, (name, sample[name].mean() / predicted)


def agree(sample: dict[str, Array], found: Propagation, names: Iterable[str], slack: float) -> None:
    """Gradients of one layer, drawn and predicted; W_Q and W_K have the same."""
    predicted = {"query": found.query_gradient, "key": found.query_gradient, "value": found.value_gradient}
    predicted["stream"] = found.stream_gradient
    for name in names:
        within(sample[name] / float(predicted[name][0]), 1.0, slack)


@pytest.mark.parametrize("beta", [0.5, 1.0, 2.0])
def test_autograd_finds_the_gradients_predicted_of_similar_tokens(beta: float) -> None:
    """What tokens have in common makes draws scatter by a third each, so they are judged by that."""
    sample = layer_gradients(64, beta, 0.5, 0.6, "token")
    found = one_layer(beta, 0.5, 0.6, "token")
    agree(sample, found, ("query", "key", "value", "stream"), 0.03)  # corrections of finite width: 0.02 in 300 draws


@pytest.mark.parametrize("beta", [0.5, 2.0])
def test_autograd_finds_the_gradients_predicted_of_a_pooled_loss(beta: float) -> None:
    sample = layer_gradients(64, beta, 0.5, 0.3, "pooled")
    found = one_layer(beta, 0.5, 0.3, "pooled")
    # One gradient for all tokens scatters more; a tenth beyond that is for finite width.
    agree(sample, found, ("query", "value", "stream"), 0.1)


@pytest.mark.parametrize("loss", ["token", "pooled"])
def test_autograd_finds_the_gradients_predicted_of_centred_attention(loss: str) -> None:
    """Rows that sum to zero see nothing of what tokens have in common, forward or back."""
    sample = layer_gradients(32, 1.0, 0.5, 0.4, loss, centred=True)
    found = one_layer(1.0, 0.5, 0.4, loss, attention="centred")
    agree(sample, found, ("query", "value", "stream"), 0.1)


@pytest.mark.parametrize("loss", ["token", "pooled"])
@pytest.mark.parametrize("attention", ["softmax", "centred"])
@pytest.mark.parametrize("trace", [-0.4, 0.5])
def test_a_branch_along_the_skip_is_predicted_there_and_back(loss: str, attention: str, trace: float) -> None:
    """W_O W_V = G + τ I, as mimetic initialisation and centring have it: the branch is correlated with its skip."""
    sample = layer_gradients(48, 1.0, 0.3, 0.4, loss, centred=attention == "centred", trace=trace)
    gain = 0.3 + trace**2
    # The stream's gradient through values and skip alone: the query's own has a gain of its own.
    found = one_layer(1.0, (gain, gain, trace), 0.4, loss, attention=attention)
    within(sample["size"], float(found.size[1]), 0.01)
    within(sample["common"], float(found.size[1] * found.cosine[1]), 0.01)
    within(sample["stream"] / float(found.stream_gradient[0]), 1.0, 0.1)


@pytest.mark.parametrize("norm", ["pre", "post"])
@pytest.mark.parametrize("loss", ["token", "pooled"])
def test_autograd_through_a_whole_block_finds_the_gradients_predicted(norm: str, loss: str) -> None:
    tokens, width, hidden, beta, gain, gains, cosine = 64, 128, 256, 1.5, 0.6, (1.4, 0.8), 0.3
    g = torch.Generator().manual_seed(8)
    sizes = [(width, width)] * 3 + [(hidden, width), (width, hidden)]
    variances = [beta * math.sqrt(math.log(tokens))] * 2 + [gain, *gains]

    def layer_norm(x: Tensor) -> Tensor:
        return functional.layer_norm(x, (width,))

    samples: list[list[float]] = []
    for _ in range(48):
        x = equicorrelated(tokens, width, cosine, g, torch.float64).requires_grad_()
        q, k, v, first, second = weights = [
            (math.sqrt(variance / size[1]) * torch.randn(size, generator=g, dtype=torch.float64)).requires_grad_()
            for size, variance in zip(sizes, variances, strict=True)
        ]
        y = layer_norm(x) if norm == "pre" else x
        middle = x + torch.softmax((y @ q.mT) @ (y @ k.mT).mT / math.sqrt(width), dim=-1) @ (y @ v.mT)
        middle = layer_norm(middle) if norm == "post" else middle
        y = layer_norm(middle) if norm == "pre" else middle
        end = middle + functional.gelu(y @ first.mT) @ second.mT
        end = layer_norm(end) if norm == "post" else end
        gamma = torch.randn(1 if loss == "pooled" else tokens, width, generator=g, dtype=torch.float64)
        gamma = functional.normalize(gamma, dim=-1).expand(tokens, width)
        grads = torch.autograd.grad((end * gamma).sum(), (*weights, x))
        fans = (width, width, width, width, hidden, 1)
        samples.append([float(grad.square().sum()) / (fan * tokens) for grad, fan in zip(grads, fans, strict=True)])
    found = propagate(1, tokens, beta, gain, gains, norm=norm, cosine=cosine, loss=loss)
    query = found.query_gradient[0]
    predicted = (query, query, found.value_gradient[0], *found.mlp_gradient[0], found.stream_gradient[0])
    for sample, value in zip(np.array(samples).T, predicted, strict=True):
        # A tenth for finite width and for tokens of unequal size, which mean field takes to be equal.
        within(sample / float(value), 1.0, 0.1)
