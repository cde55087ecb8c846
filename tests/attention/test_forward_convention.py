"""W_V W_O and Q Kᵀ in each library's own storage, written out by hand: no view is involved in the check."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

import wellcond as wc
from wellcond._core.keyed_random import Draw


def timm_vit() -> tuple[nn.Module, str, Tensor, Tensor]:
    import timm

    model = timm.create_model("vit_tiny_patch16_224", depth=1, embed_dim=48, num_heads=4)
    wc.init_(model, "mimetic", seed=0)
    attn = model.blocks[0].attn
    return model, "blocks.0.attn", attn.qkv.weight[96:].T, attn.proj.weight.T


def hf_gpt2() -> tuple[nn.Module, str, Tensor, Tensor]:
    from transformers import GPT2Config, GPT2Model

    model = GPT2Model(GPT2Config(n_layer=1, n_embd=48, n_head=4, vocab_size=11))
    wc.init_(model, "mimetic", seed=0)
    attn = model.h[0].attn
    return model, "h.0.attn", attn.c_attn.weight[:, 96:], attn.c_proj.weight


def hf_bert() -> tuple[nn.Module, str, Tensor, Tensor]:
    from transformers import BertConfig, BertModel

    model = BertModel(
        BertConfig(num_hidden_layers=1, hidden_size=48, num_attention_heads=4, intermediate_size=60, vocab_size=11)
    )
    wc.init_(model, "mimetic", seed=0)
    attn = model.encoder.layer[0].attention
    return model, "encoder.layer.0.attention", attn.self.value.weight.T, attn.output.dense.weight.T


def torch_mha() -> tuple[nn.Module, str, Tensor, Tensor]:
    model = nn.MultiheadAttention(48, 4)
    wc.init_(model, "mimetic", seed=0)
    return model, "", model.in_proj_weight[96:].T, model.out_proj.weight.T


@pytest.mark.parametrize("make", [timm_vit, hf_gpt2, hf_bert, torch_mha])
def test_mimetic_value_output_product(make) -> None:  # type: ignore[no-untyped-def]
    _, name, value, output = make()
    z = Draw(0, name).uniform("value", 1, 48, 48, first=-1)[0].double() * math.sqrt(3 / 48)
    target = 0.4 * z - 0.4 * torch.eye(48)
    product = value.detach().double() @ output.detach().double()  # x ↦ (x W_V) W_O
    assert (product - target).abs().max() < 1e-5
    assert (product.T - target).abs().max() > 1e-2  # the published bug would give the transpose


def test_uniform_attention_applies_the_product() -> None:
    """With Q = 0 every token attends to all alike, so the module computes mean(x) W_V W_O (+ biases)."""
    model, name, _, _ = timm_vit()
    layer = wc.attention_layers(model)[0]
    layer.query.write_(torch.zeros(layer.query.shape))
    attn = model.blocks[0].attn
    attn.qkv.bias.data.zero_()
    attn.proj.bias.data.zero_()
    x = torch.randn(1, 7, 48, generator=torch.Generator().manual_seed(0))
    z = Draw(0, name).uniform("value", 1, 48, 48, first=-1)[0] * math.sqrt(3 / 48)
    expected = x.mean(1) @ (0.4 * z - 0.4 * torch.eye(48))
    assert torch.allclose(attn(x)[:, 0], expected, atol=1e-5)
