"""Weights as people store them: half precision, meta, tied, frozen, compiled, wrapped, re-assigned, parametrised."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations, parametrize

import wellcond as wc
from tests.cases import CASES
from wellcond.attention.layers import AttentionLayers
from wellcond.testing import same_bits, state


def vit() -> nn.Module:
    return CASES["timm-vit"].model()


def weights(layers: AttentionLayers) -> list[torch.Tensor]:
    return [p.read() for layer in layers for _, p in layer.projections()]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_half_precision_is_the_float32_draw_cast(dtype: torch.dtype) -> None:
    full, half = vit(), vit().to(dtype)
    wc.init_(full, "conditioned", seed=0)
    wc.init_(half, "conditioned", seed=0)
    for a, b in zip(wc.attention_layers(full), wc.attention_layers(half), strict=True):
        for role in ("query", "key", "value"):
            assert same_bits(getattr(a, role).read().to(dtype), getattr(b, role).read())
    assert wc.audit(half, "conditioned").passed


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_condition_numbers_of_half_precision_are_finite(dtype: torch.dtype) -> None:
    """D · eps is above 1 in both dtypes: a rank tolerance made of it would call every head singular."""
    width = 1088
    assert width * torch.finfo(dtype).eps > 1
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = nn.MultiheadAttention(width, 17).to(dtype)
    plan = wc.init_(model, "conditioned", seed=0)
    assert len(plan.conditions()) == 3
    for _, before, after in plan.conditions():
        assert 1 < before < 3  # 1088 × 64 uniform entries: (1 + √(64/1088)) ÷ (1 − √(64/1088)) = 1.64
        assert after == pytest.approx(1, abs=80 * torch.finfo(dtype).eps)


@pytest.mark.parametrize("scheme", ["conditioned", "mimetic", "small_init"])
def test_meta_plan_applied_after_materialisation(scheme: str) -> None:
    with torch.device("meta"):
        deferred = CASES["timm-vit"].build()
    plan = wc.init_(deferred, scheme, seed=2)
    assert not plan.applied
    assert "not applied yet" in str(plan)
    with pytest.raises(wc.errors.WeightError, match="meta"):
        plan.apply_()
    deferred.to_empty(device="cpu")
    plan.apply_()
    direct = vit()
    wc.init_(direct, scheme, seed=2)
    written = {entry.projection.weight.path for entry in plan.entries}
    for name, value in direct.state_dict().items():
        if name in written and "qkv" not in name:
            assert same_bits(value, deferred.state_dict()[name])
    for a, b in zip(plan.entries, wc.plan(direct, scheme, seed=2).entries, strict=True):
        assert same_bits(a.projection.read(), b.projection.read())


def test_tied_weights_are_drawn_once() -> None:
    model = nn.Sequential(*[nn.TransformerEncoderLayer(12, 3, batch_first=True) for _ in range(2)])
    model[1].self_attn.in_proj_weight = model[0].self_attn.in_proj_weight
    plan = wc.init_(model, "conditioned", seed=0)
    assert {entry.layer for entry in plan.entries} == {"0.self_attn"}
    assert ("1.self_attn query", "tied to 0.self_attn query") in plan.skipped
    lone = nn.Sequential(nn.TransformerEncoderLayer(12, 3, batch_first=True))
    wc.init_(lone, "conditioned", seed=0)
    assert same_bits(model[1].self_attn.in_proj_weight.detach(), lone[0].self_attn.in_proj_weight.detach())


def tied_projections() -> nn.Module:
    """Two blocks with one in_proj (Q, K and V), and an output projection each."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = nn.Sequential(*[nn.TransformerEncoderLayer(12, 3, batch_first=True) for _ in range(2)])
    model[1].self_attn.in_proj_weight = model[0].self_attn.in_proj_weight
    return model


def test_tied_weights_with_two_laws_pass_the_audit_of_the_one_written() -> None:
    model = tied_projections()
    wc.init_(model, "depth_scaled", seed=0)
    audit = wc.audit(model, "depth_scaled")
    assert audit.passed, str(audit)
    assert {finding.layer for finding in audit.findings} >= {"0.self_attn", "1.self_attn"}  # the second has its own O


def test_a_joint_law_refuses_half_tied_weights() -> None:
    model = tied_projections()
    before = state(model)
    with pytest.raises(wc.errors.InapplicableError, match="tied"):
        wc.init_(model, "mimetic", seed=0)
    assert all(same_bits(value, before[name]) for name, value in state(model).items())


def test_frozen_parameters_stay_frozen() -> None:
    model = vit()
    model.requires_grad_(False)
    wc.init_(model, "conditioned", seed=0)
    assert wc.audit(model, "conditioned").passed
    assert not any(p.requires_grad for p in model.parameters())


def test_gradient_state_is_untouched() -> None:
    model = vit()
    model(torch.randn(1, 3, *model.patch_embed.img_size)).sum().backward()
    gradients = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    pointers = {name: p.data_ptr() for name, p in model.named_parameters()}
    wc.init_(model, "conditioned", seed=0)
    for name, p in model.named_parameters():
        assert p.is_leaf
        assert p.requires_grad
        assert p.data_ptr() == pointers[name]
        assert name not in gradients or torch.equal(p.grad, gradients[name])


def test_compiled_model_has_the_same_names_and_weights() -> None:
    plain, compiled = vit(), torch.compile(vit(), backend="eager")
    wc.init_(plain, "conditioned", seed=0)
    wc.init_(compiled, "conditioned", seed=0)
    a, b = wc.attention_layers(plain), wc.attention_layers(compiled)
    assert [layer.name for layer in a] == [layer.name for layer in b]
    assert all(same_bits(x, y) for x, y in zip(weights(a), weights(b), strict=True))


def test_views_survive_wrapping_and_reassignment() -> None:
    model = vit()
    layers = wc.attention_layers(model)
    for index, block in enumerate(model.blocks):
        model.blocks[index] = torch.compile(block, backend="eager")
    nn.DataParallel(model)
    donor = CASES["timm-vit"].model()
    wc.init_(donor, "conditioned", seed=9)
    renamed = {name.replace("blocks.0.", "blocks.0._orig_mod."): value for name, value in donor.state_dict().items()}
    renamed = {name.replace("blocks.1.", "blocks.1._orig_mod."): value for name, value in renamed.items()}
    model.load_state_dict(renamed, assign=True)
    expected = wc.attention_layers(donor)
    assert all(same_bits(x, y) for x, y in zip(weights(layers), weights(expected), strict=True))
    layers[0].query.write_(torch.zeros(layers[0].query.shape))
    assert not wc.attention_layers(model)[0].query.read().any()


def test_views_follow_dtype_and_replaced_modules() -> None:
    model = vit()
    layers = wc.attention_layers(model)
    model.double()
    assert layers[0].query.read().dtype == torch.float64
    old = model.blocks[0].attn.qkv
    model.blocks[0].attn.qkv = copy.deepcopy(old)
    layers[0].query.write_(torch.ones(layers[0].query.shape, dtype=torch.float64))
    assert not torch.equal(model.blocks[0].attn.qkv.weight, old.weight)


def _double_weight_norm(layer: nn.Linear) -> None:
    nn.utils.weight_norm(layer)


@pytest.mark.parametrize(
    "wrap",
    [
        lambda layer: parametrizations.weight_norm(layer),
        lambda layer: parametrizations.spectral_norm(layer),
        lambda layer: parametrizations.orthogonal(layer),
        _double_weight_norm,
    ],
)
def test_parametrised_weights_are_read_but_not_written(wrap) -> None:  # type: ignore[no-untyped-def]
    model = vit()
    wrap(model.blocks[1].attn.qkv)
    before = state(model)
    layers = wc.attention_layers(model)
    assert layers[1].query.read().shape == layers[1].query.shape
    with pytest.raises(wc.errors.WeightError, match=r"blocks\.1\.attn\.qkv.*parametrisation"):
        wc.init_(model, "conditioned")
    assert all(same_bits(value, before[name]) for name, value in state(model).items())
    assert not parametrize.is_parametrized(model.blocks[0].attn.qkv)
    wc.init_(model, "conditioned", layers="blocks.0.*")  # the rest can still be initialised


def test_quantised_weights_are_refused() -> None:
    model = vit()
    qkv = model.blocks[0].attn.qkv
    qkv.weight = nn.Parameter(torch.zeros(qkv.weight.shape, dtype=torch.int8), requires_grad=False)
    with pytest.raises(wc.errors.WeightError, match="int8"):
        wc.init_(model, "conditioned")


def test_empty_zero3_shards_are_refused() -> None:
    model = CASES["hf-bert"].model()
    for parameter in model.parameters():
        parameter.ds_id, parameter.ds_shape = 0, parameter.shape
        parameter.data = torch.empty(0)
    with pytest.raises(wc.errors.WeightError, match="ZeRO-3"):
        wc.init_(model, "conditioned")


def test_no_attention_says_what_was_looked_for() -> None:
    with pytest.raises(wc.errors.NoAttentionError, match=r"qkv.*register_attention"):
        wc.init_(nn.Sequential(nn.Linear(3, 3)), "conditioned")


def test_modes_and_hooks_are_restored_by_verify() -> None:
    model = vit().double().train()
    model.blocks[0].eval()
    modes = [module.training for module in model.modules()]
    case = CASES["timm-vit"]
    assert wc.attention_layers(model)[0].verify(case.batch())
    assert [module.training for module in model.modules()] == modes
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())
