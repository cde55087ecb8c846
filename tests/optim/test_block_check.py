"""`wc.optim.check_blocks` on the case table: right blocks pass, wrong ones do not."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import wellcond as wc
from tests.attention.test_head_blocks import NORMALISED_TOGETHER, deepseek
from tests.cases import CASES
from wellcond.attention.layouts import contiguous
from wellcond.optim import block_check

# Talking heads, and a pseudo-inverse that is scaled by the largest entry of all heads.
MIXED = NORMALISED_TOGETHER | {"timm-cait", "hf-nystromformer"}


@pytest.mark.parametrize("case", CASES.values(), ids=lambda case: case.name)
def test_blocks_of_every_case_move_their_own_head(case):
    model = case.model().double()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    found = wc.optim.check_blocks(model, case.batch())
    assert bool(found) == (case.name not in MIXED), found
    assert any(layer.checked for layer in found.layers) or "refused" in str(found) or "output projection" in str(found)
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())


def test_latent_attention_moves_its_own_heads():
    model, batch = deepseek()
    found = wc.optim.check_blocks(model, batch)
    assert found
    assert [layer.checked for layer in found.layers] == [True, True]


@pytest.mark.parametrize("wrong", ["axis", "order"])
def test_blocks_that_lie_elsewhere_are_found(monkeypatch, wrong):
    """An output projection cut on the wrong axis, and heads of the query in another order."""
    right = block_check.head_blocks

    def mistaken(model, **options):
        blocks = right(model, **options)
        for name, parts in blocks.items():
            layouts = [block.layout for block in parts]
            if wrong == "axis" and "attn.proj" in name:
                layouts = [contiguous(1, layout.width, layout.starts[0]) for layout in layouts]
            if wrong == "order" and "qkv" in name:
                layouts[:2] = layouts[1::-1]
            blocks._blocks[name] = tuple(replace(b, layout=own) for b, own in zip(parts, layouts, strict=True))
        return blocks

    monkeypatch.setattr(block_check, "head_blocks", mistaken)
    found = wc.optim.check_blocks(CASES["timm-vit"].model(), CASES["timm-vit"].batch().float())
    assert not found
    assert all(layer.reason for layer in found.layers)
