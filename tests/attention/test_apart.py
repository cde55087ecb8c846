"""Roles that share memory are refused, whatever the names; parts of one memory that do not meet are not."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import wellcond as wc
from tests.attention.strange.separate import Separate

BATCH = torch.randn(2, 6, 12, generator=torch.Generator().manual_seed(0))


def sharing(change: str) -> nn.Module:
    torch.manual_seed(0)
    model = Separate()
    if change == "memory":  # two parameters, one memory
        model.to_v.weight = nn.Parameter(model.to_k.weight.detach())
    elif change == "bank":  # as flattened parameters have it: one memory, cut into three
        bank = torch.randn(36, 12) / 4
        for part, projection in zip(bank.chunk(3), (model.to_q, model.to_k, model.to_v), strict=True):
            projection.weight = nn.Parameter(part)
    elif change == "overlap":
        bank = torch.randn(20, 12) / 4
        model.to_q.weight, model.to_k.weight = nn.Parameter(bank[:12]), nn.Parameter(bank[8:])
    return model


@pytest.mark.parametrize(
    ("change", "standing", "reason"),
    [
        ("memory", "refused", "the key is the value too"),
        ("overlap", "refused", "the query is the key too"),
        ("bank", "verified", ""),
        ("", "verified", ""),
    ],
)
def test_shared_memory(change: str, standing: str, reason: str) -> None:
    (layer,) = wc.attention_layers(sharing(change), BATCH)
    assert layer.standing == standing
    assert layer.reason.startswith(reason)
