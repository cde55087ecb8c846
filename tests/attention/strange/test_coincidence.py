"""A wrong view may rebuild an output by coincidence (zero outputs, equal tokens, one token); that shows nothing."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor, nn

import wellcond as wc
from tests.attention.strange.audit import check_bfloat16, check_numbers, compare, outcomes
from tests.attention.strange.cases import CASES
from tests.attention.strange.claims import Wrong

# What a plain softmax of names and sizes is wrong about.
TWISTED = (
    "cosine",
    "cosine of queries alone",
    "causal",
    "alibi",
    "soft-cap",
    "sinks",
    "softmax plus one",
    "rotary, halves",
    "rotary, interleaved",
    "RMSNorm over all heads",
    "talking heads, before",
    "bias by distance",
    "sdpa, causal, own scale",
    "dropout",
    "temperatures by head",
    "keys times queries",
)


@dataclass(frozen=True)
class Spoil:
    """A change of model or tokens after which different attentions have the same output."""

    change: Callable[[nn.Module], None] = lambda module: None
    tokens: Callable[[Tensor], Tensor] = lambda x: x


def zero(name: str) -> Callable[[nn.Module], None]:
    def change(module: nn.Module) -> None:
        for parameter in getattr(module, name).parameters():
            nn.init.zeros_(parameter)

    return change


def large_bias(module: nn.Module) -> None:
    nn.init.constant_(module.to_out.bias, 1e9)


def small_values(module: nn.Module) -> None:
    """As small as a schedule may start them: next to the bias of the output they vanish in rounding."""
    with torch.no_grad():
        module.to_v.weight.mul_(1e-12)


def lone_values(module: nn.Module) -> None:
    """Values of one head alone: what the others score by does not reach the output."""
    with torch.no_grad():
        module.to_v.weight[4:] = 0.0


def lone_head(module: nn.Module) -> None:
    """One head alone is read."""
    with torch.no_grad():
        module.to_out.weight[:, 4:] = 0.0


LONELY = {"values of one head": lone_values, "one head read": lone_head}

SPOILED = {
    "zero output": Spoil(zero("to_out")),
    "zero values": Spoil(zero("to_v")),
    "large bias of the output": Spoil(large_bias),
    "small values": Spoil(small_values),
    "equal tokens": Spoil(tokens=lambda x: x[:, :1].expand_as(x).clone()),
    "zero tokens": Spoil(tokens=torch.zeros_like),
    "one token": Spoil(tokens=lambda x: x[:, :1].clone()),
    "two tokens": Spoil(tokens=lambda x: x[:, :2].clone()),
}


@pytest.mark.parametrize("spoiled", SPOILED)
@pytest.mark.parametrize("name", TWISTED)
def test_no_number_by_coincidence(name: str, spoiled: str) -> None:
    case, spoil = CASES[name], SPOILED[spoiled]
    model = case.model()
    for block in model:
        spoil.change(block.attention)
    batch = tuple(spoil.tokens(x) for x in case.batch())
    assert outcomes(model, batch)
    check_numbers(case, model, batch, generic=False)


@pytest.mark.parametrize("lonely", LONELY)
def test_heads_that_the_output_does_not_show(lonely: str) -> None:
    case = CASES["temperatures by head"]
    model = case.model()
    for block in model:
        LONELY[lonely](block.attention)
    assert {outcome.standing for outcome in outcomes(model, case.batch())} == {"verified"}
    check_numbers(case, model, case.batch(), generic=False)


# Where a hair decides which keys are seen, rounding does; a list of tensors is not cast with its module.
@pytest.mark.parametrize("name", [n for n in CASES if n != "three best keys" and "growing" not in n])
def test_bfloat16(name: str) -> None:
    """Eight bits of tokens and logits are a few percent of an entropy; another attention's differs by more."""
    check_bfloat16(CASES[name], close=5e-2)


def test_the_comparison_can_fail() -> None:
    case = CASES["cosine"]
    model = case.model()
    diagnosed = copy.deepcopy(model)
    with torch.no_grad():
        diagnosed[0].attention.temperature.mul_(1.01)
    layers = wc.attention_layers(model, case.batch())
    found = wc.diagnose(diagnosed, case.batch(), progress=False)
    with pytest.raises(Wrong, match="entropy is"):
        compare(case, model, case.batch(), layers, found, 1e-6, generic=True)
