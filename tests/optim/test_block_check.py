"""`wc.optim.check_blocks` on the case table: right blocks pass, wrong ones do not."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from transformers import LiltConfig, LiltModel

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


def test_a_batch_that_shows_nothing_of_a_role_is_said_to():
    """Where all tokens are one, no query matters, and blocks in another order would look the same."""
    model = torch.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    found = wc.optim.check_blocks(model, torch.randn(1, 1, 8).expand(2, 5, 8).contiguous())
    assert [(layer.checked, "does not move head" in layer.reason) for layer in found.layers] == [(False, True)]
    assert wc.optim.check_blocks(model, torch.randn(2, 5, 8)).layers[0].checked


def test_a_head_that_its_bias_decides_is_not_called_wrong():
    """A head of Swin whose bias leaves each token to itself: its queries and keys do not matter, the others' do."""
    model = CASES["timm-swin"].model()
    attn = model.layers[0].blocks[0].attn
    own = attn.relative_position_index[0, 0]
    with torch.no_grad():
        attn.relative_position_bias_table[own, 1] = 1e6
    first = wc.optim.check_blocks(model, CASES["timm-swin"].batch().float()).layers[0]
    assert (first.checked, first.reason) == (
        False,
        "on this batch its query does not move head 1, whatever its weights are",
    )


def test_layers_of_one_name_are_checked_by_their_own_blocks():
    """LiLT's module has attention of words and of their places, whose scores are added."""
    sizes = {"hidden_size": 48, "num_hidden_layers": 1, "num_attention_heads": 4, "intermediate_size": 16}
    model = LiltModel(LiltConfig(vocab_size=31, **sizes)).eval()
    generator = torch.Generator().manual_seed(0)
    tokens = {"input_ids": torch.randint(5, 31, (2, 7), generator=generator)}
    corner = torch.randint(0, 100, (2, 7, 2), generator=generator)
    tokens["bbox"] = torch.cat([corner, corner + 9], -1)
    found = wc.optim.check_blocks(model, tokens)
    assert found.layers[0].blocks == 16
    assert (found.layers[0].checked, found.layers[0].reason) == (True, "")
