"""`register_attention` with what is no class, no function, or describes no attention."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from torch import nn

import wellcond as wc
from tests.malformed import Bad, Provoke, refused, rows, vit
from wellcond.attention.adapters import build
from wellcond.errors import WellcondError


class Mine(nn.Module):
    """Known only through `register_attention`."""

    def __init__(self) -> None:
        super().__init__()
        self.mix, self.back = nn.Linear(12, 36), nn.Linear(12, 12)


def mine() -> nn.Module:
    return nn.ModuleDict({"mine": Mine(), "other": nn.MultiheadAttention(12, 3)})


def described(describe: Any) -> Provoke:
    """Register `describe` for `Mine`, look for layers, and forget it again."""

    def provoke(model: nn.Module, _: Path) -> object:
        from wellcond.attention import find as finder

        wc.register_attention(Mine, describe)
        try:
            return wc.init_(model, "conditioned")
        finally:
            del finder._REGISTERED[Mine]

    return provoke


REGISTRATION = rows(
    WellcondError,
    ("register an instance", vit, lambda m, _: wc.register_attention(m, lambda module, name: None), "sub-class"),
    ("register a class of something else", vit, lambda m, _: wc.register_attention(dict, lambda a, b: None), "dict"),
    ("register a name", vit, lambda m, _: wc.register_attention("Attention", lambda a, b: None), "Attention"),
    ("register None", vit, lambda m, _: wc.register_attention(None, lambda a, b: None), "None"),
    ("register without a function", vit, lambda m, _: wc.register_attention(Mine, None), "describe"),
    ("register with a view", vit, lambda m, _: wc.register_attention(Mine, wc.attention_layers(m)[0]), "describe"),
    ("describe returns a number", mine, described(lambda module, name: 42), "describe"),
    ("describe returns three projections", mine, described(lambda m, n: build.fused(m, n, "mix", 3, 4)), "describe"),
    ("describe returns True", mine, described(lambda module, name: True), "describe"),
    ("describe returns the class", mine, described(lambda module, name: wc.AttentionLayer), "describe"),
    ("describe names no child", mine, described(lambda m, n: build.fused(m, n, "mx", heads=3, width=4)), "mx"),
    ("describe too many heads", mine, described(lambda m, n: build.fused(m, n, "mix", heads=4, width=4)), "head count"),
    ("describe no heads", mine, described(lambda m, n: build.fused(m, n, "mix", heads=0, width=4)), "head"),
    ("describe no heads, separate", mine, described(lambda m, n: build.separate(m, n, "mix", heads=0)), "head"),
    ("describe heads that do not divide", mine, described(lambda m, n: build.separate(m, n, "mix", heads=7)), "7"),
    (
        "describe output heads that do not divide",
        mine,
        described(lambda m, n: build.output(m, n, "back", heads=5)),
        "5",
    ),
    ("describe unknown order", mine, described(lambda m, n: build.fused(m, n, "mix", 3, 4, order="heads")), "heads"),
    (
        "describe a path that is not there",
        mine,
        described(lambda m, n: wc.AttentionLayer(n, "softmax", *build.fused(m, "elsewhere", "mix", heads=3, width=4))),
        "elsewhere",
    ),
)


TABLE = REGISTRATION


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("bad", TABLE, ids=lambda bad: bad.name)
def test_one_clear_error_and_nothing_changed(bad: Bad, tmp_path: Path) -> None:
    refused(bad, tmp_path)
