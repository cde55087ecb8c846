"""Arguments of `init_` other than the scheme's own: layer filters, seeds, generators, things that are no model."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import wellcond as wc
from tests.malformed import Bad, audit, find, init, refused, rows, vit, write
from wellcond.errors import ArgumentError, LayerFilterError, SchemeError

FILTERS = rows(
    LayerFilterError,
    ("filter matches nothing", vit, init("conditioned", layers="layers.*"), "layers.*"),
    ("filter shows the names there are", vit, init("conditioned", layers="x"), "blocks.0.attn"),
    ("filter empty pattern", vit, init("conditioned", layers=""), "blocks.0.attn"),
    ("filter with one bad pattern", vit, init("conditioned", layers=["blocks.0.*", "blocks.9.*"]), "blocks.9.*"),
    ("filter picks none", vit, init("conditioned", layers=lambda layer: False), "3 layers"),
    ("filter for keep", vit, init("keep", layers="nothing"), "nothing"),
    ("filter for audit", vit, audit("conditioned", layers="nothing"), "nothing"),
    ("filter with a wrapper's name", vit, init("conditioned", layers="module.blocks.*"), "module.blocks.*"),
)


ARGUMENTS = rows(
    ArgumentError,
    ("scheme None", vit, init(None), "None"),
    ("scheme a number", vit, init(3), "got 3"),
    ("scheme a list", vit, init(["conditioned"]), "got ["),
    ("scheme a set", vit, init({"conditioned"}), "{'conditioned'}"),
    ("scheme bytes", vit, init(b"conditioned"), "b'conditioned'"),
    ("scheme a tensor", vit, init(torch.zeros(2)), "Tensor"),
    ("filter with a number", vit, init("conditioned", layers=["blocks.0.*", 1]), "1"),
    ("filter a number", vit, init("conditioned", layers=0), "0"),
    ("filter True", vit, init("conditioned", layers=True), "True"),
    ("filter a list of None", vit, init("conditioned", layers=[None]), "None"),
    ("filter one view", vit, lambda m, _: wc.init_(m, "conditioned", layers=wc.attention_layers(m)[0]), "string"),
    ("composition number as key", vit, init({1: "conditioned"}), "1"),
    ("composition a tuple of roles", vit, init({("q", "k"): "conditioned"}), "letters"),
    ("write a list", vit, write(lambda s: torch.zeros(s).tolist()), "a list"),
    ("write numpy", vit, write(lambda s: np.zeros(s, np.float32)), "ndarray"),
    ("model a state dict", dict, init("conditioned"), "{}"),
    ("model None", lambda: None, init("conditioned"), "None"),
    ("model a class", lambda: nn.MultiheadAttention, init("conditioned"), "torch.nn.Module"),
    ("model a list", lambda: [vit()], init("conditioned"), "a list"),
    ("model a name", lambda: "timm:vit_tiny_patch16_224", init("conditioned"), "timm:vit"),
    ("model a state dict, layers", dict, find, "{}"),
    ("model a state dict, audit", dict, audit("conditioned"), "{}"),
    ("seed a float", vit, init("conditioned", seed=1.5), "1.5"),
    ("seed text", vit, init("conditioned", seed="0"), "seed"),
    ("seed None", vit, init("conditioned", seed=None), "seed"),
    ("seed True", vit, init("conditioned", seed=True), "seed"),
    ("seed a tensor", vit, init("conditioned", seed=torch.tensor(1)), "seed"),
    ("seed a generator", vit, init("conditioned", seed=torch.Generator()), "seed"),
    ("generator a number", vit, init("conditioned", generator=0), "torch.Generator"),
    ("generator numpy's", vit, init("conditioned", generator=np.random.default_rng(0)), "torch.Generator"),
    ("generator a class", vit, init("conditioned", generator=torch.Generator), "torch.Generator"),
    ("on_inapplicable typo", vit, init("conditioned", on_inapplicable="ignore"), "ignore"),
    ("on_inapplicable None", vit, init("conditioned", on_inapplicable=None), "on_inapplicable"),
    ("on_inapplicable a list", vit, init("conditioned", on_inapplicable=["skip"]), "on_inapplicable"),
)


def test_a_model_that_is_refused_is_still_usable_afterwards() -> None:
    x = torch.randn(1, 3, 16, 16, generator=torch.Generator().manual_seed(0))
    expected = vit().eval()(x)
    with pytest.raises(SchemeError):
        wc.init_(vit(), "normal", std=-1)
    assert torch.equal(vit()(x), expected)


TABLE = [*FILTERS, *ARGUMENTS]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("bad", TABLE, ids=lambda bad: bad.name)
def test_one_clear_error_and_nothing_changed(bad: Bad, tmp_path: Path) -> None:
    refused(bad, tmp_path)
