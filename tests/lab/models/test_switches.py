"""QK-norm and LayerScale in the laboratory's models: what they compute, by hand in float64, and wellcond on them."""

from __future__ import annotations

import copy
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import wellcond as wc
from tests.jacobian_oracle import oracle_jacobian
from tests.laboratory import TINY, prepared, write
from wellcond import jacobian
from wellcond.errors import WellcondError
from wellcond.lab.comparison import run_one
from wellcond.lab.models import lab_model
from wellcond.lab.models.layers import SelfAttention
from wellcond.lab.models.small import Encoder
from wellcond.lab.models.switches import LayerScale
from wellcond.lab.recipe.arms import arms_of
from wellcond.lab.tasks import task

SMALL = {"width": 12, "depth": 2, "heads": 3}
LISTS = {"shortest": 5, "longest": 32, "depth": 3, "train_examples": 9, "test_examples": 9}
MODELS: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {  # task, its options, the model's
    "vit": ("digits", {}, {"patch": 4}),
    "gpt": ("topics-text", {"length": 16}, {}),
    "encoder": ("listops", LISTS, {"mlp": 2.0}),
    "nystromformer": ("listops", LISTS, {"landmarks": 8, "kernel": 3, "dropout": 0.0}),
    "crammed-bert": ("listops", LISTS, {"mlp": 16}),
}
BOTH = {"qk_norm": True, "layer_scale": 0.1}


@pytest.fixture(scope="module", params=MODELS)
def case(request: pytest.FixtureRequest) -> tuple[str, Any, dict[str, Any], Any]:
    """A model's name, its task, its options, and two examples."""
    of, its, own = MODELS[request.param]
    found = task(of, **its)
    inputs = found.test[torch.arange(2)].inputs
    images = isinstance(inputs, Tensor) and inputs.is_floating_point()
    return request.param, found, SMALL | own, inputs.double() if images else inputs


def outputs(model: nn.Module, inputs: Any) -> Tensor:
    with torch.no_grad():
        out = model(**inputs) if isinstance(inputs, dict) else model(inputs)
    found: Tensor = out if isinstance(out, Tensor) else out.logits
    return found


def test_views_of_a_switched_model_are_verified(case: tuple[str, Any, dict[str, Any], Any]) -> None:
    name, of, options, inputs = case
    for switches in ({"qk_norm": True}, {"layer_scale": 0.1}, BOTH):
        model = lab_model(name, options | switches, of, seed=0).double().eval()
        layers = wc.attention_layers(model, inputs)
        assert len(layers) == 2
        for layer in layers:
            assert layer.standing == "verified", layer.reason
            assert layer.qk_norm == ("qk_norm" in switches)
            assert layer.block is not None
            assert len(layer.block.layer_scale) == (2 if "layer_scale" in switches else 0)
    for layer in wc.diagnose(model, inputs, progress=False).to_dict()["layers"]:
        assert len(layer["jacobian"]) == 3
        assert all(head["condition"]["value"] > 1 for head in layer["jacobian"])


def test_the_jacobian_of_a_switched_model_is_that_of_the_module(case: tuple[str, Any, dict[str, Any], Any]) -> None:
    name, of, options, inputs = case
    model = lab_model(name, options | BOTH, of, seed=0).double().eval()
    layer = wc.attention_layers(model, inputs)[1]
    blocks = oracle_jacobian(layer, model, inputs, head=2)
    expected = torch.linalg.svdvals(torch.cat(list(blocks.values()), 1))
    found = jacobian.singular_values(jacobian.head_of(layer, inputs, 2))
    common = min(len(found), len(expected))  # the compressed matrix may have fewer zeros
    assert (found[:common] - expected[:common]).abs().max() <= 1e-9 * expected[0]
    assert not len(expected[common:]) or expected[common:].max() <= 1e-9 * expected[0]


def test_a_switch_leaves_the_model_s_other_weights_as_they_begin(case: tuple[str, Any, dict[str, Any], Any]) -> None:
    name, of, options, _ = case
    normed = name == "encoder"  # without any switch its layers are torch's own, see the next test
    plain = lab_model(name, options | {"qk_norm": normed, "layer_scale": False}, of, seed=3).state_dict()
    switched = lab_model(name, options | BOTH, of, seed=3).state_dict()
    assert all(torch.equal(switched[key], value) for key, value in plain.items())
    factors, norms = 2 * 2, 2 * 2 * 2  # two of each in a block; a norm has a weight and a bias
    assert len(switched) == len(plain) + factors + (0 if normed else norms)


def test_an_encoder_with_a_switch_begins_with_torch_s_law() -> None:
    shape = {"vocabulary": 9, "tokens": 5, "classes": 2}
    torch.manual_seed(0)
    torchs, ours = Encoder(shape, width=48, depth=2), Encoder(shape, width=48, depth=2, qk_norm=True)
    for a, b in zip(wc.attention_layers(torchs), wc.attention_layers(ours), strict=True):
        for (role, one), (_, other) in zip(a.projections(), b.projections(), strict=True):
            theirs, own = one.read().double(), other.read().double()
            spread = math.sqrt(2 * 0.8 / own.numel())  # of uniform entries, of kurtosis 1.8, twice
            assert float(own.square().mean() / theirs.square().mean()) == pytest.approx(1, abs=5 * spread)
            assert float(own.abs().max()) <= math.sqrt((6 / (4 * 48)) if role != "output" else 1 / 48)
            assert bool((one.read_bias() == 0).all()) == bool((other.read_bias() == 0).all())  # type: ignore[union-attr]


def test_a_layer_scale_of_one_changes_nothing(case: tuple[str, Any, dict[str, Any], Any]) -> None:
    name, of, options, inputs = case
    normed = {"qk_norm": True}  # so that the encoder's layers are the same ones
    model = lab_model(name, options | normed, of, seed=0).double().eval()
    scaled = lab_model(name, options | normed | {"layer_scale": 1.0}, of, seed=0).double().eval()
    torch.testing.assert_close(outputs(scaled, inputs), outputs(model, inputs), rtol=1e-12, atol=1e-12)
    with torch.no_grad():
        for module in scaled.modules():
            if type(module).__name__ == "LayerScale":
                module.gamma.fill_(0.5)  # type: ignore[union-attr, operator]
    assert not torch.allclose(outputs(scaled, inputs), outputs(model, inputs), rtol=1e-3)


def by_hand(layer: Any, x: Tensor, causal: bool) -> Tensor:
    """Softmax attention of normalised queries and keys, without the bias of W_O, from the layer's own weights."""

    def project(role: str) -> Tensor:
        projection = getattr(layer, role)
        out = torch.einsum("bnx,hxd->bhnd", x, projection.read())
        return out if projection.read_bias() is None else out + projection.read_bias()[:, None]

    def normalised(q: Tensor) -> Tensor:
        centred = q - q.mean(-1, keepdim=True)
        return centred / (centred.square().mean(-1, keepdim=True) + 1e-6).sqrt()

    q, k, v = (project(role) for role in ("query", "key", "value"))
    logits = normalised(q) @ normalised(k).mT / math.sqrt(q.shape[-1])
    if causal:
        logits = logits + torch.full_like(logits, -math.inf).triu(1)
    return torch.einsum("bhnd,hxd->bnx", logits.softmax(-1) @ v, layer.output.read())


def test_gpt_normalises_and_scales_as_written_by_hand() -> None:
    of = task("topics-text", length=16)
    model: Any = lab_model("gpt", SMALL | BOTH, of, seed=0).double().eval()
    layer = wc.attention_layers(model)[0]
    x = torch.randn(2, 7, 12, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    block = model.transformer.h[0]
    with torch.no_grad():
        block.scale_1.gamma.copy_(torch.arange(1, 13) / 10)
        given = block.ln_1(x)
        attended = by_hand(layer, given, causal=True) + block.attn.c_proj.bias
        middle = x + attended * torch.arange(1, 13) / 10
        hidden = block.mlp.act(block.mlp.c_fc(block.ln_2(middle)))
        expected = middle + 0.1 * block.mlp.c_proj(hidden)
        # transformers may compute the softmax in float32
        torch.testing.assert_close(block(x), expected, rtol=1e-6, atol=1e-6)


def test_self_attention_normalises_as_written_by_hand() -> None:
    torch.manual_seed(0)
    attention = SelfAttention(12, 3, qk_norm=True).double().eval()
    x = torch.randn(2, 7, 12, dtype=torch.float64)
    expected = by_hand(wc.attention_layers(attention)[0], x, causal=False) + attention.out.bias
    with torch.no_grad():
        torch.testing.assert_close(attention(x), expected, rtol=1e-12, atol=1e-12)


def test_switches_are_trained_and_a_copy_has_its_own(case: tuple[str, Any, dict[str, Any], Any]) -> None:
    name, of, options, inputs = case
    model = lab_model(name, options | BOTH, of, seed=0).double().eval()
    out = model(**inputs) if isinstance(inputs, dict) else model(inputs)
    (out if isinstance(out, Tensor) else out.logits).square().sum().backward()
    switches = {k: p for k, p in model.named_parameters() if any(word in k for word in ("gamma", "q_norm.weight"))}
    assert len(switches) == 2 * 3
    assert all(p.grad is not None and p.grad.abs().max() > 0 for p in switches.values())
    before = outputs(model, inputs)
    other = copy.deepcopy(model)
    with torch.no_grad():
        for key, parameter in other.named_parameters():
            if key in switches:
                parameter.mul_(1.5)
    assert torch.equal(outputs(model, inputs), before)
    assert not torch.allclose(outputs(other, inputs), before, rtol=1e-3)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"qk_norm": "yes"}, "qk_norm is true or false, got 'yes'"),
        ({"layer_scale": True}, "layer_scale is the number above 0 that it begins with, or false for none; got True"),
        ({"layer_scale": 0.0}, "got 0.0"),
        ({"layer_scale": "a"}, "got 'a'"),
    ],
)
def test_a_value_that_is_none_is_refused(options: dict[str, Any], words: str) -> None:
    for name in ("vit", "gpt", "encoder"):
        of, its, own = MODELS[name]
        with pytest.raises(WellcondError, match=words.replace("(", r"\(")):
            lab_model(name, SMALL | own | options, task(of, **its), seed=0)


def test_timm_s_own_switches_are_used_where_it_has_them() -> None:
    digits = task("digits")
    vit = {"patch_size": 4, "embed_dim": 12, "depth": 1, "num_heads": 3}
    model: Any = lab_model("timm:vit_tiny_patch16_224", vit | BOTH, digits, seed=0)
    assert isinstance(model.blocks[0].attn.q_norm, nn.LayerNorm)
    assert model.blocks[0].ls1.gamma.tolist() == pytest.approx([0.1] * 12)
    off: Any = lab_model("timm:vit_tiny_patch16_224", vit | {"qk_norm": False, "layer_scale": False}, digits, seed=0)
    assert isinstance(off.blocks[0].ls1, nn.Identity)
    swin = {"embed_dim": 12, "depths": (1,), "num_heads": (3,), "window_size": 2, "patch_size": 2}
    lab_model("timm:swin_tiny_patch4_window7_224", swin | {"qk_norm": False}, digits, seed=0)
    with pytest.raises(WellcondError, match="has no QK-norm to switch on"):
        lab_model("timm:swin_tiny_patch4_window7_224", swin | {"qk_norm": True}, digits, seed=0)
    with pytest.raises(WellcondError, match="LayerScale"):
        lab_model("timm:swin_tiny_patch4_window7_224", swin | {"layer_scale": 0.1}, digits, seed=0)


def test_a_recipe_is_run_with_switches(tmp_path: Path) -> None:
    text = TINY.replace("dropout = 0.1", "qk_norm = true\nlayer_scale = 0.1").replace("steps = 40", "steps = 2")
    experiment = prepared(write(tmp_path, text), tmp_path / "out", seeds=(0,))
    for arm in arms_of(experiment.recipe):
        assert run_one(experiment, arm, 0) == "finished"
    (start, *_) = [outcome.start for outcome in experiment.outcomes()]
    assert 0.1 < start["beta"] < 3  # which is 0.004 without the norm
    assert LayerScale(2, 0.5).gamma.tolist() == [0.5, 0.5]
