"""Schemes on layers that they are not defined for: the error names the layer and what to do."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest
from timm.models.xcit import Xcit
from torch import nn

from tests.malformed import Bad, audit, gpt2, init, make_llama, refused, rows, vit
from wellcond.errors import InapplicableError


@cache
def llama() -> nn.Module:
    return make_llama()


@cache
def wide_llama() -> nn.Module:
    return make_llama(head_dim=16)  # heads · d is not D


@cache
def xcit() -> nn.Module:
    return Xcit(img_size=16, patch_size=8, embed_dim=24, depth=1, num_heads=3, cls_attn_layers=1, num_classes=5)


@cache
def encoder() -> nn.Module:
    layer = nn.TransformerEncoderLayer(24, 3, 20, batch_first=True)
    return nn.TransformerEncoder(layer, 3, enable_nested_tensor=False)


@cache
def bare() -> nn.Module:
    return nn.MultiheadAttention(24, 3)


@cache
def other_values() -> nn.Module:
    return nn.MultiheadAttention(24, 3, vdim=10)


INAPPLICABLE = rows(
    InapplicableError,
    ("mimetic on grouped-query", llama, init("mimetic"), "grouped-query"),
    ("mimetic says which layer", llama, init("mimetic"), "layers.0.self_attn"),
    ("mimetic says what to do", llama, init("mimetic"), "on_inapplicable='skip'"),
    ("mimetic positions without any", encoder, init("mimetic", position="sincos"), "position embedding"),
    ("impulse without positions", encoder, init("impulse"), "position embedding"),
    ("impulse on too narrow heads", vit, init("impulse"), "width 8"),
    ("impulse on cross-covariance", xcit, init("impulse"), "xca"),
    ("dct on a grouped key", llama, init("dct"), "DCT"),
    ("dct where heads · d is not D", wide_llama, init("dct", roles="q"), "24 × 4·16"),
    ("centring where value and output differ", other_values, init("centring"), "no square product"),
    ("centring with mimetic on grouped-query", llama, init("centring", qk="mimetic"), "grouped-query"),
    ("scale_matched to mimetic on grouped-query", llama, init("scale_matched", of="mimetic"), "grouped-query"),
    (
        "block value wider than the model",
        wide_llama,
        init("conditioned", value="block", layers=lambda layer: True),
        "2 · 16",
    ),
    ("deepnorm on pre-norm", vit, init("deepnorm"), "pre-norm"),
    ("deepnorm on pre-norm, transformers", gpt2, init("deepnorm"), "post_norm"),
    ("admin on pre-norm", vit, init("admin"), "pre-norm"),
    ("deepnorm told it is pre-norm", encoder, init("deepnorm", post_norm=False), "norm"),
    ("deepnorm on bare attention", bare, init("deepnorm"), "residual block"),
    ("admin on bare attention", bare, init("admin"), "residual block"),
    ("tfixup on bare attention", bare, init("tfixup"), "residual block"),
    ("depth_scaled on bare attention", bare, init("depth_scaled"), "depth"),
    ("gpt2_residual on bare attention", bare, init("gpt2_residual"), "depth"),
    ("critical on cross-covariance", xcit, init("critical", tokens=4), "xca"),
    ("symmetric on grouped-query", llama, init("symmetric"), "grouped-query"),
    ("skipless on grouped-query", llama, init("skipless"), "grouped-query"),
    ("composition part", llama, init({"qk": "mimetic", "vo": "conditioned"}), "mimetic"),
    ("audit of what does not apply", llama, audit("mimetic"), "grouped-query"),
)


TABLE = INAPPLICABLE


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("bad", TABLE, ids=lambda bad: bad.name)
def test_one_clear_error_and_nothing_changed(bad: Bad, tmp_path: Path) -> None:
    refused(bad, tmp_path)
