"""Models as people write them, for the laboratory on one's own: nanoGPT's, timm's, a Llama, and one of odd names."""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn
from torch.nn import functional
from transformers import LlamaConfig, LlamaForCausalLM

EXAMPLES = Path(__file__).parents[2] / "examples"
IDS, TOKENS = 17, 8


def example(name: str) -> ModuleType:
    """A file of `examples/`, imported."""
    spec = importlib.util.spec_from_file_location(f"example_{name}", EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


# nanoGPT's model.py (Karpathy, MIT licence), what is not of training left out.
@dataclass
class GPTConfig:
    block_size: int = TOKENS
    vocab_size: int = IDS
    n_layer: int = 2
    n_head: int = 2
    n_embd: int = 16
    dropout: float = 0.0
    bias: bool = True


class LayerNorm(nn.Module):
    def __init__(self, ndim: int, bias: bool) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(ndim))
        self.bias = nn.Parameter(torch.zeros(ndim)) if bias else None

    def forward(self, input: Tensor) -> Tensor:
        return functional.layer_norm(input, self.weight.shape, self.weight, self.bias, 1e-5)


class CausalSelfAttention(nn.Module):
    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.c_attn = nn.Linear(config.n_embd, 3 * config.n_embd, bias=config.bias)
        self.c_proj = nn.Linear(config.n_embd, config.n_embd, bias=config.bias)
        self.attn_dropout = nn.Dropout(config.dropout)
        self.resid_dropout = nn.Dropout(config.dropout)
        self.n_head, self.n_embd, self.dropout = config.n_head, config.n_embd, config.dropout

    def forward(self, x: Tensor) -> Tensor:
        B, T, C = x.size()
        q, k, v = self.c_attn(x).split(self.n_embd, dim=2)
        k = k.view(B, T, self.n_head, C // self.n_head).transpose(1, 2)
        q = q.view(B, T, self.n_head, C // self.n_head).transpose(1, 2)
        v = v.view(B, T, self.n_head, C // self.n_head).transpose(1, 2)
        y = functional.scaled_dot_product_attention(
            q, k, v, attn_mask=None, dropout_p=self.dropout if self.training else 0, is_causal=True
        )
        y = y.transpose(1, 2).contiguous().view(B, T, C)
        return self.resid_dropout(self.c_proj(y))


class MLP(nn.Module):
    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.c_fc = nn.Linear(config.n_embd, 4 * config.n_embd, bias=config.bias)
        self.gelu = nn.GELU()
        self.c_proj = nn.Linear(4 * config.n_embd, config.n_embd, bias=config.bias)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, x: Tensor) -> Tensor:
        return self.dropout(self.c_proj(self.gelu(self.c_fc(x))))


class Block(nn.Module):
    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.ln_1 = LayerNorm(config.n_embd, bias=config.bias)
        self.attn = CausalSelfAttention(config)
        self.ln_2 = LayerNorm(config.n_embd, bias=config.bias)
        self.mlp = MLP(config)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))


class GPT(nn.Module):
    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.config = config
        self.transformer = nn.ModuleDict(
            {
                "wte": nn.Embedding(config.vocab_size, config.n_embd),
                "wpe": nn.Embedding(config.block_size, config.n_embd),
                "drop": nn.Dropout(config.dropout),
                "h": nn.ModuleList([Block(config) for _ in range(config.n_layer)]),
                "ln_f": LayerNorm(config.n_embd, bias=config.bias),
            }
        )
        self.lm_head = nn.Linear(config.n_embd, config.vocab_size, bias=False)
        self.transformer.wte.weight = self.lm_head.weight
        self.apply(self._init_weights)
        for pn, p in self.named_parameters():
            if pn.endswith("c_proj.weight"):
                torch.nn.init.normal_(p, mean=0.0, std=0.02 / math.sqrt(2 * config.n_layer))

    def _init_weights(self, module: nn.Module) -> None:
        if isinstance(module, nn.Linear):
            torch.nn.init.normal_(module.weight, mean=0.0, std=0.02)
            if module.bias is not None:
                torch.nn.init.zeros_(module.bias)
        elif isinstance(module, nn.Embedding):
            torch.nn.init.normal_(module.weight, mean=0.0, std=0.02)

    def forward(self, idx: Tensor, targets: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        t = idx.size(1)
        pos = torch.arange(0, t, dtype=torch.long, device=idx.device)
        x = self.transformer.drop(self.transformer.wte(idx) + self.transformer.wpe(pos))
        for block in self.transformer.h:
            x = block(x)
        x = self.transformer.ln_f(x)
        if targets is None:
            return self.lm_head(x[:, [-1], :]), None
        logits = self.lm_head(x)
        loss = functional.cross_entropy(logits.view(-1, logits.size(-1)), targets.view(-1), ignore_index=-1)
        return logits, loss


def nano_gpt(**sizes: Any) -> nn.Module:
    return GPT(GPTConfig(**sizes))


def vit() -> nn.Module:
    return VisionTransformer(img_size=8, patch_size=4, embed_dim=16, depth=2, num_heads=2, num_classes=3)


def llama() -> nn.Module:
    sizes = {"vocab_size": IDS, "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 2}
    return LlamaForCausalLM(LlamaConfig(**sizes, num_attention_heads=4, num_key_value_heads=2))


def odd() -> nn.Module:
    model: nn.Module = example("own_model").build()
    return model


def numbers(count: int = 12) -> Tensor:
    """Sequences of which every second number follows from the one before."""
    ids = torch.randint(IDS, (count, TOKENS), generator=torch.Generator().manual_seed(1))
    ids[:, 1::2] = (3 * ids[:, ::2] + 1) % IDS
    return ids


def of_nano_gpt(count: int = 12) -> list[dict[str, Tensor]]:
    return [{"idx": row[:-1], "targets": row[1:]} for row in numbers(count)]


def of_llama(count: int = 12) -> list[dict[str, Any]]:
    """As `datasets` gives rows: lists of numbers, and text beside them."""
    return [{"input_ids": row.tolist(), "labels": row.tolist(), "text": "as it was"} for row in numbers(count)]


def of_vit(count: int = 12) -> list[tuple[Tensor, int]]:
    images = torch.randn(count, 3, 8, 8, generator=torch.Generator().manual_seed(2))
    return [(image, number % 3) for number, image in enumerate(images)]


def of_odd(count: int = 12) -> tuple[Tensor, Tensor]:
    x = torch.randn(count, 6, 4, generator=torch.Generator().manual_seed(3))
    return x, x.flip(1)


def both(data: Any, **more: Any) -> dict[str, Any]:
    """Two thirds to train on, the rest to test."""
    cut = 2 * len(data[0] if isinstance(data, tuple) else data) // 3
    if isinstance(data, tuple):
        return {"train": tuple(x[:cut] for x in data), "test": tuple(x[cut:] for x in data), **more}
    return {"train": data[:cut], "test": data[cut:], **more}


MODELS: dict[str, tuple[Callable[[], nn.Module], dict[str, Any]]] = {
    "nanoGPT": (nano_gpt, both(of_nano_gpt())),
    "timm": (vit, both(of_vit(), loss=functional.cross_entropy, metric="accuracy")),
    "llama": (llama, both(of_llama())),
    "odd": (odd, both(of_odd(), loss=functional.mse_loss)),
    "text": (lambda: nano_gpt(vocab_size=260), both("to be or not to be, " * 12, length=TOKENS)),
}
