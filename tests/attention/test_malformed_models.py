"""Models that have no attention to find, or none any more, or on the meta device."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import wellcond as wc
from tests.malformed import (
    Attention,
    Bad,
    FusedAttention,
    Provoke,
    audit,
    convnet,
    edited,
    empty_shards,
    find,
    init,
    make_vit,
    on_meta,
    refused,
    rows,
    vit,
)
from wellcond.errors import NoAttentionError, SchemeError, WeightError, WellcondError


class Bypassed(nn.Module):
    """Has attention and does not call it."""

    def __init__(self) -> None:
        super().__init__()
        self.attn = Attention(num_heads=3)

    def forward(self, x: Tensor) -> Tensor:
        return x


def after(edit: Callable[[Any], object], use: Callable[[wc.AttentionLayer], object]) -> Provoke:
    """Use a view after the model changed under it."""

    def provoke(model: nn.Module, _: Path) -> object:
        layer = wc.attention_layers(model)[0]
        edit(model)
        try:
            return use(layer)
        finally:
            undo_edits(model)

    return provoke


def drop_module(model: Any) -> None:
    model.blocks[0].kept, model.blocks[0].attn = model.blocks[0].attn, None


def drop_parameter(model: Any) -> None:
    qkv = model.blocks[0].attn.qkv
    qkv.kept, qkv.weight = qkv.weight, None


def undo_edits(model: Any) -> None:
    block = model.blocks[0]
    if hasattr(block, "kept"):
        block.attn = block.kept
        del block.kept
    if hasattr(block.attn.qkv, "kept"):
        block.attn.qkv.weight = block.attn.qkv.kept
        del block.attn.qkv.kept


def apply_after(edit: Callable[[Any], object]) -> Provoke:
    def provoke(model: nn.Module, _: Path) -> object:
        plan = wc.plan(model, "conditioned")
        edit(model)
        try:
            return plan.apply_()
        finally:
            undo_edits(model)

    return provoke


# Found by structure alone, so that what stands in the way is the reason it is not claimed.
STRUCTURE = rows(
    WellcondError,
    (
        "empty ZeRO-3 shards, own class",
        edited(lambda: Attention(num_heads=3), empty_shards),
        init("conditioned"),
        "ZeRO-3",
    ),
    (
        "lazy weights",
        lambda: Attention(linear=lambda i, o: nn.LazyLinear(o), num_heads=3),
        init("conditioned"),
        "batch",
    ),
)


MODELS = [
    *rows(
        NoAttentionError,
        ("no attention", convnet, init("conditioned"), "Looked for"),
        ("no attention, what to do", convnet, find, "register_attention"),
        ("no attention, keep", convnet, init("keep"), "Sequential"),
        ("no attention, audit", convnet, audit("conditioned"), "Sequential"),
        ("no parameters", nn.Identity, init("conditioned"), "Identity"),
        ("q, k, v without a head count", Attention, init("conditioned"), "no head count"),
        ("head count of zero", lambda: Attention(num_heads=0), init("conditioned"), "head"),
        ("head count that is text", lambda: Attention(num_heads="3"), init("conditioned"), "head"),
        ("head count does not divide", lambda: Attention(num_heads=5), init("conditioned"), "5 heads"),
        ("head count does not divide, fused", lambda: FusedAttention(heads=5), init("conditioned"), "5 heads"),
        ("head width contradicts", lambda: Attention(num_heads=3, head_dim=5), init("conditioned"), "q_proj"),
        ("key does not split", lambda: Attention((12, 6, 6), num_heads=3), init("conditioned"), "k_proj"),
        ("value does not split", lambda: Attention((12, 12, 7), num_heads=3), init("conditioned"), "v_proj"),
    ),
    *rows(
        WeightError,
        ("meta, applied too early", on_meta(make_vit), lambda m, _: wc.init_(m, "conditioned").apply_(), "meta"),
        ("meta, planned and applied", on_meta(make_vit), lambda m, _: wc.plan(m, "normal").apply_(), "to_empty"),
        ("meta, audited", on_meta(make_vit), audit("conditioned"), "meta"),
        ("meta, audited against a teacher", on_meta(make_vit), audit("weight_selection", teacher=vit()), "meta"),
        (
            "meta, one layer",
            edited(make_vit, lambda m: m.blocks[2].attn.to("meta")),
            lambda m, _: wc.plan(m, "normal").apply_(),
            "meta",
        ),
        (
            "view after its module went",
            make_vit,
            after(drop_module, lambda view: view.query.read()),
            "blocks.0.attn.qkv.weight",
        ),
        (
            "write after its module went",
            make_vit,
            after(drop_module, lambda view: view.query.write_(torch.zeros(3, 24, 8))),
            "no longer",
        ),
        (
            "verify after its module went",
            make_vit,
            after(drop_module, lambda view: view.verify(torch.zeros(1, 3, 16, 16))),
            "no longer",
        ),
        ("view after its parameter went", make_vit, after(drop_parameter, lambda view: view.key.read()), "qkv.weight"),
        (
            "write after its parameter went",
            make_vit,
            after(drop_parameter, lambda view: view.key.write_(torch.zeros(3, 24, 8))),
            "make the views again",
        ),
        ("plan after its module went", make_vit, apply_after(drop_module), "no longer"),
        ("plan after its parameter went", make_vit, apply_after(drop_parameter), "make the views again"),
    ),
    *rows(
        SchemeError, ("conditions of a plan not applied", vit, lambda m, _: wc.plan(m, "normal").conditions(), "apply_")
    ),
    *rows(
        WellcondError,
        (
            "verify an input that misses the layer",
            Bypassed,
            lambda m, _: wc.attention_layers(m)[0].verify(torch.zeros(2)),
            "'attn'",
        ),
    ),
]


TABLE = [*STRUCTURE, *MODELS]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("bad", TABLE, ids=lambda bad: bad.name)
def test_one_clear_error_and_nothing_changed(bad: Bad, tmp_path: Path) -> None:
    refused(bad, tmp_path)
