"""Real training of small real models, and the paper's procedure written out literally: W inside W + C."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import timm
import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.nn import functional
from torch.nn.utils import parametrize
from transformers import GPT2Config, GPT2LMHeadModel

Batch = tuple[Tensor, Tensor]
WIDTH, HEADS = 24, 3


def vit(dtype: torch.dtype = torch.float64) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = timm.models.vision_transformer.VisionTransformer(
            img_size=16, patch_size=4, embed_dim=WIDTH, depth=2, num_heads=HEADS, num_classes=5, mlp_ratio=2
        )
    return model.to(dtype)


def gpt2(dtype: torch.dtype = torch.float64) -> nn.Module:
    sizes = {"vocab_size": 31, "n_positions": 16, "n_embd": WIDTH, "n_layer": 2, "n_head": HEADS}
    config = GPT2Config(**sizes, resid_pdrop=0, embd_pdrop=0, attn_pdrop=0, bos_token_id=0, eos_token_id=0)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return GPT2LMHeadModel(config).to(dtype)


MODELS: dict[str, Callable[[torch.dtype], nn.Module]] = {"vit": vit, "gpt2": gpt2}


def batches(model: nn.Module, dtype: torch.dtype, count: int) -> Iterator[Batch]:
    """Eight new samples each, the same for every run; something to learn and nothing to memorise.

    A memorised set has gradients near zero, and Adam's division by their size makes rounding errors of them.
    """
    generator = torch.Generator().manual_seed(1)
    for _ in range(count):
        if isinstance(getattr(model, "_orig_mod", model), GPT2LMHeadModel):  # compiled or not
            tokens = torch.randint(31, (8, 12), generator=generator)
            tokens[:, 1::2] = (3 * tokens[:, ::2] + 1) % 31
            yield tokens, tokens
        else:
            images = torch.randn(8, 3, 16, 16, generator=generator, dtype=torch.float64)
            yield images.to(dtype), images[:, 0, :4].mean((1, 2)).mul(8).add(2.5).clamp(0, 4).long()


def loss(model: nn.Module, batch: Batch) -> Tensor:
    inputs, targets = batch
    out = model(inputs)
    if hasattr(out, "logits"):
        return functional.cross_entropy(out.logits[:, :-1].flatten(0, 1), targets[:, 1:].flatten())
    return functional.cross_entropy(out, targets)


def optimizer_of(kind: str, model: nn.Module) -> torch.optim.Optimizer:
    parameters = list(model.parameters())
    if kind == "adamw":
        return torch.optim.AdamW(parameters, lr=1e-3, weight_decay=0.05)
    if kind == "adam":
        return torch.optim.Adam(parameters, lr=1e-3, weight_decay=0.01)
    return torch.optim.SGD(parameters, lr=1e-3, momentum=0.9, nesterov=True, weight_decay=0.01)


def train(model: nn.Module, optimizer: torch.optim.Optimizer, steps: int, share: slice = slice(None)) -> None:
    """A schedule, clipping and all; `share` is this process's part of each batch."""
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 10) * 0.998**step)
    dtype = next(model.parameters()).dtype
    for inputs, targets in batches(model, dtype, steps):
        optimizer.zero_grad()
        loss(model, (inputs[share], targets[share])).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()


class Plus(nn.Module):
    """W inside W + C, as the paper has it."""

    def __init__(self, correction: Tensor) -> None:
        super().__init__()
        self.register_buffer("correction", correction)

    def forward(self, weight: Tensor) -> Tensor:
        return weight + self.correction


def literal(model: nn.Module, strength: float) -> nn.Module:
    """λ I in each head's D × d query, key and value weight; indices written out for the two storages."""
    width = WIDTH // HEADS
    for module in list(model.modules()):
        for name in ("qkv", "c_attn"):
            owner = getattr(module, name, None)
            if not isinstance(owner, nn.Module):
                continue
            correction = torch.zeros_like(owner.weight)
            for part in range(3):
                for head in range(HEADS):
                    for i in range(width):
                        out = part * WIDTH + head * width + i
                        place = (out, i) if name == "qkv" else (i, out)  # Conv1D stores (in, out)
                        correction[place] = strength
            parametrize.register_parametrization(owner, "weight", Plus(correction))
    return model


def effective(model: nn.Module) -> dict[str, Tensor]:
    """The weights that are used, by their ordinary names, without the key biases (whose true gradient is zero)."""
    found: dict[str, Tensor] = {}
    for path, module in model.named_modules():
        if "parametrizations" in path:
            continue
        names = [name for name, _ in module.named_parameters(recurse=False)]
        for name in [*names, *getattr(module, "parametrizations", {})]:
            value = getattr(module, name).detach()
            value = (value.full_tensor() if isinstance(value, DTensor) else value).clone()
            if name == "bias" and path.endswith(("qkv", "c_attn")):
                value[WIDTH : 2 * WIDTH] = 0
            found[f"{path}.{name}"] = value
    return found


def distance(a: dict[str, Tensor], b: dict[str, Tensor]) -> float:
    assert a.keys() == b.keys()
    return max(float((a[name] - b[name]).abs().max()) for name in a)
