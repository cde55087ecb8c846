"""Every case: what the view says, round trip, verify, and verify failing on purpose."""

from __future__ import annotations

import pytest

import wellcond as wc
from tests.cases import CASES
from tests.cases.case import Shape
from wellcond.testing import check_adapter


@pytest.mark.parametrize("name", CASES)
def test_contract(name: str) -> None:
    case = CASES[name]
    layers = check_adapter(case.model().double(), case.batch())
    assert [layer.name for layer in layers] == [layer for layer, _ in case.layers]
    for layer, (_, expected) in zip(layers, case.layers, strict=True):
        shown = Shape(
            layer.num_heads, layer.num_kv_heads, layer.width, layer.head_dim, layer.kind, layer.cross, layer.storage
        )
        assert shown == expected, layer.name


@pytest.mark.parametrize("name", CASES)
def test_nothing_is_left_unclaimed(name: str) -> None:
    layers = wc.attention_layers(CASES[name].model())
    assert layers.unclaimed == ()
