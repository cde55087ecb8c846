"""Every case: what the view says, round trip, verify, and verify failing on purpose."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import wellcond as wc
from tests.cases import CASES
from tests.cases.case import Shape
from wellcond.attention.adapters import build
from wellcond.testing import check_adapter, tamper


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


class Unplayed(nn.Module):
    """Attention whose adapter has no replay."""

    def __init__(self) -> None:
        super().__init__()
        self.mix, self.back = nn.Linear(12, 36), nn.Linear(12, 12)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.mix(x).unflatten(-1, (3, 3, 4)).permute(2, 0, 3, 1, 4)
        return self.back(((q @ k.mT) / 2).softmax(-1).matmul(v).transpose(1, 2).flatten(2))


def unplayed(module: nn.Module, name: str) -> wc.AttentionLayer:
    q, k, v = build.fused(module, name, "mix", heads=3, width=4)
    return wc.AttentionLayer(name, "softmax", q, k, v, build.output(module, name, "back", heads=3), scale=0.5)


def test_without_replay_verify_runs_the_recorded_steps() -> None:
    wc.register_attention(Unplayed, unplayed)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model, batch = Unplayed().double(), torch.randn(2, 5, 12, dtype=torch.float64)
    layer = wc.attention_layers(model)[0]
    result = layer.verify(batch)
    assert result.method == "recording"
    assert result.passed
    wrong = dict(tamper(layer))
    for what in ("two query heads swapped", "two key heads swapped", "two value heads swapped"):
        assert not wrong[what].verify(batch), what
