"""`wc.calibrate_` on attention that no adapter knows: β as the modules themselves tell it, or the reason why not."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import AutoModel, DeepseekV3Config

import wellcond as wc
from tests.attention.strange.cases import CASES, two_blocks
from tests.attention.strange.oracle import seen
from tests.attention.strange.rotary import RmsHeads
from tests.attention.strange.told import listening

REACHED = [
    "causal",  # a guess that its output bears out
    "soft-cap",  # not proportional to the logits
    "rotary, interleaved",
    "keys modulo",
    "fused, channel-major",
    "bank at the root",
    "latent",
    "latent, shared rotary part",  # part of each key is no head's
    "gated positions",
    "learned queries",
    "a module for each head",
    "temperatures by head",
    "masked after the softmax",
    "queries in chunks",
    "cross",
]
LEFT = {
    "cosine": "normalised without a gain",
    "bias by distance": "a bias or a cap",
    "sinks": "no softmax over tokens alone",
    "linear, elu + 1": "no softmax over tokens alone",
    "crossed groups": "refused",
    "tied query and key": "refused",
    "a hook on the queries": "somebody hooks into its module",
}


@torch.no_grad()
def told_betas(model: nn.Module, batch: Any) -> list[float]:
    """β of every head, from the logits that modules tell while they run."""
    with listening() as heard:
        model(*batch)
    found = []
    for told in heard:
        logits, visible = torch.broadcast_tensors(told.logits, seen(told))
        for head in range(logits.shape[1]):
            pairs = zip(logits[:, head].flatten(0, -2), visible[:, head].flatten(0, -2), strict=True)
            found.append(spread(row[shown] for row, shown in pairs))
    return found


def spread(rows: Any) -> float:
    """Mean over rows of two keys or more."""
    betas = [float(row.std()) / math.sqrt(2 * math.log(len(row))) for row in rows if len(row) > 1]
    return sum(betas) / len(betas)


@pytest.mark.parametrize("name", REACHED)
def test_every_head_has_its_sharpness(name: str) -> None:
    model, batch = CASES[name].model(), CASES[name].batch()
    assert told_betas(model, batch) != pytest.approx([0.4] * len(told_betas(model, batch)), rel=0.02)
    found = wc.calibrate_(model, batch, beta=0.4, branch=0.3)
    assert not [reason for _, what, reason in found.skipped if what == "beta"]
    betas = told_betas(model, batch)
    assert betas == pytest.approx([0.4] * len(betas), rel=0.02)


@pytest.mark.parametrize("name", LEFT)
def test_what_cannot_be_scaled_is_left_alone(name: str) -> None:
    model, batch = CASES[name].model(), CASES[name].batch()
    held = {key: value.clone() for key, value in model.state_dict().items()}
    found = wc.calibrate_(model, batch, beta=0.4, branch=None)
    reasons = [reason for _, what, reason in found.skipped if what == "beta"]
    assert len(reasons) == 2
    assert all(LEFT[name] in reason for reason in reasons)
    assert all(torch.equal(value, held[key]) for key, value in model.state_dict().items())


def test_deepseek() -> None:
    sizes = {"hidden_size": 32, "intermediate_size": 48, "q_lora_rank": 12, "kv_lora_rank": 8, "v_head_dim": 6}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 4, "qk_nope_head_dim": 8, "qk_rope_head_dim": 4}
    torch.manual_seed(0)
    config = DeepseekV3Config(**sizes, **heads, vocab_size=31, max_position_embeddings=32, num_hidden_layers=2)
    model = AutoModel.from_config(config, attn_implementation="eager").eval()
    batch = torch.randint(31, (3, 9), generator=torch.Generator().manual_seed(1))
    found = wc.calibrate_(model, batch, beta=0.4, branch=0.3)
    assert not found.skipped
    with torch.no_grad():
        attentions = model(batch, output_attentions=True).attentions
    assert len(attentions) == 2
    for p in attentions:  # whose logarithms are the logits, but for a number in each row
        for head in p.double().log().unbind(1):
            rows = [row[: n + 1] for sequence in head for n, row in enumerate(sequence)]
            assert spread(rows) == pytest.approx(0.4, rel=0.02)


class CappedHeads(RmsHeads):
    def scored(self, q: Tensor, k: Tensor) -> Tensor:
        return 0.1 * torch.tanh(super().scored(q, k))


def test_gains_that_do_not_reach_the_target_are_put_back() -> None:
    torch.manual_seed(0)
    model = two_blocks(CappedHeads).double().eval()
    held = {key: value.clone() for key, value in model.state_dict().items()}
    found = wc.calibrate_(model, CASES["plain"].batch(), beta=2.0, branch=None)
    assert [reason for _, _, reason in found.skipped] == [
        "the gains of its QK-norm do not bring its sharpness to the target"
    ] * 2
    assert all(torch.equal(value, held[key]) for key, value in model.state_dict().items())
