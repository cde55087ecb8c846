"""Weights stored so that nothing can be written, and values that are no weight."""

from __future__ import annotations

import warnings
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations

import wellcond as wc
from tests.malformed import (
    INF,
    NAN,
    Attention,
    Bad,
    Before,
    audit,
    edited,
    empty_shards,
    init,
    make_llama,
    make_vit,
    refused,
    rows,
    stored_as,
    vit,
    write,
)
from wellcond.errors import WeightError


def quantised() -> nn.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.ao.quantization.quantize_dynamic(make_vit(), {nn.Linear}, torch.qint8)


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


TABLE = [*STORAGE, *WRITES]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("bad", TABLE, ids=lambda bad: bad.name)
def test_one_clear_error_and_nothing_changed(bad: Bad, tmp_path: Path) -> None:
    refused(bad, tmp_path)
