"""A second conditioning of the same weights: the handle that is there, or a refusal that changes nothing."""

from __future__ import annotations

import copy
from itertools import product
from typing import Any

import pytest
import timm
import torch
from torch import nn

import wellcond as wc
from tests.training import vit
from wellcond.errors import WeightError
from wellcond.testing import same_bits, state

pytestmark = pytest.mark.filterwarnings("ignore:attention starts one-hot", "ignore:Theorem 3.8 promises")

HOW: dict[str, dict[str, Any]] = {
    "folded shift": {"method": "shift", "strength": 1, "mode": "folded"},
    "other strength": {"method": "shift", "strength": 2},
    "other placement": {"method": "shift", "strength": 1, "placement": "layer"},
    "live shift": {"method": "shift", "strength": 1, "mode": "live"},
    "value alone": {"method": "shift", "strength": 1, "roles": "v"},
    "one layer": {"method": "shift", "strength": 1, "layers": "blocks.1.*"},
    "polar": {"method": "polar"},
    "polar every 2": {"method": "polar", "every": 2},
    "sigma_reparam": {"method": "sigma_reparam"},
    "weight_conditioning": {"method": "weight_conditioning"},
}


def same(a: dict[str, Any], b: dict[str, Any]) -> bool:
    return a.keys() == b.keys() and all(same_bits(a[key], b[key]) for key in a)


@pytest.mark.parametrize(("first", "second"), [pair for pair in product(HOW, HOW) if pair[0] != pair[1]])
def test_two_methods_on_the_same_weights(first: str, second: str) -> None:
    model = vit()
    original = state(model)
    handle = wc.condition_(model, **HOW[first])
    before = state(model)
    with pytest.raises(WeightError, match=r"conditioned already: .*strength_.*remove_\(\)"):
        wc.condition_(model, **HOW[second])
    assert same(state(model), before)
    handle.remove_()
    assert same(state(model), original)
    wc.condition_(model, **HOW[second]).remove_()
    assert same(state(model), original)


@pytest.mark.parametrize("how", HOW)
def test_the_same_again_is_what_is_there(how: str) -> None:
    model = vit()
    original = state(model)
    handle = wc.condition_(model, **HOW[how])
    before = state(model)
    for wrapped in (model, nn.DataParallel(model), torch.compile(model, backend="eager"), nn.Sequential(model)):
        if how != "one layer" or not isinstance(wrapped, nn.Sequential):  # whose layers are called 0.blocks…
            assert wc.condition_(wrapped, **HOW[how]) is handle
    with pytest.raises(WeightError, match="conditioned already"):
        wc.condition_(model, **HOW[how], as_original=True)
    assert same(state(model), before)
    handle.remove_()
    assert same(state(model), original)
    assert wc.condition_(model, **HOW[how]) is not handle


def test_a_mode_is_the_same_unless_another_is_asked_for() -> None:
    model = vit()
    handle = wc.condition_(model, "shift", strength=1)
    handle.unfold_()
    assert wc.condition_(model, "shift", strength=1) is handle
    with pytest.raises(WeightError, match="conditioned already"):
        wc.condition_(model, "shift", strength=1, mode="folded")
    polar = vit()
    folded = wc.condition_(polar, "polar")
    folded.fold_()
    assert wc.condition_(polar, "polar") is folded
    with pytest.raises(WeightError, match="conditioned already: polar"):
        wc.condition_(polar, "shift", strength=1)


def test_a_model_inside_another_and_a_tied_one() -> None:
    inner = vit()
    whole = nn.ModuleDict({"encoder": inner, "head": vit()})
    wc.condition_(inner, "shift", strength=1)
    before = state(whole)
    with pytest.raises(WeightError, match="conditioned already"):
        wc.condition_(whole, "shift", strength=1)  # more than what is conditioned
    with pytest.raises(WeightError, match="conditioned already"):
        wc.condition_(inner.blocks[0], "shift", strength=1)  # less
    other = vit()
    other.blocks[0].attn.qkv.weight = inner.blocks[1].attn.qkv.weight  # one parameter in two models
    with pytest.raises(WeightError, match="conditioned already"):
        wc.condition_(other, "shift", strength=1)
    assert same(state(whole), before)


def test_parts_that_are_apart_are_conditioned_apart() -> None:
    model = vit()
    original = state(model)
    handles = [wc.condition_(model, "shift", strength=i + 1.0, layers=f"blocks.{i}.*") for i in range(2)]
    twin = copy.deepcopy(model)
    assert wc.condition_(model, "shift", strength=2, layers="blocks.1.*") is handles[1]
    handles[0].remove_()
    handles[1].remove_()
    assert same(state(model), original)
    assert not same(state(twin), original)


def test_peers_that_correct_no_weight_go_together() -> None:
    model = timm.create_model("vit_tiny_patch16_224", depth=1, embed_dim=24, num_heads=3)
    first = wc.condition_(model, "qk_norm")
    assert wc.condition_(model, "qk_norm") is first
    with pytest.raises(WeightError, match="conditioned already: qk_norm"):
        wc.condition_(model, "qk_norm", norm="rms")
    tokens = wc.condition_(model, "conditioned_tokens")
    assert wc.condition_(model, "conditioned_tokens") is tokens
    wc.condition_(model, "shift", strength=1)
    tokens.remove_()
    assert wc.condition_(model, "conditioned_tokens") is not tokens


def test_a_handle_whose_modules_are_gone_is_in_nobodys_way() -> None:
    model = vit()
    old = wc.condition_(model, "shift", strength=1)
    for count in (1, 2):
        model.blocks = nn.Sequential(*vit().blocks[:count])
        plain = state(model)
        handle = wc.condition_(model, "shift", strength=1)
        assert handle is not old
        assert not same(state(model), plain)
        handle.remove_()
        assert same(state(model), plain)


def test_initialising_conditioned_weights_is_refused_and_changes_nothing() -> None:
    """The handle would take the new numbers for W + C, and `remove_` would leave them less C."""
    model = vit()
    handle = wc.condition_(model, "shift", strength=1)
    before = state(model)
    with pytest.raises(WeightError, match=r"holds W \+ C.*remove_"):
        wc.init_(model, "conditioned")
    assert same(state(model), before)
    handle.remove_()
    assert wc.init_(model, "conditioned").applied
