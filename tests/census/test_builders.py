"""Models of the census build the same each time, in shapes in which heads and groups differ."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import wellcond as wc
from tests.census import timm_models, transformers_models
from tests.census.transformers_models import CannotBuild
from wellcond.testing import same_bits


@pytest.mark.parametrize(("build", "name"), [(transformers_models.build, "bert"), (timm_models.build, "pit_ti_224")])
def test_building_again_gives_the_same_model(build, name) -> None:  # type: ignore[no-untyped-def]
    (first, a), (second, b) = build(name), build(name)
    assert all(torch.equal(a[key], b[key]) for key in a if isinstance(a[key], Tensor))
    assert all(same_bits(p, q) for p, q in zip(first.parameters(), second.parameters(), strict=True))


def test_keys_are_grouped() -> None:
    model, _ = transformers_models.build("llama")
    layer = wc.attention_layers(model)[0]
    assert (layer.num_heads, layer.num_kv_heads, layer.head_dim) == (4, 2, 8)


def test_text_comes_with_its_pictures() -> None:
    _, inputs = transformers_models.build("llava")
    assert {"input_ids", "pixel_values"} <= set(inputs)


def test_every_kind_of_layer_is_there() -> None:
    model, _ = transformers_models.build("gemma2")
    assert set(model.config.layer_types) == {"sliding_attention", "full_attention"}


def test_a_part_without_a_model_says_so() -> None:
    with pytest.raises(CannotBuild, match="part without a model"):
        transformers_models.build("sam_mask_decoder")
