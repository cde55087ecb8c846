"""Spectral conditioning on every case: what it promises, what it says, and that it can be taken back."""

from __future__ import annotations

import copy
import itertools
import math
import warnings
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import wellcond as wc
from tests.cases import CASES
from tests.training import MODELS, distance, effective, loss, optimizer_of, train
from wellcond._core.polar import largest_eigenvalue, polar_rows
from wellcond.testing import same_bits, state

HOT = pytest.mark.filterwarnings("ignore:attention starts one-hot", "ignore:Theorem 3.8 promises")


def heads_of(model: nn.Module, *roles: str) -> list[tuple[str, str, Tensor]]:
    """Every head's weight as it is used, in float64."""
    return [
        (layer.name, role, projection.read().double())
        for layer in wc.attention_layers(model)
        for role, projection in layer.projections(*(roles or ("query", "key", "value")))
    ]


def call(model: nn.Module, batch: Any) -> Any:
    if isinstance(batch, dict):
        return model(**batch)
    return model(*batch) if isinstance(batch, tuple) else model(batch)


# Theorem 3.5.


@pytest.mark.parametrize("name", CASES)
def test_polar_keeps_every_head_of_every_case_within_two(name: str) -> None:
    model = CASES[name].model()
    with torch.no_grad():  # one layer's first heads rank deficient, nearly singular and equal to zero
        layer = wc.attention_layers(model)[0]
        for role, projection in layer.projections("query", "key", "value"):
            weight = projection.read()
            damage = {"query": 0.0, "key": 1e-6}.get(role)
            if damage is not None:
                weight[0, :, -1] = weight[0, :, 0] * (1 + damage)
                weight[0, 0, -1] += damage * weight.abs().max()
            elif len(weight) > 1:
                weight[0] = 0
            projection.write_(weight)
    before = heads_of(model)
    handle = wc.condition_(model, "polar")
    for (where, role, stored), (_, _, used) in zip(before, heads_of(model), strict=True):
        for head, (w, v) in enumerate(zip(stored, used, strict=True)):
            sigma = torch.linalg.svdvals(w)
            if sigma[0] == 0:
                assert not v.any()
                continue
            after = torch.linalg.svdvals(v)
            formula = 2 * sigma[0] / (sigma[0] + sigma[-1])
            assert float(after[0] / after[-1]) <= 2 + 1e-4, (where, role, head)
            assert float((after[0] / after[-1] - formula).abs()) < 1e-5, (where, role, head)
    assert handle.summary().holds
    assert {head.status for head in handle.summary().heads} <= {"ok", "zero"}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("condition", [1.0, 3.0, 30.0, 300.0, 1e4, 1e8, math.inf])
def test_the_polar_factor_is_that_of_the_svd(condition: float, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    u, _, vt = torch.linalg.svd(torch.randn(5, 8, 20, dtype=torch.float64, generator=generator), full_matrices=False)
    sigma = torch.logspace(0, -math.log10(condition), 8, dtype=torch.float64) if condition < math.inf else torch.ones(8)
    if condition == math.inf:
        sigma[-2:] = 0
    rows = ((u * sigma) @ vt).to(dtype)
    factor, largest = polar_rows(rows)
    eps = torch.finfo(dtype).eps
    assert float((factor @ factor.mT - torch.eye(8, dtype=dtype)).abs().max()) < 32 * eps
    assert torch.allclose(largest, torch.ones(5, dtype=dtype), rtol=3e-6)
    symmetric = rows @ factor.mT  # H of R = H P: symmetric, non-negative
    # Products see R through its Gram matrix, whose rounding is eps σ_max²: eps κ in the directions of σ_min.
    allowed = (64 + 2 * min(condition, 1e3)) * eps
    assert float((symmetric - symmetric.mT).abs().max()) < allowed
    assert float(torch.linalg.eigvalsh(symmetric.double()).min()) > -allowed
    if condition <= 30:
        assert torch.allclose(factor.double(), u @ vt, atol=32 * eps * condition)


@pytest.mark.parametrize("gap", [0.0, 1e-7, 1e-5, 1e-4, 1e-3, 1e-2, 0.3])
def test_the_largest_eigenvalue_whatever_the_gap(gap: float) -> None:
    generator = torch.Generator().manual_seed(0)
    basis = torch.linalg.qr(torch.randn(4, 64, 64, generator=generator, dtype=torch.float64))[0]
    values = torch.linspace(0.2, 1 - gap, 63, dtype=torch.float64)
    gram = (basis * torch.cat([values, torch.ones(1, dtype=torch.float64)])) @ basis.mT
    found = largest_eigenvalue(gram.float())
    assert float((found.double() - 1).abs().max()) < 6e-6


def test_diverged_weights_come_out_as_nan() -> None:
    model = MODELS["vit"](torch.float32)
    wc.condition_(model, "polar")
    with torch.no_grad():
        next(p for n, p in model.named_parameters() if "qkv.weight" in n).view(-1)[0] = math.nan
    assert torch.isnan(model(torch.zeros(1, 3, 16, 16))).any()


def test_polar_training_equals_the_papers_procedure() -> None:
    """An SVD of each head at each forward pass, no gradient through it, against ours, over real training."""

    class Svd(nn.Module):
        def forward(self, weight: Tensor) -> Tensor:
            with torch.no_grad():
                u, s, vt = torch.linalg.svd(weight.reshape(9, 8, 24), full_matrices=False)
                correction = (s[:, :1, None] * (u @ vt)).reshape(weight.shape)
            return weight + correction

    literal, ours = MODELS["vit"](torch.float64), MODELS["vit"](torch.float64)
    for block in literal.blocks:
        nn.utils.parametrize.register_parametrization(block.attn.qkv, "weight", Svd())
    wc.condition_(ours, "polar")
    for model in (literal, ours):
        train(model, optimizer_of("adamw", model), 100)
    assert distance(effective(literal), effective(ours)) < 1e-9


def test_polar_every_few_steps_keeps_the_correction_in_between() -> None:
    model = MODELS["vit"](torch.float64)
    wc.condition_(model, "polar", every=3)
    optimizer = optimizer_of("adamw", model)
    qkv = model.blocks[0].attn.qkv
    corrections = []
    for _ in range(7):
        corrections.append((qkv.weight - qkv._parameters["weight"]).detach().clone())
        train(model, optimizer, 1)
    close = [torch.allclose(a, b, atol=1e-14) for a, b in itertools.pairwise(corrections)]
    assert close == [True, True, False, True, True, False]


# Theorem 3.8, in its sound form.


@HOT
@pytest.mark.parametrize("mode", ["folded", "live"])
@pytest.mark.parametrize("placement", ["head", "layer"])
def test_shift_adds_the_identity_to_each_head(placement: str, mode: str) -> None:
    model = CASES["hf-llama"].model().double()  # separate weights, grouped-query
    before = heads_of(model)
    wc.condition_(model, "shift", strength={"qk": 3, "v": 0.5}, placement=placement, mode=mode)
    for (where, role, w), (_, _, v) in zip(before, heads_of(model), strict=True):
        heads, width, d = w.shape
        for head in range(heads):
            first = head * d if placement == "layer" else 0
            expected = torch.zeros(width, d, dtype=torch.float64)
            for i in range(d):
                if first + i < width:
                    expected[first + i, i] = 0.5 if role == "value" else 3.0
            assert torch.allclose(v[head] - w[head], expected, atol=1e-15), (where, role, head)


def test_the_guarantee_is_the_sound_one() -> None:
    """diag(−1.9, 0.5) with λ = 2 meets the paper's condition, and κ rises from 3.8 to 25."""
    model = nn.MultiheadAttention(2, 1, bias=False).double()
    with torch.no_grad():
        model.in_proj_weight.copy_(torch.diag(torch.tensor([-1.9, 0.5])).repeat(3, 1))
    with pytest.warns(UserWarning, match=r"promises nothing for  ?query head 0"):
        handle = wc.condition_(model, "shift", strength=1.8)
    head = handle.summary().heads[0]
    assert head.trained == pytest.approx(3.8)
    assert head.status == "no guarantee"
    assert head.bound == math.inf
    handle.strength_(2)
    head = handle.summary().heads[0]
    assert head.effective == pytest.approx(25)
    assert head.bound == pytest.approx(3.9 / 0.1)
    assert head.status == "ok"


@HOT
def test_the_bound_holds_for_random_heads() -> None:
    model = CASES["timm-vit"].model()
    wc.init_(model, "xavier", seed=3)
    for strength in (0.5, 1, 2, 5, -3):
        handle = wc.condition_(model, "shift", strength=strength)
        for head in handle.summary().heads:
            assert head.status in ("ok", "no guarantee")
            assert head.status == ("ok" if abs(strength) > head.sigma_max else "no guarantee")
            if head.bound < math.inf:
                assert head.effective <= head.bound * (1 + 1e-4)
        handle.remove_()


def test_one_hot_attention_is_said_with_the_strength_that_is_not() -> None:
    model = timm_tiny()
    with pytest.warns(UserWarning, match="one-hot") as said:
        wc.condition_(model, "shift", strength=10).remove_()
    text = next(str(w.message) for w in said if "one-hot" in str(w.message))
    largest = float(text.rsplit(" ", 1)[1])
    assert 0.5 < largest < 3
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        wc.condition_(model, "shift", strength=0.98 * largest).remove_()
    with pytest.warns(UserWarning, match="one-hot"):
        wc.condition_(model, "shift", strength=1.02 * largest)


def test_the_self_bias_predicts_what_attention_does() -> None:
    """Softmax weights of random unit-variance tokens, against the prediction that the warning rests on."""
    from wellcond.conditioning.guarantee import SelfBias
    from wellcond.conditioning.safe_strength import LogitMoments

    model = timm_tiny()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        wc.condition_(model, "shift", strength=1.0)
    layer = wc.attention_layers(model)[0]
    query, key = layer.query.read(), layer.key.read()
    biases = LogitMoments.of(layer, (query, 0 * query), (key, 0 * key)).at(0.0)
    tokens = torch.randn(40, 256, 192, generator=torch.Generator().manual_seed(0))
    for head in range(3):
        logits = layer.scale * (tokens @ query[head]) @ (tokens @ key[head]).mT
        own = logits.softmax(-1).diagonal(dim1=1, dim2=2)
        assert float(logits.diagonal(dim1=1, dim2=2).mean()) == pytest.approx(biases[head].mean, rel=0.02)
        assert float(own.mean()) == pytest.approx(biases[head].row(256, cosine=0.0).own, abs=0.03)
    assert SelfBias("", 0, 1000.0, 1.0).row().own == pytest.approx(1)
    assert SelfBias("", 0, 0.0, 0.0).row(256).own == pytest.approx(1 / 256)


def test_half_of_attention_goes_to_self_at_the_strength_that_the_theory_has() -> None:
    """ViT-B sizes, entries of deviation 0.02: λ = 0.96 for tokens of cosine 0.2; T = 197 or 256 matters little."""
    layer = torch.nn.MultiheadAttention(768, 12, bias=False)
    torch.nn.init.normal_(layer.in_proj_weight, std=0.02, generator=torch.Generator().manual_seed(0))
    with pytest.warns(UserWarning, match="one-hot") as said:
        wc.condition_(layer, "shift", strength=10)
    text = next(str(w.message) for w in said if "one-hot" in str(w.message))
    half = float(text.split("from strength ")[1].split(" ")[0])
    assert half == pytest.approx(0.96, abs=0.03)
    assert "entropy" in text


def timm_tiny() -> nn.Module:
    import timm

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return timm.create_model("vit_tiny_patch16_224", depth=1)


# Modes.


@HOT
@pytest.mark.parametrize("name", CASES)
def test_every_case_folds_unfolds_and_comes_back(name: str) -> None:
    model = CASES[name].model().double()
    original = state(model)
    handle = wc.condition_(model, "shift", strength=1.5)
    folded = state(model)
    assert original.keys() == folded.keys()
    assert any(not same_bits(original[key], folded[key]) for key in original)
    handle.unfold_()
    assert all(same_bits(value, folded[key]) for key, value in model.state_dict().items() if key in folded)  # used
    assert all(same_bits(value, original[key]) for key, value in state(model).items())  # what is stored
    handle.fold_()
    handle.strength_(0.25)
    handle.strength_(1.5)
    assert all(same_bits(value, folded[key]) for key, value in state(model).items())
    handle.remove_()
    assert all(same_bits(value, original[key]) for key, value in state(model).items())
    assert not handle.active


@HOT
def test_neutral_is_identical() -> None:
    model = CASES["timm-vit"].model()
    before = state(model)
    wc.condition_(model, "shift", strength=0)
    wc.condition_(model, "shift", strength=5, layers=[])
    wc.condition_(model, "shift", strength={"q": 0}, mode="live")
    assert all(same_bits(value, before[key]) for key, value in state(model).items())


@HOT
def test_roles_and_layers() -> None:
    model = CASES["timm-vit"].model().double()
    before = heads_of(model)
    wc.condition_(model, "shift", strength=2, roles="v", layers="blocks.1.*")
    moved = [(w, r) for (w, r, a), (_, _, b) in zip(before, heads_of(model), strict=True) if not torch.equal(a, b)]
    assert moved == [("blocks.1.attn", "value")]


@HOT
def test_half_precision_is_live() -> None:
    model = CASES["timm-vit"].model().bfloat16()
    with pytest.raises(wc.errors.WeightError, match="live"):
        wc.condition_(model, "shift", mode="folded")
    assert wc.condition_(model, "shift").mode == "live"


@pytest.mark.parametrize(
    ("options", "error", "match"),
    [
        ({"method": "shfit"}, wc.errors.SchemeError, "there are shift, polar"),
        ({"strength": "much"}, wc.errors.ArgumentError, "finite number"),
        ({"strength": math.inf}, wc.errors.ArgumentError, "finite number"),
        ({"strength": True}, wc.errors.ArgumentError, "finite number"),
        ({"strength": {"output": 1}}, wc.errors.SchemeError, "roles are some of"),
        ({"roles": "qo"}, wc.errors.SchemeError, "roles are some of"),
        ({"roles": ()}, wc.errors.SchemeError, "roles are some of"),
        ({"placement": "row"}, wc.errors.SchemeError, "'head' or 'layer'"),
        ({"placement": "head", "method": "polar"}, wc.errors.SchemeError, "no option placement"),
        ({"method": "polar", "mode": "folded"}, wc.errors.SchemeError, "follows the weights"),
        ({"method": "polar", "strength": -1}, wc.errors.SchemeError, "positive"),
        ({"method": "polar", "every": 0}, wc.errors.SchemeError, "every"),
        ({"mode": "alive"}, wc.errors.ArgumentError, "mode is 'folded' or 'live'"),
        ({"layers": "decoder.*"}, wc.errors.LayerFilterError, "decoder"),
    ],
)
def test_bad_input_changes_nothing(options: dict[str, Any], error: type[Exception], match: str) -> None:
    model = CASES["timm-vit"].model()
    before = state(model)
    with pytest.raises(error, match=match):
        wc.condition_(model, **options)
    assert all(same_bits(value, before[key]) for key, value in state(model).items())
    assert not any("_wellcond" in module.__dict__ for module in model.modules())


def test_what_cannot_be_conditioned() -> None:
    with torch.device("meta"):
        meta = CASES["timm-vit"].build()
    with pytest.raises(wc.errors.WeightError, match="meta"):
        wc.condition_(meta)
    model = CASES["timm-vit"].model()
    wc.condition_(model, "polar")
    with pytest.raises(wc.errors.WeightError, match="conditioned already"):
        wc.condition_(model, "polar", every=2)
    with pytest.raises(wc.errors.WeightError, match="condition_"):
        wc.init_(model, "conditioned")
    broken = CASES["timm-vit"].model()
    with torch.no_grad():
        broken.blocks[1].attn.qkv.weight[0, 0] = math.nan
    with pytest.raises(wc.errors.WeightError, match=r"blocks.1.attn.qkv.weight.*finite"):
        wc.condition_(broken)


@HOT
def test_tied_weights_are_shifted_once() -> None:
    for mode in ("folded", "live"):
        model = nn.Sequential(*[nn.TransformerEncoderLayer(12, 3, batch_first=True) for _ in range(2)])
        model[1].self_attn.in_proj_weight = model[0].self_attn.in_proj_weight
        before = heads_of(model)
        wc.condition_(model, "shift", strength=2, mode=mode)
        for (_, _, w), (_, _, v) in zip(before, heads_of(model), strict=True):
            assert torch.allclose(v - w, 2 * torch.eye(12, 4, dtype=torch.float64).expand_as(w), atol=1e-6)


# Company.


def conditioned(how: str, name: str = "vit", dtype: torch.dtype = torch.float64) -> tuple[nn.Module, wc.Conditioning]:
    model = MODELS[name](dtype)
    if how == "polar":
        return model, wc.condition_(model, "polar")
    return model, wc.condition_(model, "shift", strength=1, mode=how)


@HOT
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("how", ["folded", "live", "polar"])
def test_compiled_training_equals_eager(how: str, name: str) -> None:
    eager, handle = conditioned(how, name)
    compiled, other = conditioned(how, name)
    first, second = optimizer_of("adamw", eager), optimizer_of("adamw", compiled)
    handle.attach(first)
    other.attach(second)
    train(eager, first, 5)
    wrapped = torch.compile(compiled, backend="aot_eager", fullgraph=True)
    train(wrapped, second, 5)
    assert distance(effective(eager), effective(compiled)) < 1e-10


@HOT
@pytest.mark.parametrize("how", ["live", "polar"])
def test_gradients_with_activation_checkpointing_and_autocast(how: str) -> None:
    model, _ = conditioned(how)
    inputs = torch.randn(2, 3, 16, 16, dtype=torch.float64)
    torch.autograd.backward(model(inputs).sum())
    plain = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    model.zero_grad()
    model.set_grad_checkpointing(True)
    torch.autograd.backward(model(inputs).sum())
    assert all(torch.allclose(p.grad, plain[n], atol=1e-12) for n, p in model.named_parameters() if n in plain)
    out = checkpoint(model, inputs, use_reentrant=True)
    assert out.shape == (2, 5)
    half, _ = conditioned(how, dtype=torch.float32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        half(inputs.float()).sum().backward()
    assert all(torch.isfinite(p.grad).all() for p in half.parameters() if p.grad is not None)


@HOT
@pytest.mark.parametrize("how", ["live", "polar"])
def test_evaluation_in_inference_mode_leaves_training_alone(how: str) -> None:
    model, _ = conditioned(how)
    inputs = torch.randn(2, 3, 16, 16, dtype=torch.float64)
    with torch.inference_mode():
        first = model(inputs)
    train(model, optimizer_of("adamw", model), 2)
    with torch.inference_mode():
        assert not torch.equal(model(inputs), first)
    train(model, optimizer_of("adamw", model), 2)


@HOT
@pytest.mark.parametrize("how", ["folded", "live", "polar"])
def test_weights_changed_by_hand_are_noticed(how: str) -> None:
    model, _ = conditioned(how)
    twin = copy.deepcopy(model)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(0.5)
        for parameter in twin.parameters():
            parameter.copy_(0.5 * parameter)
    inputs = torch.randn(2, 3, 16, 16, dtype=torch.float64)
    fresh = MODELS["vit"](torch.float64)
    fresh.load_state_dict(model.state_dict())
    assert torch.allclose(model(inputs), twin(inputs), atol=1e-14)
    assert torch.allclose(model(inputs), fresh(inputs), atol=1e-12)


@HOT
def test_the_summary_and_the_cost_print() -> None:
    model = timm_tiny()
    handle = wc.condition_(model, "polar")
    text = str(handle.summary())
    assert "κ(W)" in text
    assert max(len(line) for line in text.splitlines()) <= 100
    cost = handle.cost(tokens=197)
    plain, with_it, _ = cost["the same as X W + X C (the paper's Table 9)"]
    assert plain == 6 * 197 * 192 * 64 * 3  # 6 N D d per head
    assert with_it - plain == 3 * 197 * 64 * 3  # 3 N d per head
    assert cost["memory of the effective weights, bytes"] == (0, 3 * 192 * 192 * 4, 3 * 192 * 192 * 4)
    assert cost["FLOPs of matrix products per step"][2] > 0
    assert "÷" not in str(cost)
    loss_value = loss(MODELS["gpt2"](torch.float64), next(iter([(torch.ones(2, 8).long(),) * 2])))
    assert torch.isfinite(loss_value)
