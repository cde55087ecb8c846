"""The block around an attention layer, against what the configuration of each model says."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import wellcond as wc
from tests.cases import CASES
from wellcond.attention.paths import resolve
from wellcond.testing import same_bits, state


@pytest.mark.parametrize("name", CASES)
def test_blocks_are_numbered_and_their_matrices_fit(name: str) -> None:
    layers = wc.attention_layers(CASES[name].model())
    for stack in {block.stack for block in layers.blocks}:
        members = [block for block in layers.blocks if block.stack == stack]
        assert [block.index for block in members] == list(range(len(members)))
        assert {block.depth for block in members} == {len(members)}
        assert {block.other_depth for block in members} == {len(layers.blocks) - len(members)}
    for layer in layers:
        if layer.block is None:
            continue
        width = layer.output.shape[1] if layer.output else layer.width
        for matrix in layer.block.mlp_in:
            linear = resolve(layer.root, matrix.weight.path.removesuffix(".weight"))
            convolution = isinstance(linear, nn.Conv2d)
            out = linear(torch.randn(1, width, 2, 2) if convolution else torch.randn(1, 2, width))
            assert matrix.width == out.shape[1 if convolution else -1]
            assert matrix.shape[1] == width
        for matrix in layer.block.mlp_out:
            assert matrix.shape[1] == width  # (1, out, in), as an output projection
        for norm in layer.block.norms:
            assert "Norm" in type(resolve(layer.root, norm)).__name__


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        # stack, index, depth, matrices of the MLP in and out, norm position
        ("torch-encoder", [("", 0, 1, 1, 1, "post")]),
        ("timm-vit", [("", 0, 2, 1, 1, "pre"), ("", 1, 2, 1, 1, "pre")]),
        ("hf-bert", [("", 0, 2, 1, 1, "post"), ("", 1, 2, 1, 1, "post")]),
        ("hf-llama", [("", 0, 2, 2, 1, ""), ("", 1, 2, 2, 1, "")]),  # the class does not say
        ("hf-phi3", [("", 0, 2, 1, 1, ""), ("", 1, 2, 1, 1, "")]),
    ],
)
def test_known_blocks(name: str, expected: list[tuple[object, ...]]) -> None:
    blocks = wc.attention_layers(CASES[name].model()).blocks
    shown = [(b.stack, b.index, b.depth, len(b.mlp_in), len(b.mlp_out), b.norm_position) for b in blocks]
    assert shown == expected


@pytest.mark.parametrize("name", ["hf-t5", "hf-bart", "hf-whisper"])
def test_encoder_and_decoder_are_two_stacks(name: str) -> None:
    layers = wc.attention_layers(CASES[name].model())
    for layer in layers:
        assert layer.block is not None
        assert layer.block.stack == ("decoder" if "decoder" in layer.name else "encoder")
    in_decoder = [layer for layer in layers if layer.block.stack == "decoder"]
    assert len(in_decoder) == 2 * in_decoder[0].block.depth  # self and cross share a block


def test_embeddings_of_tfixup() -> None:
    model = CASES["hf-bert"].model()
    before = state(model)
    wc.init_(model, "tfixup", seed=0)
    words = model.embeddings.word_embeddings
    assert not words.weight[words.padding_idx].any()
    rows = torch.cat([words.weight[: words.padding_idx], words.weight[words.padding_idx + 1 :]]).detach().double()
    std = rows.shape[1] ** -0.5 * (9 * 2) ** -0.25
    assert float(rows.square().mean().sqrt()) == pytest.approx(std, rel=5 / (2 * rows.numel()) ** 0.5)
    for name in ("embeddings.position_embeddings.weight", "embeddings.token_type_embeddings.weight"):
        assert same_bits(model.get_parameter(name).detach(), before[name])
    partial = CASES["hf-bert"].model()
    wc.init_(partial, "tfixup", seed=0, layers="encoder.layer.0.*")
    name = "embeddings.word_embeddings.weight"
    assert same_bits(partial.get_parameter(name).detach(), before[name])


def test_layer_facts() -> None:
    assert wc.attention_layers(CASES["timm-vit-qk-norm"].model())[0].qk_norm
    assert not wc.attention_layers(CASES["timm-vit"].model())[0].qk_norm
    assert wc.attention_layers(CASES["hf-llama"].model())[0].rotary
    assert not wc.attention_layers(CASES["hf-gpt2"].model())[0].rotary
