"""Compositions and functions as schemes: malformed ones give one clear error, what is near them works."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import wellcond as wc
from tests.malformed import INF, NAN, Bad, Before, Provoke, audit, init, make_vit, ones, refused, rows, vit, wide_vit
from wellcond.errors import InapplicableError, SchemeError, WeightError


def function(change: Callable[[dict[str, Any]], Any]) -> Provoke:
    """Initialise with a function that returns zeros for every role, changed by `change`."""

    def scheme(layer: wc.AttentionLayer, draw: Any) -> Any:
        return change({role: torch.zeros(p.shape) for role, p in layer.projections()})

    return init(scheme)


def swap(role: str, value: Any) -> Callable[[dict[str, Any]], dict[str, Any]]:
    return lambda weights: weights | {role: value}


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
    ("composition query of symmetric", vit, init({"q": "symmetric"}), "query and key"),
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


TABLE = [*COMPOSITIONS, *FUNCTIONS]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("bad", TABLE, ids=lambda bad: bad.name)
def test_one_clear_error_and_nothing_changed(bad: Bad, tmp_path: Path) -> None:
    refused(bad, tmp_path)
