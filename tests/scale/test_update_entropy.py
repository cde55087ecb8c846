"""Spectral entropy of updates: against its definition, in a monitor, and as a warning before anything else shows."""

from __future__ import annotations

import math

import pytest
import torch

import wellcond as wc
from tests.diagnosis.test_monitor import small, tokens
from wellcond.errors import AttentionWarning
from wellcond.scale.update_entropy import update_entropy


def test_the_entropy_is_that_of_squared_singular_values():
    update = torch.randn(3, 9, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    update[2] = update[2, :, :1] @ update[2, :1]  # rank one
    for head, found in enumerate(update_entropy(update)):
        p = torch.linalg.svdvals(update[head]).square()
        p = (p / p.sum()).clamp_min(1e-300)
        assert found == pytest.approx(float(-(p * p.log()).sum() / math.log(4)), abs=1e-12)
    assert update_entropy(torch.full((1, 3, 3), math.nan)) == [None]


def test_a_monitor_warns_when_updates_collapse():
    """Nothing is wrong with the weights yet: they have moved along one direction since the last look."""
    model, generator = small(), torch.Generator().manual_seed(0)
    attention = model.layers[1].self_attn
    monitor = wc.Monitor(model, tokens(), every=1, tiers=["weights"], updates=True)

    def move(update):
        with torch.no_grad():
            attention.in_proj_weight[:12] += 1e-3 * update

    for _ in range(6):
        move(torch.randn(12, 12, generator=generator))
        (record,) = monitor.step()
    head = next(w for w in record["layers"][1]["weights"] if w["role"] == "query" and w["head"] == 0)
    assert 0.7 < head["update"] < 1
    assert 0.8 < head["update_trend"] < 1.25
    assert record["layers"][0]["weights"][0]["update"] is None  # which has not moved
    move(torch.outer(torch.randn(12, generator=generator), torch.randn(12, generator=generator)))
    with pytest.warns(AttentionWarning, match=r"layers.1.self_attn.*updates of W_Q collapse into few directions"):
        (record,) = monitor.step()
    assert record["quantities"]["update_query"]
