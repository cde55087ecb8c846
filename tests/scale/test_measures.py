"""Sharpness, branch gain, trace and product spectra against plain hooks and dense arithmetic on real models."""

from __future__ import annotations

import math
from typing import Any

import pytest
import timm
import torch
from torch import Tensor, nn
from transformers import BertConfig, BertModel, GPT2Config, GPT2Model, LlamaConfig, LlamaModel

import wellcond as wc
from wellcond.scale.products import product_singular_values


def vit(**options: Any) -> nn.Module:
    torch.manual_seed(0)
    return timm.create_model(
        "vit_tiny_patch16_224", img_size=32, depth=2, embed_dim=24, num_heads=3, **options
    ).double()


def test_sharpness_of_a_vit_is_the_spread_of_its_logits() -> None:
    model, batch = vit().eval(), torch.randn(2, 3, 32, 32, dtype=torch.float64)
    given: list[Tensor] = []
    hook = model.blocks[1].attn.register_forward_pre_hook(lambda _, args: given.append(args[0]))
    model(batch)
    hook.remove()
    q, k, _ = model.blocks[1].attn.qkv(given[0]).reshape(2, 5, 3, 3, 8).permute(2, 0, 3, 1, 4)
    spread = (q @ k.mT / math.sqrt(8)).std(-1).mean((0, 2)) / math.sqrt(2 * math.log(5))
    found = wc.diagnose(model, batch, jacobian=False).layers[1]
    assert [head.beta for head in found.heads] == pytest.approx(spread.tolist(), rel=1e-9)


def test_a_causal_row_counts_the_keys_that_it_sees() -> None:
    torch.manual_seed(0)
    model = GPT2Model(GPT2Config(vocab_size=31, n_positions=16, n_embd=24, n_layer=1, n_head=3)).double().eval()
    ids = torch.randint(31, (2, 6))
    given: list[Tensor] = []
    hook = model.h[0].attn.c_attn.register_forward_hook(lambda _, args, out: given.append(out))
    model(ids)
    hook.remove()
    q, k, _ = (x.view(2, 6, 3, 8).transpose(1, 2) for x in given[0].split(24, 2))
    logits = q @ k.mT / math.sqrt(8)
    rows = [logits[:, :, n, : n + 1].std(-1) / math.sqrt(2 * math.log(n + 1)) for n in range(1, 6)]
    found = wc.diagnose(model, ids, jacobian=False).layers[0]
    expected = torch.stack(rows).mean((0, 1)).tolist()
    assert [head.beta for head in found.heads] == pytest.approx(expected, rel=1e-9)


def rms(x: Tensor) -> float:
    return float(x.square().mean().sqrt())


def watched(model: nn.Module, batch: Any, module: nn.Module) -> tuple[Tensor, Tensor]:
    """What a module is given first, and what it returns first."""
    kept: list[tuple[Tensor, Tensor]] = []

    def hook(_: nn.Module, args: Any, kwargs: Any, out: Any) -> None:
        kept.append((next(iter((*args, *kwargs.values()))), out[0] if isinstance(out, tuple) else out))

    handle = module.register_forward_hook(hook, with_kwargs=True)
    with torch.no_grad():
        model.eval()(batch)
    handle.remove()
    return kept[0]


def test_branch_gain_of_a_vit_with_layer_scale() -> None:
    model, batch = vit(init_values=0.3), torch.randn(2, 3, 32, 32, dtype=torch.float64)
    stream, _ = watched(model, batch, model.blocks[1])
    _, branch = watched(model, batch, model.blocks[1].ls1)
    found = wc.diagnose(model, batch, jacobian=False).layers[1]
    assert found.branch == pytest.approx(rms(branch) / rms(stream), rel=1e-9)


def test_branch_gain_of_a_post_norm_and_of_a_grouped_model() -> None:
    torch.manual_seed(0)
    sizes = {"vocab_size": 31, "hidden_size": 24, "num_hidden_layers": 2, "intermediate_size": 40}
    ids = torch.randint(31, (2, 6))
    bert = BertModel(BertConfig(**sizes, num_attention_heads=3)).double()
    stream, _ = watched(bert, ids, bert.encoder.layer[1])
    _, branch = watched(bert, ids, bert.encoder.layer[1].attention.output.dense)
    assert wc.diagnose(bert, ids, jacobian=False).layers[1].branch == pytest.approx(rms(branch) / rms(stream), rel=1e-9)
    llama = LlamaModel(LlamaConfig(**sizes, num_attention_heads=4, num_key_value_heads=2)).double()
    stream, _ = watched(llama, ids, llama.layers[1])
    _, branch = watched(llama, ids, llama.layers[1].self_attn.o_proj)
    found = wc.diagnose(llama, ids, jacobian=False).layers[1]
    assert found.branch == pytest.approx(rms(branch) / rms(stream), rel=1e-6)  # the module works in float32
    assert len([p for p in found.products if p.pair == "qk"]) == 4


def test_two_branches_that_are_summed_first_have_no_gain() -> None:
    torch.manual_seed(0)
    model = timm.create_model(
        "vit_small_patch16_18x2_224", img_size=32, depth=1, embed_dim=24, num_heads=3, num_classes=3
    ).double()
    found = wc.diagnose(model, torch.randn(1, 3, 32, 32, dtype=torch.float64), jacobian=False)
    assert [layer.branch for layer in found.layers] == [None, None]


def test_products_and_trace() -> None:
    torch.manual_seed(0)
    model = vit()
    layer = wc.attention_layers(model)[0]
    q, k, v, o = (p.read() for _, p in layer.projections())
    record = wc.diagnose(model, torch.randn(1, 3, 32, 32, dtype=torch.float64), jacobian=False).layers[0]
    for pair, (a, b) in {"qk": (q, k), "vo": (v, o)}.items():
        sigma = torch.linalg.svdvals(a @ b.mT)[:, :8]
        own = [product.spectrum for product in record.products if product.pair == pair]
        for head in range(3):
            assert own[head].values == pytest.approx(sigma[head].tolist(), rel=1e-9)
            assert own[head].condition == pytest.approx(float(sigma[head, 0] / sigma[head, -1]), rel=1e-9)
    assert record.trace == pytest.approx(sum(float(torch.trace(v[h] @ o[h].T)) for h in range(3)) / 24, rel=1e-9)
    wide = torch.randn(2, 3, 5, dtype=torch.float64)  # heads wider than what they read
    assert torch.allclose(product_singular_values(wide, wide), torch.linalg.svdvals(wide @ wide.mT))
