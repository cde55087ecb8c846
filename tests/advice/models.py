"""Real models with data of their own, and the three things that break a model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from sklearn.datasets import load_digits
from timm.models.vision_transformer import VisionTransformer
from torch import nn
from torch.nn import functional
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

import wellcond as wc

IDS, LENGTH = 61, 16


def vit() -> nn.Module:
    return VisionTransformer(img_size=16, patch_size=4, embed_dim=48, depth=3, num_heads=3, num_classes=5)


def gpt2() -> nn.Module:
    sizes = {"vocab_size": IDS, "n_positions": LENGTH, "n_embd": 48, "n_layer": 3, "n_head": 3}
    return GPT2LMHeadModel(
        GPT2Config(**sizes, resid_pdrop=0, embd_pdrop=0, attn_pdrop=0, bos_token_id=0, eos_token_id=0)
    )


def llama() -> nn.Module:
    sizes = {"vocab_size": IDS, "hidden_size": 48, "intermediate_size": 96, "num_hidden_layers": 3}
    return LlamaForCausalLM(LlamaConfig(**sizes, num_attention_heads=4, num_key_value_heads=2, head_dim=12))


BUILD: dict[str, Callable[[], nn.Module]] = {"vit": vit, "gpt2": gpt2, "llama": llama}


def fresh(kind: str, seed: int = 0) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return BUILD[kind]()


def data(kind: str, count: int = 12, size: int = 8) -> tuple[list[Any], Any]:
    """Batches with something to learn, and their loss: None for the model's own."""
    if kind == "vit":
        digits = load_digits(n_class=5)
        images = torch.tensor(digits.images, dtype=torch.float32)[: count * size].div(8).sub(1)
        images = images[:, None].repeat(1, 3, 2, 2).unflatten(0, (count, size))
        labels = torch.tensor(digits.target)[: count * size].unflatten(0, (count, size))
        return list(zip(images, labels, strict=True)), functional.cross_entropy
    drawn = torch.Generator().manual_seed(5)
    ids = torch.randint(IDS, (count, size, LENGTH), generator=drawn)
    ids[:, :, 1::2] = (3 * ids[:, :, ::2] + 1) % IDS
    return [{"input_ids": part, "labels": part} for part in ids], None


@torch.no_grad()
def broken(kind: str, what: str) -> nn.Module:
    """A fresh model with W_Q and W_K × 8 ("q"), W_O × 10 ("o"), or its embedding × 20 ("e")."""
    model = fresh(kind)
    for layer in wc.attention_layers(model):
        if "q" in what:
            for projection in (layer.query, layer.key):
                projection.write_(8 * projection.read())
        if "o" in what:
            layer.output.write_(10 * layer.output.read())
    if "e" in what and kind == "vit":
        model.patch_embed.proj.weight.mul_(20)
        model.patch_embed.proj.bias.mul_(20)
    elif "e" in what:
        model.get_input_embeddings().weight.mul_(20)
    return model


def equal_states(a: nn.Module, b: nn.Module) -> bool:
    """Whether two models hold the same parameters and buffers, to the bit."""
    one, other = a.state_dict(), b.state_dict()
    return one.keys() == other.keys() and all(torch.equal(x, other[name]) for name, x in one.items())


class CountedTime:
    """A clock of which every look takes as long, so that a probe's plan does not depend on the machine."""

    def __init__(self, each: float = 1e-3) -> None:
        self.now, self.each = 0.0, each

    def __call__(self) -> float:
        self.now += self.each
        return self.now
