"""Malformed inputs: each gives one clear error, before anything was written.

A row is what the user did wrong, the error it deserves, and a word the message must contain. Whatever happens, the
model keeps its bits, its train/eval modes and its `requires_grad` flags, and the global generator its state.
"""

from __future__ import annotations

import importlib.metadata
import pickle
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from timm.models.vision_transformer import VisionTransformer
from timm.models.xcit import Xcit
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.nn.utils import parametrizations
from transformers import BertConfig, BertModel, GPT2Config, GPT2Model, LlamaConfig, LlamaModel

import wellcond as wc
from wellcond.attention.adapters import build
from wellcond.errors import (
    ArgumentError,
    CheckpointError,
    InapplicableError,
    LayerFilterError,
    NoAttentionError,
    SchemeError,
    WeightError,
    WellcondError,
)
from wellcond.schemes.base import _SCHEMES
from wellcond.schemes.conditioned import Conditioned
from wellcond.schemes.laws import Normal
from wellcond.schemes.normal import NormalScheme
from wellcond.testing import same_bits, state

Provoke = Callable[[Any, Path], object]


@dataclass(frozen=True)
class Bad:
    name: str
    build: Callable[[], Any]
    provoke: Provoke
    error: type[WellcondError]
    word: str  # or "one|another"


# ---- models: tiny instances of real classes ----


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
def llama() -> nn.Module:
    return make_llama()


@cache
def wide_llama() -> nn.Module:
    return make_llama(head_dim=16)  # heads · d is not D


@cache
def xcit() -> nn.Module:
    return Xcit(img_size=16, patch_size=8, embed_dim=24, depth=1, num_heads=3, cls_attn_layers=1, num_classes=5)


@cache
def encoder() -> nn.Module:
    layer = nn.TransformerEncoderLayer(24, 3, 20, batch_first=True)
    return nn.TransformerEncoder(layer, 3, enable_nested_tensor=False)


@cache
def bare() -> nn.Module:
    return nn.MultiheadAttention(24, 3)


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


class Bypassed(nn.Module):
    """Has attention and does not call it."""

    def __init__(self) -> None:
        super().__init__()
        self.attn = Attention(num_heads=3)

    def forward(self, x: Tensor) -> Tensor:
        return x


class Mine(nn.Module):
    """Known only through `register_attention`."""

    def __init__(self) -> None:
        super().__init__()
        self.mix, self.back = nn.Linear(12, 36), nn.Linear(12, 12)


def mine() -> nn.Module:
    return nn.ModuleDict({"mine": Mine(), "other": nn.MultiheadAttention(12, 3)})


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


def quantised() -> nn.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.ao.quantization.quantize_dynamic(make_vit(), {nn.Linear}, torch.qint8)


def on_meta(build: Callable[[], nn.Module]) -> Callable[[], nn.Module]:
    def built() -> nn.Module:
        with torch.device("meta"):
            return build()

    return built


# ---- what the user does ----


def init(scheme: Any, **arguments: Any) -> Provoke:
    return lambda model, _: wc.init_(model, scheme, **arguments)


def audit(scheme: Any, **arguments: Any) -> Provoke:
    return lambda model, _: wc.audit(model, scheme, **arguments)


def find(model: Any, _: Path) -> object:
    return wc.attention_layers(model)


def function(change: Callable[[dict[str, Any]], Any]) -> Provoke:
    """Initialise with a function that returns zeros for every role, changed by `change`."""

    def scheme(layer: wc.AttentionLayer, draw: Any) -> Any:
        return change({role: torch.zeros(p.shape) for role, p in layer.projections()})

    return init(scheme)


def write(weight: Callable[[tuple[int, int, int]], Any]) -> Provoke:
    def provoke(model: nn.Module, _: Path) -> None:
        query = wc.attention_layers(model)[0].query
        assert query is not None
        query.write_(weight(query.shape))

    return provoke


def instance(cls: type[wc.Scheme], **options: Any) -> wc.Scheme:
    return cls(**options)


def described(describe: Any) -> Provoke:
    """Register `describe` for `Mine`, look for layers, and forget it again."""

    def provoke(model: nn.Module, _: Path) -> object:
        from wellcond.attention import find as finder

        wc.register_attention(Mine, describe)
        try:
            return wc.init_(model, "conditioned")
        finally:
            del finder._REGISTERED[Mine]

    return provoke


def from_teacher(teacher: Callable[[], Any], **options: Any) -> Provoke:
    def provoke(model: nn.Module, _: Path) -> object:
        with torch.random.fork_rng(devices=[]):
            made = teacher()
        return wc.init_(model, "weight_selection", teacher=made, **options)

    return provoke


def from_file(make: Callable[[Path], Any], **options: Any) -> Provoke:
    """`make` writes a file into a folder and returns its path."""
    return lambda model, folder: wc.init_(model, "weight_selection", teacher=make(folder), **options)


def changed_teacher(name: str, change: Callable[[Tensor], Tensor | None]) -> Callable[[], dict[str, Tensor]]:
    def weights() -> dict[str, Tensor]:
        tensors = state(big_vit())
        new = change(tensors.pop(name))
        return tensors if new is None else tensors | {name: new}

    return weights


def teacher_file(weights: Callable[[], dict[str, Tensor]]) -> Provoke:
    def make(folder: Path) -> Path:
        save_file(weights(), folder / "teacher.safetensors")
        return folder / "teacher.safetensors"

    return from_file(make)


def raw_file(content: Callable[[], bytes], name: str = "teacher.safetensors") -> Provoke:
    def make(folder: Path) -> Path:
        (folder / name).write_bytes(content())
        return folder / name

    return from_file(make)


def safetensors_bytes(folder: Path) -> bytes:
    save_file(state(big_vit()), folder / "whole.safetensors")
    return (folder / "whole.safetensors").read_bytes()


def truncated(folder: Path) -> Path:
    content = safetensors_bytes(folder)
    (folder / "cut.safetensors").write_bytes(content[: len(content) // 2])
    return folder / "cut.safetensors"


def poisoned(value: float) -> Callable[[], nn.Module]:
    def teacher() -> nn.Module:
        model = make_vit(embed_dim=48, num_heads=6)
        with torch.no_grad():
            model.blocks[2].mlp.fc2.weight[3, 4] = value
        return model

    return teacher


def after(edit: Callable[[Any], object], use: Callable[[wc.AttentionLayer], object]) -> Provoke:
    """Use a view after the model changed under it."""

    def provoke(model: nn.Module, _: Path) -> object:
        layer = wc.attention_layers(model)[0]
        edit(model)
        try:
            return use(layer)
        finally:
            undo_edits(model)

    return provoke


def drop_module(model: Any) -> None:
    model.blocks[0].kept, model.blocks[0].attn = model.blocks[0].attn, None


def drop_parameter(model: Any) -> None:
    qkv = model.blocks[0].attn.qkv
    qkv.kept, qkv.weight = qkv.weight, None


def undo_edits(model: Any) -> None:
    block = model.blocks[0]
    if hasattr(block, "kept"):
        block.attn = block.kept
        del block.kept
    if hasattr(block.attn.qkv, "kept"):
        block.attn.qkv.weight = block.attn.qkv.kept
        del block.attn.qkv.kept


def apply_after(edit: Callable[[Any], object]) -> Provoke:
    def provoke(model: nn.Module, _: Path) -> object:
        plan = wc.plan(model, "conditioned")
        edit(model)
        try:
            return plan.apply_()
        finally:
            undo_edits(model)

    return provoke


@dataclass(frozen=True)
class Odd(wc.Scheme):
    """A third party's scheme with a mistake: a role that attention does not have."""

    def laws(self, layer: wc.AttentionLayer) -> dict[tuple[str, ...], Normal]:
        return {("gate",): Normal(0.02)}


def plugin(load: Callable[[], Any]) -> Provoke:
    """Initialise with a third party's entry point installed."""

    def provoke(model: nn.Module, _: Path) -> object:
        entry = SimpleNamespace(name="plugged", load=load, group="wellcond.schemes", value="plugged:Scheme")
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(importlib.metadata, "entry_points", lambda group: [entry])
            try:
                return wc.init_(model, "plugged")
            finally:
                _SCHEMES.pop("plugged", None)

    return provoke


def not_there() -> Any:
    raise ImportError("No module named 'plugged'")


def ones(layer: wc.AttentionLayer, draw: Any) -> dict[str, Tensor]:
    return {role: torch.ones(p.shape) for role, p in layer.projections()}


def swap(role: str, value: Any) -> Callable[[dict[str, Any]], dict[str, Any]]:
    return lambda weights: weights | {role: value}


# ---- the table ----


def rows(error: type[WellcondError], *entries: tuple[Any, ...]) -> list[Bad]:
    return [Bad(name, build, provoke, error, word) for name, build, provoke, word in entries]


SCHEMES = rows(
    SchemeError,
    ("scheme typo", vit, init("conditoned"), "conditoned"),
    ("scheme lists what there is", vit, init("nope"), "mimetic"),
    ("scheme in capitals", vit, init("Conditioned"), "Conditioned"),
    ("scheme empty", vit, init(""), "there are"),
    ("scheme a class", vit, init(Conditioned), "Conditioned"),
    ("scheme a module", vit, lambda model, _: wc.init_(model, model), "VisionTransformer"),
    ("scheme object with a bad literal", vit, init(instance(Conditioned, query="orthogonl")), "orthogonl"),
    ("scheme object with a bad number", vit, init(instance(NormalScheme, std=float("nan"))), "std"),
    ("scheme object with options", vit, init(instance(Conditioned), value_strength=2.0), "value_strength"),
    ("scheme function with options", vit, init(ones, std=2.0), "std"),
    ("scheme with a role that is none", vit, init(Odd()), "gate"),
    ("entry point that is not importable", vit, plugin(not_there), "plugged"),
    ("entry point that is no scheme", vit, plugin(lambda: 3), "plugged"),
    ("entry point that is a class of something else", vit, plugin(lambda: nn.Linear), "plugged"),
)

UNKNOWN_OPTIONS = rows(
    SchemeError,
    *(
        (f"{name}: option that does not exist", vit, init(name, strenght=1.0, **required), "strenght")
        for name, required in {
            **{info.name: {} for info in wc.schemes()},
            "critical": {"tokens": 16},
            "weight_selection": {"teacher": "t.safetensors"},
        }.items()
    ),
)

INF, NAN = float("inf"), float("nan")

OPTIONS = rows(
    SchemeError,
    ("conditioned: query typo", vit, init("conditioned", query="orthogonl"), "orthogonl"),
    ("conditioned: key None", vit, init("conditioned", key=None), "key"),
    ("conditioned: value typo", vit, init("conditioned", value="blok"), "blok"),
    ("conditioned: value a list", vit, init("conditioned", value=["shared"]), "value"),
    ("conditioned: value a tensor", vit, init("conditioned", value=torch.ones(2)), "value"),
    ("conditioned: output identity", vit, init("conditioned", output="identity"), "output"),
    ("conditioned: strength zero", vit, init("conditioned", value_strength=0), "value_strength"),
    ("conditioned: strength NaN", vit, init("conditioned", value_strength=NAN), "value_strength"),
    ("conditioned: strength infinite", vit, init("conditioned", value_strength=-INF), "value_strength"),
    ("conditioned: strength text", vit, init("conditioned", value_strength="1"), "value_strength"),
    ("conditioned: strength True", vit, init("conditioned", value_strength=True), "value_strength"),
    ("conditioned: strength a huge int", vit, init("conditioned", value_strength=10**400), "value_strength"),
    ("orthogonal: gain zero", vit, init("orthogonal", gain=0), "gain"),
    ("orthogonal: gain negative", vit, init("orthogonal", gain=-1.0), "gain"),
    ("orthogonal: gain infinite", vit, init("orthogonal", gain=INF), "gain"),
    ("orthogonal: granularity", vit, init("orthogonal", granularity="layer"), "layer"),
    ("mimetic: alpha text", vit, init("mimetic", qk_alpha="0.7"), "qk_alpha"),
    ("mimetic: beta NaN", vit, init("mimetic", vo_beta=NAN), "vo_beta"),
    ("mimetic: sign", vit, init("mimetic", qk_sign=2), "qk_sign"),
    ("mimetic: sign a tensor", vit, init("mimetic", vo_sign=torch.tensor([1, -1])), "vo_sign"),
    ("mimetic: noise", vit, init("mimetic", noise="gauss"), "gauss"),
    ("mimetic: position", vit, init("mimetic", position=True), "position"),
    ("impulse: norm zero", wide_vit, init("impulse", norm=0.0), "norm"),
    ("impulse: norm negative", wide_vit, init("impulse", norm=-7.0), "norm"),
    ("impulse: position scale zero", wide_vit, init("impulse", position_scale=0.0), "position_scale"),
    ("impulse: position scale negative", wide_vit, init("impulse", position_scale=-18.0), "position_scale"),
    ("impulse: alpha NaN", wide_vit, init("impulse", vo_alpha=NAN), "vo_alpha"),
    ("weight selection: no teacher", vit, init("weight_selection"), "teacher"),
    ("weight selection: method", vit, from_teacher(big_vit, method="first"), "method"),
    ("weight selection: blockwise", vit, from_teacher(big_vit, blockwise="yes"), "blockwise"),
    ("weight selection: depth", vit, from_teacher(big_vit, depth="last"), "depth"),
    ("dct: output", vit, init("dct", roles="o"), "roles"),
    ("dct: empty", vit, init("dct", roles=""), "roles"),
    ("dct: list", vit, init("dct", roles=["q", "k"]), "roles"),
    ("depth_scaled: alpha zero", vit, init("depth_scaled", alpha=0.0), "alpha"),
    ("depth_scaled: alpha NaN", vit, init("depth_scaled", alpha=NAN), "alpha"),
    ("depth_scaled: variant", vit, init("depth_scaled", variant="published"), "published"),
    ("tfixup: stack", vit, init("tfixup", stack="both"), "both"),
    ("tfixup: embeddings", vit, init("tfixup", embeddings="yes"), "embeddings"),
    ("deepnorm: residual", bert, init("deepnorm", residual="slots"), "slots"),
    ("deepnorm: post_norm", bert, init("deepnorm", post_norm="yes"), "post_norm"),
    ("admin: residual", bert, init("admin", residual=None), "residual"),
    ("admin: post_norm a number", bert, init("admin", post_norm=1), "post_norm"),
    ("gpt2_residual: std zero", gpt2, init("gpt2_residual", std=0.0), "std"),
    ("gpt2_residual: depth", gpt2, init("gpt2_residual", depth=12), "depth"),
    ("trunc_normal: std", vit, init("trunc_normal", std=-0.02), "std"),
    ("trunc_normal: cut", vit, init("trunc_normal", cut=0.0), "cut"),
    ("normal: std zero", vit, init("normal", std=0.0), "std"),
    ("normal: std NaN", vit, init("normal", std=NAN), "std"),
    ("normal: std None", vit, init("normal", std=None), "std"),
    ("normal: std a list", vit, init("normal", std=[0.02]), "std"),
    ("normal: std a tensor", vit, init("normal", std=torch.tensor([0.02])), "std"),
    ("xavier: gain", vit, init("xavier", gain=-1), "gain"),
    ("xavier: distribution", vit, init("xavier", distribution="gauss"), "gauss"),
    ("xavier: granularity", vit, init("xavier", granularity="layer"), "layer"),
    ("kaiming: a infinite", vit, init("kaiming", a=INF), "takes a as a number"),
    ("kaiming: a too large to square", vit, init("kaiming", a=1e200), "1e+200"),
    ("kaiming: a text", vit, init("kaiming", a="relu"), "relu"),
    ("kaiming: distribution", vit, init("kaiming", distribution="Normal"), "Normal"),
    ("critical: no tokens", vit, init("critical"), "tokens"),
    ("critical: one token", vit, init("critical", tokens=1), "tokens"),
    ("critical: tokens a float", vit, init("critical", tokens=512.0), "tokens"),
    ("critical: beta zero", vit, init("critical", tokens=16, beta=0), "beta"),
    ("critical: beta NaN", vit, init("critical", tokens=16, beta=NAN), "beta"),
    ("critical: literal", vit, init("critical", tokens=16, literal="yes"), "literal"),
    ("scale_matched: typo", vit, init("scale_matched", of="conditoned"), "conditoned"),
    ("scale_matched: None", vit, init("scale_matched", of=None), "None"),
    ("scale_matched: a class", vit, init("scale_matched", of=Conditioned), "Conditioned"),
    ("scale_matched: scheme that needs more", vit, init("scale_matched", of="critical"), "tokens"),
    ("scale_matched: function, which has no scale", vit, init("scale_matched", of=ones), "function"),
    ("centring: gamma zero", vit, init("centring", gamma=0.0), "gamma"),
    ("centring: gamma NaN", vit, init("centring", gamma=NAN), "gamma"),
    ("centring: typo", vit, init("centring", qk="conditoned"), "conditoned"),
    ("centring: sets neither q nor k", vit, init("centring", qk={"vo": "mimetic"}), "qk"),
)

# Legal in themselves, but the numbers leave the range of the arithmetic or of the storage.
OVERFLOW = rows(
    WellcondError,
    ("strength beyond float32", vit, init("conditioned", value_strength=1e39), "value_strength|qkv.weight"),
    ("std beyond float32", vit, init("normal", std=1e60), "std|qkv.weight"),
    ("mimetic beyond float32", vit, init("mimetic", qk_alpha=1e60), "qk_alpha|qkv.weight"),
    ("strength beyond float16", edited(make_vit, nn.Module.half), init("conditioned", value_strength=1e6), "float16"),
    ("std beyond float16", edited(make_vit, nn.Module.half), init("normal", std=1e6), "float16"),
    ("write beyond float16", edited(make_vit, nn.Module.half), write(lambda s: torch.full(s, 1e6)), "float16"),
)

FILTERS = rows(
    LayerFilterError,
    ("filter matches nothing", vit, init("conditioned", layers="layers.*"), "layers.*"),
    ("filter shows the names there are", vit, init("conditioned", layers="x"), "blocks.0.attn"),
    ("filter empty pattern", vit, init("conditioned", layers=""), "blocks.0.attn"),
    ("filter with one bad pattern", vit, init("conditioned", layers=["blocks.0.*", "blocks.9.*"]), "blocks.9.*"),
    ("filter picks none", vit, init("conditioned", layers=lambda layer: False), "3 layers"),
    ("filter for keep", vit, init("keep", layers="nothing"), "nothing"),
    ("filter for audit", vit, audit("conditioned", layers="nothing"), "nothing"),
    ("filter with a wrapper's name", vit, init("conditioned", layers="module.blocks.*"), "module.blocks.*"),
)

ARGUMENTS = rows(
    ArgumentError,
    ("scheme None", vit, init(None), "None"),
    ("scheme a number", vit, init(3), "got 3"),
    ("scheme a list", vit, init(["conditioned"]), "got ["),
    ("scheme a set", vit, init({"conditioned"}), "{'conditioned'}"),
    ("scheme bytes", vit, init(b"conditioned"), "b'conditioned'"),
    ("scheme a tensor", vit, init(torch.zeros(2)), "Tensor"),
    ("filter with a number", vit, init("conditioned", layers=["blocks.0.*", 1]), "1"),
    ("filter a number", vit, init("conditioned", layers=0), "0"),
    ("filter True", vit, init("conditioned", layers=True), "True"),
    ("filter a list of None", vit, init("conditioned", layers=[None]), "None"),
    ("filter of views", vit, lambda m, _: wc.init_(m, "conditioned", layers=wc.attention_layers(m)[:1]), "string"),
    ("filter one view", vit, lambda m, _: wc.init_(m, "conditioned", layers=wc.attention_layers(m)[0]), "string"),
    ("composition number as key", vit, init({1: "conditioned"}), "1"),
    ("composition a tuple of roles", vit, init({("q", "k"): "conditioned"}), "letters"),
    ("write a list", vit, write(lambda s: torch.zeros(s).tolist()), "a list"),
    ("write numpy", vit, write(lambda s: np.zeros(s, np.float32)), "ndarray"),
    ("model a state dict", dict, init("conditioned"), "{}"),
    ("model None", lambda: None, init("conditioned"), "None"),
    ("model a class", lambda: nn.MultiheadAttention, init("conditioned"), "torch.nn.Module"),
    ("model a list", lambda: [vit()], init("conditioned"), "a list"),
    ("model a name", lambda: "timm:vit_tiny_patch16_224", init("conditioned"), "timm:vit"),
    ("model a state dict, layers", dict, find, "{}"),
    ("model a state dict, audit", dict, audit("conditioned"), "{}"),
    ("seed a float", vit, init("conditioned", seed=1.5), "1.5"),
    ("seed text", vit, init("conditioned", seed="0"), "seed"),
    ("seed None", vit, init("conditioned", seed=None), "seed"),
    ("seed True", vit, init("conditioned", seed=True), "seed"),
    ("seed a tensor", vit, init("conditioned", seed=torch.tensor(1)), "seed"),
    ("seed a generator", vit, init("conditioned", seed=torch.Generator()), "seed"),
    ("generator a number", vit, init("conditioned", generator=0), "torch.Generator"),
    ("generator numpy's", vit, init("conditioned", generator=np.random.default_rng(0)), "torch.Generator"),
    ("generator a class", vit, init("conditioned", generator=torch.Generator), "torch.Generator"),
    ("on_inapplicable typo", vit, init("conditioned", on_inapplicable="ignore"), "ignore"),
    ("on_inapplicable None", vit, init("conditioned", on_inapplicable=None), "on_inapplicable"),
    ("on_inapplicable a list", vit, init("conditioned", on_inapplicable=["skip"]), "on_inapplicable"),
)

COMPOSITIONS = rows(
    SchemeError,
    ("composition empty", vit, init({}), "empty"),
    ("composition unknown letters", vit, init({"qx": "conditioned"}), "qx"),
    ("composition misspelt name", vit, init({"querry": "conditioned"}), "querry"),
    ("composition letter twice", vit, init({"qq": "conditioned"}), "qq"),
    ("composition empty key", vit, init({"": "conditioned"}), "letters"),
    ("composition a role twice", vit, init({"qk": "conditioned", "kv": "normal"}), "key"),
    ("composition a typo inside", vit, init({"qk": "conditoned"}), "conditoned"),
    ("composition None inside", vit, init({"qk": None}), "None"),
    ("composition an option inside", vit, init({"qk": ("conditioned", {"strenght": 1})}), "strenght"),
    ("composition a tuple of one", vit, init({"qk": ("conditioned",)}), "conditioned"),
    ("composition a tuple of three", vit, init({"qk": ("conditioned", {}, 3)}), "conditioned"),
    ("composition options that are no dict", vit, init({"qk": ("conditioned", 3)}), "3"),
    ("composition query of mimetic", vit, init({"q": "mimetic"}), "mimetic"),
    ("composition value of mimetic", vit, init({"qkv": "mimetic"}), "value and output"),
    ("composition key of impulse", wide_vit, init({"k": "impulse", "q": "normal"}), "impulse"),
    ("composition of weight selection", vit, init({"qk": ("weight_selection", {"teacher": "t"})}), "weight_selection"),
    ("composition with options", vit, init({"qk": "conditioned"}, value_strength=2.0), "value_strength"),
    ("composition that sets nothing", vit, init({"mlp": "conditioned"}), "mlp"),
    ("composition inside a composition", vit, init({"qk": {"vo": "mimetic"}}), "qk"),
    ("composition of a function that breaks", vit, init({"qk": lambda layer, draw: None}), "NoneType"),
    ("composition audit of a function", vit, audit({"qk": ones, "vo": "normal"}), "function"),
)

FUNCTIONS = [
    *rows(
        SchemeError,
        ("function returns None", vit, function(lambda w: None), "NoneType"),
        ("function returns a tensor", vit, function(lambda w: w["query"]), "Tensor"),
        ("function returns a list", vit, function(lambda w: list(w.values())), "list"),
        ("function returns lists", vit, function(lambda w: {r: x.tolist() for r, x in w.items()}), "tensor"),
        ("function returns numpy", vit, function(lambda w: {r: x.numpy() for r, x in w.items()}), "tensor"),
        ("function returns an unknown role", vit, function(swap("gate", torch.zeros(1))), "gate"),
        ("function returns a letter", vit, function(lambda w: {"q": w["query"]}), "'q'"),
        ("function returns a number as role", vit, function(lambda w: {0: w["query"]}), "0"),
        ("function audited", vit, audit(ones), "function"),
    ),
    *rows(
        WeightError,
        ("function wrong shape", vit, function(lambda w: w | {"key": w["key"].mT}), "(3, 24, 8)"),
        ("function one head", vit, function(lambda w: w | {"key": w["key"][:1]}), "(1, 24, 8)"),
        ("function fused", vit, function(swap("query", torch.zeros(24, 24))), "(24, 24)"),
        ("function NaN", vit, function(lambda w: w | {"output": w["output"] * NAN}), "proj.weight"),
        ("function infinite", vit, function(lambda w: w | {"value": w["value"] + INF}), "finite"),
        ("function integers", vit, function(lambda w: w | {"value": w["value"].long()}), "qkv.weight"),
        ("function complex", vit, function(lambda w: w | {"value": w["value"].cfloat()}), "qkv.weight"),
        ("function on meta", vit, function(lambda w: w | {"value": w["value"].to("meta")}), "meta"),
    ),
]

WRITES = rows(
    WeightError,
    ("write transposed", vit, write(lambda s: torch.zeros(s).mT), "(3, 8, 24)"),
    ("write one head, to be broadcast", vit, write(lambda s: torch.zeros(1, *s[1:])), "(1, 24, 8)"),
    ("write stored shape", vit, write(lambda s: torch.zeros(24, 24)), "(heads, D, d)"),
    ("write a number", vit, write(lambda s: torch.tensor(0.0)), "(3, 24, 8)"),
    ("write NaN", vit, write(lambda s: torch.full(s, NAN)), "finite"),
    ("write infinity in one entry", vit, write(lambda s: torch.zeros(s).index_fill(0, torch.tensor(2), INF)), "finite"),
    ("write integers", vit, write(lambda s: torch.zeros(s, dtype=torch.long)), "floating-point"),
    ("write booleans", vit, write(lambda s: torch.zeros(s, dtype=torch.bool)), "floating-point"),
    ("write a meta tensor", vit, write(lambda s: torch.zeros(s, device="meta")), "meta"),
    ("write to a view of nothing", vit, lambda m, _: replace(wc.attention_layers(m)[0].key, root=None).read(), "bound"),
)

# Found by structure alone, so that what stands in the way is the reason it is not claimed.
STRUCTURE = rows(
    WellcondError,
    (
        "empty ZeRO-3 shards, own class",
        edited(lambda: Attention(num_heads=3), empty_shards),
        init("conditioned"),
        "ZeRO-3",
    ),
    (
        "lazy weights",
        lambda: Attention(linear=lambda i, o: nn.LazyLinear(o), num_heads=3),
        init("conditioned"),
        "batch",
    ),
)

STORAGE = rows(
    WeightError,
    ("int8 weights", stored_as(torch.int8), init("conditioned"), "torch.int8"),
    ("uint8 weights", stored_as(torch.uint8), init("conditioned"), "torch.uint8"),
    ("float8 weights", stored_as(torch.float8_e4m3fn), init("conditioned"), "torch.float8_e4m3fn"),
    ("complex weights", stored_as(torch.complex64), init("conditioned"), "torch.complex64"),
    ("int8 weights audited", stored_as(torch.int8), audit("conditioned"), "blocks.1.attn.qkv.weight"),
    (
        "int8 output, untouched by nobody",
        edited(
            make_vit,
            lambda m: setattr(m.blocks[1].attn.proj, "weight", nn.Parameter(torch.zeros(24, 24).char(), False)),
        ),
        init("normal"),
        "proj.weight",
    ),
    ("dynamically quantised", quantised, init("conditioned"), "quantised"),
    ("empty ZeRO-3 shards, timm", edited(make_vit, empty_shards), init("conditioned"), "ZeRO-3"),
    ("empty ZeRO-3 shards, transformers", edited(make_llama, empty_shards), init("conditioned"), "ZeRO-3"),
    (
        "empty ZeRO-3 shards, torch",
        edited(lambda: nn.MultiheadAttention(24, 3), empty_shards),
        init("conditioned"),
        "ZeRO-3",
    ),
    (
        "orthogonal parametrisation",
        edited(make_vit, lambda m: parametrizations.orthogonal(m.blocks[1].attn.qkv)),
        init("conditioned"),
        "blocks.1.attn.qkv.weight",
    ),
    (
        "weight norm",
        edited(make_vit, lambda m: parametrizations.weight_norm(m.blocks[1].attn.qkv)),
        init("conditioned"),
        "parametrisation",
    ),
    (
        "spectral norm",
        edited(make_vit, lambda m: parametrizations.spectral_norm(m.blocks[1].attn.qkv)),
        init("conditioned"),
        "parametrisation",
    ),
    (
        "old weight norm",
        edited(make_vit, lambda m: nn.utils.weight_norm(m.blocks[1].attn.qkv)),
        init("conditioned"),
        "weight norm",
    ),
    (
        "old spectral norm",
        edited(make_vit, lambda m: nn.utils.spectral_norm(m.blocks[1].attn.qkv)),
        init("conditioned"),
        "spectral norm",
    ),
    (
        "parametrised, nn.MultiheadAttention",
        edited(lambda: nn.MultiheadAttention(24, 3), lambda m: parametrizations.weight_norm(m, "in_proj_weight")),
        init("conditioned"),
        "in_proj_weight",
    ),
    (
        "parametrised, transformers",
        edited(make_llama, lambda m: parametrizations.weight_norm(m.layers[0].self_attn.k_proj)),
        init("conditioned"),
        "k_proj.weight",
    ),
    (
        "parametrised, own class",
        edited(lambda: Attention(num_heads=3), lambda m: parametrizations.orthogonal(m.q_proj)),
        init("conditioned"),
        "q_proj.weight",
    ),
    (
        "parametrised output",
        edited(make_vit, lambda m: parametrizations.weight_norm(m.blocks[1].attn.proj)),
        init("normal"),
        "proj.weight",
    ),
    (
        "parametrised MLP",
        edited(make_vit, lambda m: parametrizations.weight_norm(m.blocks[1].mlp.fc1)),
        init("small_init"),
        "fc1.weight",
    ),
)

MODELS = [
    *rows(
        NoAttentionError,
        ("no attention", convnet, init("conditioned"), "Looked for"),
        ("no attention, what to do", convnet, find, "register_attention"),
        ("no attention, keep", convnet, init("keep"), "Sequential"),
        ("no attention, audit", convnet, audit("conditioned"), "Sequential"),
        ("no parameters", nn.Identity, init("conditioned"), "Identity"),
        ("q, k, v without a head count", Attention, init("conditioned"), "no head count"),
        ("head count of zero", lambda: Attention(num_heads=0), init("conditioned"), "head"),
        ("head count that is text", lambda: Attention(num_heads="3"), init("conditioned"), "head"),
        ("head count does not divide", lambda: Attention(num_heads=5), init("conditioned"), "5 heads"),
        ("head count does not divide, fused", lambda: FusedAttention(heads=5), init("conditioned"), "5 heads"),
        ("head width contradicts", lambda: Attention(num_heads=3, head_dim=5), init("conditioned"), "q_proj"),
        ("key does not split", lambda: Attention((12, 6, 6), num_heads=3), init("conditioned"), "k_proj"),
        ("value does not split", lambda: Attention((12, 12, 7), num_heads=3), init("conditioned"), "v_proj"),
    ),
    *rows(
        WellcondError,
    ),
    *rows(
        WeightError,
        ("meta, applied too early", on_meta(make_vit), lambda m, _: wc.init_(m, "conditioned").apply_(), "meta"),
        ("meta, planned and applied", on_meta(make_vit), lambda m, _: wc.plan(m, "normal").apply_(), "to_empty"),
        ("meta, audited", on_meta(make_vit), audit("conditioned"), "meta"),
        ("meta, audited against a teacher", on_meta(make_vit), audit("weight_selection", teacher=vit()), "meta"),
        (
            "meta, one layer",
            edited(make_vit, lambda m: m.blocks[2].attn.to("meta")),
            lambda m, _: wc.plan(m, "normal").apply_(),
            "meta",
        ),
        (
            "view after its module went",
            make_vit,
            after(drop_module, lambda view: view.query.read()),
            "blocks.0.attn.qkv.weight",
        ),
        (
            "write after its module went",
            make_vit,
            after(drop_module, lambda view: view.query.write_(torch.zeros(3, 24, 8))),
            "no longer",
        ),
        (
            "verify after its module went",
            make_vit,
            after(drop_module, lambda view: view.verify(torch.zeros(1, 3, 16, 16))),
            "no longer",
        ),
        ("view after its parameter went", make_vit, after(drop_parameter, lambda view: view.key.read()), "qkv.weight"),
        (
            "write after its parameter went",
            make_vit,
            after(drop_parameter, lambda view: view.key.write_(torch.zeros(3, 24, 8))),
            "make the views again",
        ),
        ("plan after its module went", make_vit, apply_after(drop_module), "no longer"),
        ("plan after its parameter went", make_vit, apply_after(drop_parameter), "make the views again"),
    ),
    *rows(
        SchemeError, ("conditions of a plan not applied", vit, lambda m, _: wc.plan(m, "normal").conditions(), "apply_")
    ),
    *rows(
        WellcondError,
        (
            "verify an input that misses the layer",
            Bypassed,
            lambda m, _: wc.attention_layers(m)[0].verify(torch.zeros(2)),
            "'attn'",
        ),
    ),
]

REGISTRATION = rows(
    WellcondError,
    ("register an instance", vit, lambda m, _: wc.register_attention(m, lambda module, name: None), "sub-class"),
    ("register a class of something else", vit, lambda m, _: wc.register_attention(dict, lambda a, b: None), "dict"),
    ("register a name", vit, lambda m, _: wc.register_attention("Attention", lambda a, b: None), "Attention"),
    ("register None", vit, lambda m, _: wc.register_attention(None, lambda a, b: None), "None"),
    ("register without a function", vit, lambda m, _: wc.register_attention(Mine, None), "describe"),
    ("register with a view", vit, lambda m, _: wc.register_attention(Mine, wc.attention_layers(m)[0]), "describe"),
    ("describe returns a number", mine, described(lambda module, name: 42), "describe"),
    ("describe returns three projections", mine, described(lambda m, n: build.fused(m, n, "mix", 3, 4)), "describe"),
    ("describe returns True", mine, described(lambda module, name: True), "describe"),
    ("describe returns the class", mine, described(lambda module, name: wc.AttentionLayer), "describe"),
    ("describe names no child", mine, described(lambda m, n: build.fused(m, n, "mx", heads=3, width=4)), "mx"),
    ("describe too many heads", mine, described(lambda m, n: build.fused(m, n, "mix", heads=4, width=4)), "head count"),
    ("describe no heads", mine, described(lambda m, n: build.fused(m, n, "mix", heads=0, width=4)), "head"),
    ("describe no heads, separate", mine, described(lambda m, n: build.separate(m, n, "mix", heads=0)), "head"),
    ("describe heads that do not divide", mine, described(lambda m, n: build.separate(m, n, "mix", heads=7)), "7"),
    (
        "describe output heads that do not divide",
        mine,
        described(lambda m, n: build.output(m, n, "back", heads=5)),
        "5",
    ),
    ("describe unknown order", mine, described(lambda m, n: build.fused(m, n, "mix", 3, 4, order="heads")), "heads"),
    (
        "describe a path that is not there",
        mine,
        described(lambda m, n: wc.AttentionLayer(n, "softmax", *build.fused(m, "elsewhere", "mix", heads=3, width=4))),
        "elsewhere",
    ),
)

TEACHERS = [
    *rows(
        CheckpointError,
        ("teacher NaN", vit, from_teacher(poisoned(NAN)), "blocks.2.mlp.fc2.weight"),
        ("teacher infinite", vit, from_teacher(poisoned(INF)), "finite"),
        ("teacher NaN in a file", vit, teacher_file(changed_teacher("pos_embed", lambda t: t * NAN)), "pos_embed"),
        ("teacher smaller", big_vit, from_teacher(vit), "smaller"),
        (
            "teacher smaller in one tensor",
            vit,
            teacher_file(changed_teacher("cls_token", lambda t: t[..., :9])),
            "cls_token",
        ),
        ("teacher with another rank", vit, teacher_file(changed_teacher("norm.bias", lambda t: t[None])), "norm.bias"),
        ("teacher lacks a tensor", vit, teacher_file(changed_teacher("norm.bias", lambda t: None)), "norm.bias"),
        ("teacher is shallower", vit, from_teacher(lambda: make_vit(depth=2)), "blocks.2"),
        ("teacher shallower, spread", vit, from_teacher(lambda: make_vit(depth=2), depth="uniform"), "2 blocks"),
        ("teacher of another family", vit, from_teacher(bert), "same family"),
        (
            "teacher not there",
            vit,
            from_teacher(lambda: "/nowhere/teacher.safetensors"),
            "/nowhere/teacher.safetensors",
        ),
        ("teacher a directory", vit, from_file(lambda folder: folder), "file"),
        ("teacher an empty name", vit, from_teacher(lambda: ""), "file"),
        ("teacher truncated", vit, from_file(truncated), "cut.safetensors"),
        ("teacher empty", vit, raw_file(lambda: b""), "teacher.safetensors"),
        ("teacher eight bytes", vit, raw_file(lambda: b"\0" * 8), "teacher.safetensors"),
        ("teacher text", vit, raw_file(lambda: b"weights, honestly\n" * 40), "teacher.safetensors"),
        ("teacher pickle", vit, raw_file(lambda: pickle.dumps({"a": 1}), "teacher.pt"), "teacher.pt"),
        ("teacher pickle says safetensors", vit, raw_file(lambda: pickle.dumps({"a": 1}), "teacher.pt"), "safetensors"),
        ("teacher without tensors", vit, teacher_file(dict), "cls_token"),
        ("teacher on meta", vit, from_teacher(on_meta(lambda: make_vit(embed_dim=48))), "meta"),
    ),
    *rows(
        WellcondError,
        ("teacher of integers", vit, teacher_file(changed_teacher("norm.bias", lambda t: t.char())), "norm.bias"),
        ("teacher quantised", vit, from_teacher(stored_as(torch.int8)), "blocks.1.attn.qkv.weight"),
        ("teacher float8", vit, from_teacher(stored_as(torch.float8_e4m3fn)), "blocks.1.attn.qkv.weight"),
        ("teacher None", vit, from_teacher(lambda: None), "NoneType"),
        ("teacher a number", vit, from_teacher(lambda: 3), "int"),
        ("teacher a state dict", vit, from_teacher(lambda: state(vit())), "dict"),
        ("teacher a class", vit, from_teacher(lambda: VisionTransformer), "teacher"),
        ("teacher without attention", vit, from_teacher(convnet), "teacher"),
        ("teacher audited, not there", vit, audit("weight_selection", teacher="/nowhere/t.safetensors"), "/nowhere"),
        (
            "teacher grouped, key smaller than the student's",
            lambda: grouped_pair(2),
            from_teacher(lambda: grouped_pair(1)),
            "qkv",
        ),
    ),
]


def grouped_pair(groups: int) -> nn.Module:
    """Fused grouped-query weights of 20 rows either way: 6 + 2·2 heads of 2, or 8 + 2·1 heads of 2."""
    module = FusedAttention(20, 10 - 2 * groups)
    module.num_kv_heads, module.proj = groups, nn.Linear(16, 12)
    return nn.Sequential(module)


INAPPLICABLE = rows(
    InapplicableError,
    ("mimetic on grouped-query", llama, init("mimetic"), "grouped-query"),
    ("mimetic says which layer", llama, init("mimetic"), "layers.0.self_attn"),
    ("mimetic says what to do", llama, init("mimetic"), "on_inapplicable='skip'"),
    ("mimetic positions without any", encoder, init("mimetic", position="sincos"), "position embedding"),
    ("impulse without positions", encoder, init("impulse"), "position embedding"),
    ("impulse on too narrow heads", vit, init("impulse"), "width 8"),
    ("impulse on cross-covariance", xcit, init("impulse"), "xca"),
    ("dct on a grouped key", llama, init("dct"), "DCT"),
    ("dct where heads · d is not D", wide_llama, init("dct", roles="q"), "24 × 4·16"),
    ("centring on grouped-query", llama, init("centring"), "grouped-query"),
    ("centring with mimetic on grouped-query", llama, init("centring", qk="mimetic"), "grouped-query"),
    ("scale_matched to mimetic on grouped-query", llama, init("scale_matched", of="mimetic"), "grouped-query"),
    (
        "block value wider than the model",
        wide_llama,
        init("conditioned", value="block", layers=lambda layer: True),
        "2 · 16",
    ),
    ("deepnorm on pre-norm", vit, init("deepnorm"), "pre-norm"),
    ("deepnorm on pre-norm, transformers", gpt2, init("deepnorm"), "post_norm"),
    ("admin on pre-norm", vit, init("admin"), "pre-norm"),
    ("deepnorm told it is pre-norm", encoder, init("deepnorm", post_norm=False), "norm"),
    ("deepnorm on bare attention", bare, init("deepnorm"), "residual block"),
    ("admin on bare attention", bare, init("admin"), "residual block"),
    ("tfixup on bare attention", bare, init("tfixup"), "residual block"),
    ("depth_scaled on bare attention", bare, init("depth_scaled"), "depth"),
    ("gpt2_residual on bare attention", bare, init("gpt2_residual"), "depth"),
    ("critical on cross-covariance", xcit, init("critical", tokens=4), "xca"),
    ("composition part", llama, init({"qk": "mimetic", "vo": "conditioned"}), "mimetic"),
    ("audit of what does not apply", llama, audit("mimetic"), "grouped-query"),
)

TABLE = [
    *(*SCHEMES, *UNKNOWN_OPTIONS, *OPTIONS, *OVERFLOW, *FILTERS, *ARGUMENTS, *COMPOSITIONS, *FUNCTIONS, *WRITES),
    *(*STRUCTURE, *STORAGE, *MODELS, *REGISTRATION, *TEACHERS, *INAPPLICABLE),
]


# ---- the tests ----


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


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("bad", TABLE, ids=lambda bad: bad.name)
def test_one_clear_error_and_nothing_changed(bad: Bad, tmp_path: Path) -> None:
    model = bad.build()
    with Before(model) as before:
        with pytest.raises(bad.error) as caught:
            bad.provoke(model, tmp_path)
        before.check()
    message = str(caught.value)
    assert any(word in message for word in bad.word.split("|"))
    assert "\n" not in message, "one paragraph"
    assert not message.startswith("''"), "names nothing"
    assert 15 < len(message) < 800


def test_there_are_enough_of_them_and_each_has_a_name() -> None:
    names = [bad.name for bad in TABLE]
    assert len(names) >= 110
    assert len(set(names)) == len(names)


def test_every_scheme_is_in_the_table() -> None:
    text = " ".join(bad.name for bad in TABLE)
    assert [info.name for info in wc.schemes() if info.name not in text] == []


def test_a_function_that_raises_at_the_second_layer_leaves_the_first() -> None:
    calls: list[str] = []

    def scheme(layer: wc.AttentionLayer, draw: Any) -> dict[str, Tensor]:
        calls.append(layer.name)
        if len(calls) == 2:
            raise ZeroDivisionError("mine")
        return ones(layer, draw)

    with Before(vit()) as before:
        with pytest.raises(ZeroDivisionError, match="mine"):
            wc.init_(vit(), scheme)
        before.check()
    assert calls == ["blocks.0.attn", "blocks.1.attn"]


@pytest.mark.parametrize("scheme", ["conditioned", "normal", "mimetic", "small_init"])
def test_an_interruption_while_writing_undoes_what_was_written(scheme: str, monkeypatch: pytest.MonkeyPatch) -> None:
    store, calls = wc.Projection.store_, []

    def interrupted(self: wc.Projection, weight: Tensor) -> None:
        calls.append(self)
        if len(calls) == 5:
            raise KeyboardInterrupt
        store(self, weight)

    monkeypatch.setattr(wc.Projection, "store_", interrupted)
    with Before(vit()) as before:
        with pytest.raises(KeyboardInterrupt):
            wc.init_(vit(), scheme)
        before.check()
    assert len(calls) == 5


def test_a_model_that_is_refused_is_still_usable_afterwards() -> None:
    x = torch.randn(1, 3, 16, 16, generator=torch.Generator().manual_seed(0))
    expected = vit().eval()(x)
    with pytest.raises(SchemeError):
        wc.init_(vit(), "normal", std=-1)
    assert torch.equal(vit()(x), expected)


# ---- near the errors: what is not malformed must work ----


def heads_of(model: nn.Module, role: str) -> Iterator[Tensor]:
    for layer in wc.attention_layers(model):
        yield getattr(layer, role).read()


def test_a_function_in_a_composition_is_used() -> None:
    model = make_vit()
    plan = wc.init_(model, {"qk": ones, "vo": "mimetic"})
    assert all((weight == 1).all() for role in ("query", "key") for weight in heads_of(model, role))
    assert not any((weight == 1).all() for weight in heads_of(model, "value"))
    assert {entry.role for entry in plan.entries} == {"query", "key", "value", "output"}


def test_the_plan_of_a_function_that_sets_some_roles_prints() -> None:
    model = make_vit()
    plan = wc.init_(model, lambda layer, draw: {"query": torch.ones(layer.query.shape)})
    assert "query" in str(plan)
    assert "output" not in str(plan)


def test_a_composition_zeroes_no_bias_of_a_role_it_was_not_given() -> None:
    model = make_vit()
    with torch.no_grad():
        model.blocks[0].attn.qkv.bias.fill_(3.0)
    wc.init_(model, {"qk": "small_init"})
    layer = wc.attention_layers(model)[0]
    assert layer.query.read_bias().eq(0).all()
    assert layer.value.read_bias().eq(3).all()


def test_impulse_in_a_composition_is_what_audit_expects_or_refused() -> None:
    model = make_vit(embed_dim=48)
    composition = {"qk": "impulse", "vo": "conditioned"}
    try:
        wc.init_(model, composition)
    except SchemeError:
        return
    assert wc.audit(model, composition).passed


def test_a_part_of_a_composition_only_needs_what_its_own_roles_need() -> None:
    model = nn.MultiheadAttention(24, 3, vdim=10)  # query and key are square, value and output are not
    wc.init_(model, {"qk": "mimetic"})
    with pytest.raises(InapplicableError):
        wc.init_(model, {"vo": "mimetic"})


def test_a_parametrised_mlp_does_not_matter_to_a_scheme_that_leaves_it() -> None:
    model = make_vit()
    parametrizations.weight_norm(model.blocks[1].mlp.fc1)
    assert len(wc.init_(model, "conditioned").entries) == 9


def test_a_parametrised_layer_can_be_left_out() -> None:
    model = make_vit()
    parametrizations.weight_norm(model.blocks[1].attn.qkv)
    assert len(wc.init_(model, "conditioned", layers=["blocks.0.*", "blocks.2.*"]).entries) == 6


def test_gathered_zero3_parameters_are_written() -> None:
    """Inside `deepspeed.zero.GatheredParameters` a parameter is whole and still has its `ds_id`."""
    model = make_vit()
    for index, parameter in enumerate(model.parameters()):
        parameter.ds_id = index
    wc.init_(model, "conditioned")
    assert wc.audit(model, "conditioned").passed


def test_weight_selection_keeps_to_the_layers_it_was_given() -> None:
    model = make_vit()
    before = state(model)
    wc.init_(model, "weight_selection", teacher=big_vit(), layers="blocks.0.*")
    changed = {name for name, value in state(model).items() if not same_bits(value, before[name])}
    assert changed
    assert all(name.startswith("blocks.0.") for name in changed), sorted(changed)


def test_weight_selection_takes_cross_attention_for_no_head() -> None:
    student, teacher = (nn.TransformerDecoderLayer(width, 2, 20) for width in (12, 24))
    wc.init_(student, "weight_selection", teacher=teacher)
    assert torch.equal(student.multihead_attn.out_proj.weight, teacher.multihead_attn.out_proj.weight[::2, ::2])


def test_weight_selection_on_meta_gives_a_plan() -> None:
    with torch.device("meta"):
        model = make_vit()
    plan = wc.init_(model, "weight_selection", teacher=big_vit())
    assert not plan.applied
    model.to_empty(device="cpu")
    plan.apply_()
    assert torch.equal(model.norm.weight, big_vit().norm.weight[::2])
