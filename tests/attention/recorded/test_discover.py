"""Discovery lists sites in order and changes nothing in the model."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from tests.attention.recorded.models import built, rebuilt_error
from wellcond.attention.recorded.discover import discover
from wellcond.errors import BatchError
from wellcond.testing import same_bits, state


def test_nothing_changes_in_the_model() -> None:
    model, inputs = built("edgenext_xx_small")
    model.train()
    before, generator = state(model), torch.get_rng_state()
    grads = [p.grad for p in model.parameters()]
    discover(model, inputs)
    assert all(module.training for module in model.modules())
    assert torch.equal(torch.get_rng_state(), generator)
    assert all(same_bits(a, b) for a, b in zip(before.values(), state(model).values(), strict=True))
    assert [p.grad for p in model.parameters()] == grads
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())


def test_a_cache_in_a_buffer_and_the_generator_are_put_back() -> None:
    class Cached(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b, self.c = (nn.Linear(4, 4) for _ in range(3))
            self.register_buffer("keys", torch.zeros(1, 6, 4))

        def forward(self, x: Tensor) -> Tensor:
            self.keys[:, :3] = self.b(x)
            noise = torch.rand(())
            return (self.a(x) @ self.keys[:, :3].mT * (1 + 0 * noise)).softmax(-1) @ self.c(x)

    model, x = Cached(), torch.randn(1, 3, 4)
    generator = torch.get_rng_state()
    (described,) = discover(model, x).described
    assert torch.equal(torch.get_rng_state(), generator)
    assert not bool(model.get_buffer("keys").any())
    assert rebuilt_error(described, model) < 1e-5


def test_a_cache_that_is_given_stays_as_it_was() -> None:
    transformers = pytest.importorskip("transformers")
    model, inputs = built("llama")
    cache = transformers.DynamicCache(config=model.config)
    with torch.no_grad():
        model(**inputs, past_key_values=cache)
    length = cache.get_seq_length()
    found = discover(model, {"input_ids": inputs["input_ids"][:, :2], "past_key_values": cache})
    assert cache.get_seq_length() == length
    assert len(found.described) == 2
    for described in found.described:
        assert described.site.scores.result.shape[-1] == length + 2
        assert rebuilt_error(described, model) < 1e-5


def test_shared_weights_are_described_at_each_use() -> None:
    model, inputs = built("albert")
    first, second = (described.layer for described in discover(model, inputs).described)
    assert (first.query, first.key, first.value) == (second.query, second.key, second.value)


def test_encoder_and_decoder() -> None:
    model, inputs = built("bart")
    layers = [described.layer for described in discover(model, inputs).described]
    assert [layer.name for layer in layers] == [
        "encoder.layers.0.self_attn",
        "decoder.layers.0.self_attn",
        "decoder.layers.0.encoder_attn",
    ]
    assert [layer.cross for layer in layers] == [False, False, True]


def test_a_model_without_attention_has_no_sites() -> None:
    found = discover(nn.Sequential(nn.Linear(4, 4), nn.Softmax(-1), nn.Linear(4, 4)), torch.randn(2, 4))
    assert (found.described, found.undescribable) == ([], [])


def test_a_batch_that_does_not_fit_is_an_error_of_the_batch() -> None:
    model, _ = built("vit_tiny_patch16_224")
    with pytest.raises(BatchError, match="cannot be run on"):
        discover(model, torch.randn(2, 7))


def test_recurrent_layers_are_no_sites() -> None:
    model, inputs = built("qwen3_next")
    assert [described.layer.name for described in discover(model, inputs).described] == ["layers.1.self_attn"]


def test_channel_attention() -> None:
    model, inputs = built("xcit_nano_12_p16_224")
    kinds = {described.layer.name: described.layer.kind for described in discover(model, inputs).described}
    assert kinds == {
        "blocks.0.attn": "channel",
        "blocks.1.attn": "channel",
        "cls_attn_blocks.0.attn": "softmax",
        "cls_attn_blocks.1.attn": "softmax",
    }


def test_compiled_models_run_eagerly() -> None:
    model, inputs = built("vit_tiny_patch16_224")
    wanted = [described.layer.query for described in discover(model, inputs).described]
    model.compile()
    assert [described.layer.query for described in discover(model, inputs).described] == wanted
