"""The strength that a shift has when none is given: the largest that leaves attention to other tokens."""

from __future__ import annotations

import copy
import math
import tomllib
import warnings
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from torch import nn

import wellcond as wc
from tests.cases import CASES
from tests.training import vit
from wellcond.conditioning.guarantee import COSINE
from wellcond.conditioning.safe_strength import PAPER_STRENGTH, SHORTEST_SEQUENCE, STRENGTH_WITHOUT_LIMIT
from wellcond.errors import ArgumentError, SchemeError
from wellcond.lab.recipe.recipe import load_recipe
from wellcond.propagation.exact_rows import exact_row

SOURCE = Path(wc.__file__).parent


def own(layer: wc.AttentionLayer, strength: float) -> float:
    """The largest weight of the own column over the heads of a layer with W + λ I, from the definitions."""
    query, key = (p.read().double() for _, p in layer.projections("query", "key"))
    eye = strength * torch.eye(*query.shape[1:], dtype=torch.float64)
    found = []
    for head in range(len(query)):
        q, k = query[head] + eye, key[head * len(key) // len(query)] + eye
        logits = layer.scale * q @ k.T  # x ↦ xᵀ (Q Kᵀ) x', so a token's logit with itself has the trace for its mean
        mean, deviation = float(logits.trace()), float(logits.norm())
        found.append(exact_row(math.sqrt(1 - COSINE) * deviation, SHORTEST_SEQUENCE, (1 - COSINE) * mean).own)
    return max(found)


@pytest.mark.parametrize("name", ["timm-vit", "hf-gpt2", "hf-llama", "torch-mha"])
def test_the_largest_that_is_safe(name: str) -> None:
    model = CASES[name].model() if name in CASES else nn.MultiheadAttention(64, 2)
    layers = wc.attention_layers(copy.deepcopy(model))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        handle = wc.condition_(model)
    (chosen,) = set(handle.strength.values())
    limit = wc.Thresholds().own
    assert max(own(layer, chosen) for layer in layers) <= limit
    assert chosen == PAPER_STRENGTH or max(own(layer, 1.02 * chosen) for layer in layers) > limit
    assert chosen == float(f"{chosen:.3g}")


def test_what_was_chosen_is_said() -> None:
    model = timm.create_model("vit_tiny_patch16_224", depth=2)
    handle = wc.condition_(model, "shift")
    text = f"{handle.strength['query']:g}"
    assert f"query {text}, key {text}, value {text}; the largest safe strength" in str(handle)
    assert "the largest safe strength" in str(handle.summary()).splitlines()[0]
    assert wc.condition_(model, "shift", strength="safe") is handle
    assert wc.condition_(model, strength=handle.strength["query"]) is handle
    handle.strength_(3)
    assert "safe" not in str(handle)
    with pytest.raises(wc.errors.WeightError, match="conditioned already: shift"):
        wc.condition_(model)
    handle.strength_("safe")
    assert f"query {text}," in str(handle)
    assert "safe" in str(handle)


def test_no_warning_that_attention_starts_one_hot() -> None:
    for name in ("vit_tiny_patch16_224", "deit_tiny_patch16_224"):
        with warnings.catch_warnings():
            warnings.filterwarnings("error", message="attention starts one-hot")
            wc.condition_(timm.create_model(name, depth=2))


def test_where_nothing_can_be_computed() -> None:
    """QK norm, cross-attention and values set no limit; they get what the other layers allow."""
    normed = timm.create_model("vit_tiny_patch16_224", depth=1, qk_norm=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert set(wc.condition_(normed).strength.values()) == {STRENGTH_WITHOUT_LIMIT}
        assert set(wc.condition_(vit(), roles="v").strength.values()) == {PAPER_STRENGTH}
        decoder = nn.TransformerDecoderLayer(64, 2, batch_first=True)
        both = wc.condition_(decoder)
        allowed = wc.condition_(nn.TransformerDecoderLayer(64, 2, batch_first=True), layers="self_attn")
    assert set(both.strength.values()).isdisjoint({STRENGTH_WITHOUT_LIMIT, PAPER_STRENGTH})
    assert both.strength["query"] == pytest.approx(allowed.strength["query"], rel=0.05)


def test_no_strength_is_safe_for_attention_to_oneself() -> None:
    model = nn.MultiheadAttention(16, 1, bias=False)
    with torch.no_grad():
        nn.init.orthogonal_(model.in_proj_weight[:16], 3, generator=torch.Generator().manual_seed(0))
        model.in_proj_weight[16:32] = model.in_proj_weight[:16]
    with pytest.raises(SchemeError, match=r"no strength is safe.*strength="):
        wc.condition_(model)


@pytest.mark.parametrize(
    "how", [{"method": "polar", "strength": "safe"}, {"strength": "large"}, {"strength": {"q": "safe"}}]
)
def test_safe_is_a_name_of_the_shift(how: dict[str, Any]) -> None:
    with pytest.raises((SchemeError, ArgumentError)):
        wc.condition_(vit(), **how)
    assert set(wc.condition_(vit(), "polar").strength.values()) == {1.0}


def test_every_recipe_says_its_strength() -> None:
    """What the laboratory and the papers' tables measure does not follow from a default."""
    paths = [*SOURCE.glob("lab/recipes/*.toml"), *SOURCE.glob("reproduce/recipes/*.toml")]
    assert len(paths) > 30
    shifts = 0
    for path in paths:
        for name, arm in tomllib.loads(path.read_text()).get("arms", {}).items():
            if arm.get("condition") == "shift":
                shifts += 1
                assert arm.get("strength"), (path.name, name)
    assert shifts > 30
    assert dict(load_recipe("digits").arm_settings())["shift 10"].strength == 10.0
