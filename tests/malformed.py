"""Malformed inputs: each gives one clear error, before anything was written.

A row is what the user did wrong, the error it deserves, and a word the message must contain. Whatever happens, the
model keeps its bits, its train/eval modes and its `requires_grad` flags, and the global generator its state.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from transformers import BertConfig, BertModel, GPT2Config, GPT2Model, LlamaConfig, LlamaModel

import wellcond as wc
from wellcond.errors import WellcondError
from wellcond.testing import same_bits

Provoke = Callable[[Any, Path], object]


@dataclass(frozen=True)
class Bad:
    name: str
    build: Callable[[], Any]
    provoke: Provoke
    error: type[WellcondError]
    word: str  # or "one|another"


def make_vit(**sizes: Any) -> VisionTransformer:
    arguments = {"img_size": 16, "patch_size": 4, "embed_dim": 24, "depth": 3, "num_heads": 3, "num_classes": 5} | sizes
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return VisionTransformer(**arguments)


@cache
def vit() -> nn.Module:
    return make_vit()


@cache
def wide_vit() -> nn.Module:
    return make_vit(embed_dim=48)  # heads of 16 tell 16 positions apart


@cache
def big_vit() -> nn.Module:
    return make_vit(embed_dim=48, num_heads=6)


@cache
def bert() -> nn.Module:
    return BertModel(
        BertConfig(vocab_size=11, hidden_size=24, num_hidden_layers=2, num_attention_heads=3, intermediate_size=20)
    )


@cache
def gpt2() -> nn.Module:
    return GPT2Model(GPT2Config(vocab_size=11, n_positions=16, n_embd=24, n_layer=2, n_head=3))


def make_llama(**sizes: Any) -> nn.Module:
    config = {"vocab_size": 11, "hidden_size": 24, "intermediate_size": 20, "num_hidden_layers": 2} | sizes
    return LlamaModel(LlamaConfig(num_attention_heads=4, num_key_value_heads=2, **config))


@cache
def convnet() -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(4, 2))


class Attention(nn.Module):
    """A user's class: separate projections, as many of the usual attributes as asked."""

    def __init__(self, outs: tuple[int, int, int] = (12, 12, 12), linear: Any = nn.Linear, **attributes: Any) -> None:
        super().__init__()
        self.q_proj, self.k_proj, self.v_proj = (linear(12, out) for out in outs)
        self.o_proj = linear(outs[0], 12)
        vars(self).update(attributes)


class FusedAttention(nn.Module):
    def __init__(self, out: int = 36, heads: int = 3) -> None:
        super().__init__()
        self.qkv, self.proj, self.num_heads = nn.Linear(12, out), nn.Linear(12, 12), heads


def edited(build: Callable[[], nn.Module], edit: Callable[[Any], object]) -> Callable[[], nn.Module]:
    """A fresh model with something done to it."""

    def built() -> nn.Module:
        model = build()
        edit(model)
        return model

    return built


def stored_as(dtype: torch.dtype) -> Callable[[], nn.Module]:
    def edit(model: Any) -> None:
        qkv = model.blocks[1].attn.qkv
        qkv.weight = nn.Parameter(qkv.weight.detach().clamp(0, 1).to(dtype), requires_grad=False)

    return edited(make_vit, edit)


def empty_shards(model: nn.Module) -> None:
    for index, parameter in enumerate(model.parameters()):
        parameter.data = torch.empty(0)
        parameter.ds_id = index  # type: ignore[attr-defined]


def on_meta(build: Callable[[], nn.Module]) -> Callable[[], nn.Module]:
    def built() -> nn.Module:
        with torch.device("meta"):
            return build()

    return built


def init(scheme: Any, **arguments: Any) -> Provoke:
    return lambda model, _: wc.init_(model, scheme, **arguments)


def audit(scheme: Any, **arguments: Any) -> Provoke:
    return lambda model, _: wc.audit(model, scheme, **arguments)


def find(model: Any, _: Path) -> object:
    return wc.attention_layers(model)


def write(weight: Callable[[tuple[int, int, int]], Any]) -> Provoke:
    def provoke(model: nn.Module, _: Path) -> None:
        query = wc.attention_layers(model)[0].query
        assert query is not None
        query.write_(weight(query.shape))

    return provoke


def from_teacher(teacher: Callable[[], Any], **options: Any) -> Provoke:
    def provoke(model: nn.Module, _: Path) -> object:
        with torch.random.fork_rng(devices=[]):
            made = teacher()
        return wc.init_(model, "weight_selection", teacher=made, **options)

    return provoke


def ones(layer: wc.AttentionLayer, draw: Any) -> dict[str, Tensor]:
    return {role: torch.ones(p.shape) for role, p in layer.projections()}


def rows(error: type[WellcondError], *entries: tuple[Any, ...]) -> list[Bad]:
    return [Bad(name, build, provoke, error, word) for name, build, provoke, word in entries]


INF, NAN = float("inf"), float("nan")


@dataclass
class Before:
    """What must not change: bits, flags and modes of a model, and the global generator."""

    model: Any

    def __post_init__(self) -> None:
        self.module = self.model if isinstance(self.model, nn.Module) else nn.Identity()
        self.values = self._values()
        self.random = torch.get_rng_state()

    def _values(self) -> dict[str, Tensor]:
        tensors = [*self.module.named_parameters(), *self.module.named_buffers()]
        return {name: value.detach().clone() for name, value in tensors if not is_lazy(value)}

    def _flags(self) -> list[tuple[str, bool]]:
        return [(n, m.training) for n, m in self.module.named_modules()] + [
            (n, p.requires_grad) for n, p in self.module.named_parameters()
        ]

    def __enter__(self) -> Before:
        for index, module in enumerate(self.module.modules()):  # a mixture, so that a blanket train() or eval() shows
            module.training = index % 3 != 0
        self.flags = self._flags()
        return self

    def __exit__(self, *_: object) -> None:
        """Put the bits back, so that one failure does not make others."""
        with torch.no_grad():
            for name, value in [*self.module.named_parameters(), *self.module.named_buffers()]:
                if name in self.values and value.shape == self.values[name].shape:
                    value.copy_(self.values[name])
        torch.set_rng_state(self.random)

    def check(self) -> None:
        now = self._values()
        assert list(now) == list(self.values)
        for name, value in now.items():
            assert value.device == self.values[name].device, name
            assert value.is_meta or same_bits(value, self.values[name]), f"'{name}' changed"
        assert self._flags() == self.flags
        assert torch.equal(torch.get_rng_state(), self.random), "the global generator moved"


def refused(bad: Bad, folder: Path) -> None:
    """Do what a row says, and see its one error and that nothing changed."""
    model = bad.build()
    with Before(model) as before:
        with pytest.raises(bad.error) as caught:
            bad.provoke(model, folder)
        before.check()
    message = str(caught.value)
    assert any(word in message for word in bad.word.split("|"))
    assert "\n" not in message, "one paragraph"
    assert not message.startswith("''"), "names nothing"
    assert 15 < len(message) < 800
