"""Schemes that do not exist, and options that they do not take or cannot compute with."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

import wellcond as wc
from tests.malformed import (
    INF,
    NAN,
    Bad,
    Provoke,
    bert,
    big_vit,
    edited,
    from_teacher,
    gpt2,
    init,
    make_vit,
    ones,
    refused,
    rows,
    vit,
    wide_vit,
    write,
)
from wellcond.errors import SchemeError, WellcondError
from wellcond.init.laws import Normal
from wellcond.init.registry import _SCHEMES
from wellcond.init.schemes.conditioned import Conditioned
from wellcond.init.schemes.normal import NormalScheme


def instance(cls: type[wc.Scheme], **options: Any) -> wc.Scheme:
    return cls(**options)


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
            "calibrated": {"batch": None},
        }.items()
    ),
)


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
    ("rotated: typo", vit, init("rotated", of="conditoned"), "conditoned"),
    ("flipped: a class", vit, init("flipped", of=Conditioned), "Conditioned"),
    ("centring: gamma zero", vit, init("centring", gamma=0.0), "gamma"),
    ("centring: gamma NaN", vit, init("centring", gamma=NAN), "gamma"),
    ("centring: structure", vit, init("centring", structure="rotated"), "rotated"),
    ("centring: sign", vit, init("centring", sign=0), "sign"),
    ("fan_in: gain", vit, init("fan_in", gain=0.0), "gain"),
    ("fan_in: mlp_output", vit, init("fan_in", mlp_output=True), "mlp_output"),
    ("zero_output: gain", vit, init("zero_output", gain=-1.0), "gain"),
    ("zero_output: mlp", vit, init("zero_output", mlp="zero"), "mlp"),
    ("spectral: gain", vit, init("spectral", gain=0), "gain"),
    ("spectral: draw", vit, init("spectral", draw="normal"), "normal"),
    ("spectral: granularity", vit, init("spectral", granularity="matrix"), "matrix"),
    ("symmetric: gain", vit, init("symmetric", gain=-0.5), "gain"),
    ("symmetric: sign", vit, init("symmetric", sign=0), "sign"),
    ("skipless: c", vit, init("skipless", c=0.0), "c"),
    ("skipless: beta NaN", vit, init("skipless", beta=NAN), "beta"),
    ("skipless: structure", vit, init("skipless", structure="none"), "none"),
    ("centring: typo", vit, init("centring", qk="conditoned"), "conditoned"),
    ("centring: sets neither q nor k", vit, init("centring", qk={"vo": "mimetic"}), "qk"),
)


# Legal in themselves, but the numbers leave the range of the arithmetic or of the storage.
OVERFLOW = rows(
    WellcondError,
    ("strength beyond float32", vit, init("conditioned", value_strength=1e39), "value_strength|qkv.weight"),
    ("std beyond float32", vit, init("normal", std=1e60), "std|qkv.weight"),
    ("mimetic beyond float32", vit, init("mimetic", qk_alpha=1e60), "qk_alpha|qkv.weight"),
    ("spectral beyond float32", vit, init("spectral", gain=1e60), "gain|qkv.weight"),
    ("strength beyond float16", edited(make_vit, nn.Module.half), init("conditioned", value_strength=1e6), "float16"),
    ("std beyond float16", edited(make_vit, nn.Module.half), init("normal", std=1e6), "float16"),
    ("write beyond float16", edited(make_vit, nn.Module.half), write(lambda s: torch.full(s, 1e6)), "float16"),
)


def test_every_scheme_is_in_the_table() -> None:
    text = " ".join(bad.name for bad in TABLE)
    assert [info.name for info in wc.schemes() if info.name not in text] == []


TABLE = [*SCHEMES, *UNKNOWN_OPTIONS, *OPTIONS, *OVERFLOW]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("bad", TABLE, ids=lambda bad: bad.name)
def test_one_clear_error_and_nothing_changed(bad: Bad, tmp_path: Path) -> None:
    refused(bad, tmp_path)
