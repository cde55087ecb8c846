"""The oracle sees every attention of models that are known, once, and nothing else."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import wellcond as wc
from tests.census import timm_models, transformers_models
from tests.census.by_hand import WIDTH, Exponentials, Router, Strided, Two
from tests.census.passes import first_call, run, watch, whole
from tests.census.steer import Steer
from wellcond.testing import same_bits, state

LAYERS = {
    "bert": 2,
    "gpt2": 2,
    "llama": 2,
    "t5": 6,
    "vit": 2,
    "vit_tiny_patch16_224": 2,
    "xcit_nano_12_p16_224": 4,
}


def build(name: str) -> tuple[nn.Module, dict[str, Any]]:
    return (timm_models if name in timm_models.MODELS else transformers_models).build(name)


@pytest.mark.parametrize("name", LAYERS)
def test_every_site_is_seen_once(name: str) -> None:
    model, inputs = build(name)
    before = state(model)
    sites = watch(model, inputs)
    layers = [layer.name for layer in wc.attention_layers(model)]
    assert len(sites) == LAYERS[name] == len(layers)
    assert all(any(f"{site.path}.".startswith(f"{layer}.") for layer in layers) for site in sites)
    assert all(site.scored for site in sites)
    assert all(same_bits(value, before[key]) for key, value in state(model).items())


def test_a_module_that_is_called_twice_is_one_place() -> None:
    model, inputs = build("albert")
    sites = watch(model, inputs)
    assert len(sites) == 2
    assert len({site.place for site in sites}) == 1


def test_two_attentions_of_one_module_are_two_places() -> None:
    sites = watch(Two().eval(), {"x": torch.randn(2, 5, WIDTH)})
    assert [site.place for site in sites] == [("", 0), ("", 1)]


def test_queries_of_learned_tokens_are_scored() -> None:
    model, inputs = build("vit_pe_core_tiny_patch16_384")
    pool = [site for site in watch(model, inputs) if "pool" in site.path]
    assert pool
    assert all(site.scored for site in pool)


def test_a_router_is_no_attention() -> None:
    assert not any(site.scored for site in watch(Router().eval(), {"x": torch.randn(2, 5, 8)}))


def test_exponentials_over_their_sum_are_a_softmax() -> None:
    (site,) = watch(Exponentials().eval(), {"x": torch.randn(2, 5, 12)})
    assert (site.how, site.heads, site.scored) == ("exp", 3, True)


def test_the_inside_of_multihead_attention_is_seen() -> None:
    layer = nn.TransformerEncoderLayer(12, 3, 20, batch_first=True).eval()
    (site,) = watch(layer, {"src": torch.randn(2, 5, 12)})
    assert (site.path, site.heads) == ("self_attn", 3)


def test_a_pinned_mixture_is_handed_on() -> None:
    model = Strided().eval()
    call = whole(model, {"x": torch.randn(2, 6, WIDTH)})
    base = run(call)
    pinned = run(call, Steer([torch.zeros_like(mixture.result) for mixture in base.mixtures]))
    assert torch.equal(pinned.mixtures[0].result, base.mixtures[0].result)
    assert torch.equal(pinned.output, model.o.bias.detach().repeat(2 * 6))


@pytest.mark.parametrize("name", ["bert", "t5", "swin", "gpt2"])
def test_a_module_alone_does_what_it_does_in_the_model(name: str) -> None:
    model, inputs = build(name)
    for site in watch(model, inputs):
        call = first_call(model, inputs, site.path)
        assert call is not None
        (alone,) = run(call).sites
        assert alone.place == site.place
        assert torch.equal(alone.logits, site.logits)


def test_held_scores_keep_their_probabilities() -> None:
    model = Strided().eval()
    call = whole(model, {"x": torch.randn(2, 6, WIDTH)})
    base = run(call)
    with torch.no_grad():
        model.q.weight.mul_(2)
    held, free = run(call, Steer(weights=base.weights)), run(call)
    assert torch.equal(held.mixtures[0].result, base.mixtures[0].result)
    assert not torch.equal(free.mixtures[0].result, base.mixtures[0].result)
