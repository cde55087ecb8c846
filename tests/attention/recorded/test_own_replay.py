"""A site as a function of its queries, keys and values: values, derivatives and precision are the module's own."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from tests.attention.recorded.models import built, rebuilt_error
from wellcond.attention.recorded.discover import discover
from wellcond.attention.recorded.own_replay import OwnReplay
from wellcond.attention.replay import project
from wellcond.attention.roles import QKV


def inputs_of(replay: OwnReplay, model: nn.Module) -> list[Tensor]:
    layer = replay.described.layer.bind(model)
    return [project(getattr(layer, role), replay.tokens[role]) for role in QKV]


def test_shapes() -> None:
    model, inputs = built("llama")
    replay = OwnReplay(discover(model, inputs).described[0])
    q, k, v = inputs_of(replay, model)
    assert (q.shape, k.shape, v.shape) == ((2, 4, 9, 8), (2, 2, 9, 8), (2, 2, 9, 8))
    assert replay.recorded().shape == (2, 4, 9, 8)
    assert not replay.joint


@pytest.mark.parametrize("name", ["llama", "samvit_base_patch16", "deberta", "llama4", "longformer"])
def test_double_precision_differs_from_single_by_its_rounding(name: str) -> None:
    model, inputs = built(name)
    for described in discover(model, inputs).described:
        error = rebuilt_error(described, model, torch.float64)
        assert 0 < error < 1e-5  # single precision rounded, double did not


def test_the_derivative_is_that_of_the_module() -> None:
    model, inputs = built("vit_tiny_patch16_224")
    attention = model.get_submodule("blocks.0.attn")
    given: list[Tensor] = []
    handle = attention.register_forward_pre_hook(lambda _, args: given.append(args[0].detach()))
    described = discover(model, inputs).described[0]
    handle.remove()
    replay, layer = OwnReplay(described), described.layer.bind(model)
    direction = torch.randn(given[0].shape, generator=torch.Generator().manual_seed(0))

    def through_replay(x: Tensor) -> Tensor:
        mixed = replay(*(project(getattr(layer, role), x) for role in QKV))
        return attention.proj(mixed.transpose(1, 2).flatten(2))

    with sdpa_kernel(SDPBackend.MATH):  # the fused kernel has no forward derivative
        wanted = torch.func.jvp(attention, (given[0],), (direction,))
    got = torch.func.jvp(through_replay, (given[0],), (direction,))
    for a, b in zip(got, wanted, strict=True):
        assert torch.allclose(a, b, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision(dtype: torch.dtype) -> None:
    model, inputs = built("llama")
    model = model.to(dtype)
    found = discover(model, inputs)
    assert len(found.described) == 2
    for described in found.described:
        assert rebuilt_error(described, model) < 8 * torch.finfo(dtype).eps  # a few roundings of each product


def test_pooled_keys_are_functions_of_all_tokens_that_were_pooled() -> None:
    model, inputs = built("mvitv2_tiny")
    replay = OwnReplay(discover(model, inputs).described[0])
    assert replay.joint
    q, k, v = inputs_of(replay, model)
    k = k.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(replay(q, k, v).square().sum(), k)
    read = int((gradient.abs().amax((0, 1, 3)) > 0).sum())
    assert read > 2 * replay.site.key.numbers.shape[1]  # 3 × 3 tokens to a key, in two sequences


def test_to_another_precision() -> None:
    model, inputs = built("mpt")
    replay = OwnReplay(discover(model, inputs).described[0])
    assert replay.to(torch.float64).tokens["key"].dtype == torch.float64
    assert replay.tokens["key"].dtype == torch.float32
