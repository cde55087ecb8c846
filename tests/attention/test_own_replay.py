"""A module as its own replay against the adapters' closed forms: the same output and the same κ(J)."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

import wellcond as wc
from tests.cases import CASES
from wellcond.attention.capture import evaluating, run_model
from wellcond.attention.layers import AttentionLayers
from wellcond.attention.observe import observe
from wellcond.attention.recorded.tape import recording
from wellcond.attention.replay import Call, Softmax
from wellcond.jacobian.condition_number import spectrum
from wellcond.jacobian.layer_heads import head_of

# What a pass cannot show, by case and kind of layer: the adapter's replay is then the only one.
REFUSED = {
    ("timm-volo", "outlook"): "it has no replay",  # weights come from a linear map, not from queries and keys
    ("hf-nystromformer", "nystrom"): "pooled|no linear map",
}
SEVERAL_PRODUCTS = {"hf-qwen2.5-vl-vision"}  # one for each image: the steps are run, there is no one softmax


@pytest.mark.parametrize("name", list(CASES))
def test_the_recorded_steps_are_the_closed_form(name: str) -> None:
    model, batch = CASES[name].model().double(), CASES[name].batch()
    layers = wc.attention_layers(model)
    root = layers[0].root
    assert root is not None
    bare = AttentionLayers([replace(layer, replay=None) for layer in layers])
    known, own = (observe(root, views, batch, complete=False).calls for views in (layers, bare))
    # A norm that a module computes in float32 is rounded there by an adapter's replay, and not by the recorded steps.
    tolerance = 1e-6 if computes_in_float32(root, batch) else 1e-8
    for layer, closed, recorded in zip(layers, known, own, strict=True):
        assert closed is not None
        assert recorded is not None
        reason = REFUSED.get((name, layer.kind))
        if reason is None:
            assert recorded.replay is not None, recorded.refusal
            plain = closed.mixing()
            if type(plain) is Softmax and plain.softcap is None:
                assert (type(recorded.mixing()) is Softmax) == (name not in SEVERAL_PRODUCTS)
            assert_equal(closed, recorded, tolerance)
        else:
            assert recorded.replay is None
            assert re.search(reason, recorded.refusal)


def computes_in_float32(root: nn.Module, batch: Any) -> bool:
    with torch.no_grad(), evaluating(root), recording(root) as tape:
        run_model(root, batch)
    return any(x.dtype == torch.float32 for step in tape.steps for x in step.results)


def assert_equal(closed: Call, recorded: Call, tolerance: float) -> None:
    last = closed.layer.num_heads - 1
    for head in {0, last}:
        first, second = (head_of(call.layer, call, head, sequences=[0]) for call in (closed, recorded))
        expected = first.output()
        assert torch.allclose(second.output(), expected, rtol=tolerance, atol=tolerance * float(expected.abs().max()))
    a, b = (spectrum(head, method="factor") for head in (first, second))
    assert a.structural_rank == b.structural_rank
    assert a.rank == b.rank
    if a.value is not None:
        assert b.value == pytest.approx(a.value, rel=tolerance)
