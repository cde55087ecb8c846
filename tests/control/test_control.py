"""`wc.control_` on real training: nothing happens inside the bands, and what leaves them is brought back exactly."""

from __future__ import annotations

import copy
import itertools
import math
import warnings

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import wellcond as wc
from tests.attention.test_head_blocks import deepseek
from tests.cases import CASES
from tests.training import HEADS, MODELS, WIDTH, batches, loss
from wellcond.control.limit_condition import limit_condition
from wellcond.scale.outputs import largest_change, model_outputs

pytestmark = pytest.mark.filterwarnings("ignore:control_.*below its band")


def train(model: nn.Module, optimizer: torch.optim.Optimizer, steps: int, skip: int = 0) -> None:
    for batch in list(batches(model, next(model.parameters()).dtype, skip + steps))[skip:]:
        optimizer.zero_grad()
        loss(model, batch).backward()
        optimizer.step()


def head_logits(model: nn.Module, images: Tensor, block: int = 0) -> Tensor:
    """Logits of one layer of the ViT, by a hook and arithmetic of this test's own: `(B, H, N, N)`."""
    seen = []
    attention = model.blocks[block].attn
    hook = attention.register_forward_pre_hook(lambda _, args: seen.append(args[0].detach()))
    with torch.no_grad(), hook:
        model.eval()(images)
    x = seen[0]
    qkv = functional.linear(x, attention.qkv.weight, attention.qkv.bias)
    q, k, _ = qkv.reshape(*x.shape[:2], 3, HEADS, WIDTH // HEADS).permute(2, 0, 3, 1, 4).detach()
    return q @ k.mT / math.sqrt(WIDTH // HEADS)


def betas(logits: Tensor) -> Tensor:
    return (logits.std(-1) / math.sqrt(2 * math.log(logits.shape[-1]))).mean((0, 2))


@pytest.mark.parametrize("kind", ["vit", "gpt2"])
def test_training_within_the_bands_is_the_same_to_the_bit(kind):
    plain, controlled = (MODELS[kind](torch.float32) for _ in range(2))
    torch.manual_seed(3)
    train(plain, torch.optim.AdamW(plain.parameters(), lr=1e-3), 12)
    after = torch.rand(1)
    torch.manual_seed(3)
    optimizer = torch.optim.AdamW(controlled.parameters(), lr=1e-3)
    bands = {"beta": (1e-9, 50.0), "max_logit": 1e4, "kappa": 1e6, "balance": 1e6}
    with wc.control_(controlled, optimizer, **bands, every=3, audit=True) as control:
        train(controlled, optimizer, 12)
    assert control.looks == 4
    assert {record.part for record in control.log} == {"audit"}
    assert all(torch.equal(a, b) for a, b in zip(plain.parameters(), controlled.parameters(), strict=True))
    assert torch.equal(after, torch.rand(1))


def sharp_vit(factor: float = 40.0) -> nn.Module:
    model = MODELS["vit"](torch.float64)
    with torch.no_grad():
        model.blocks[0].attn.qkv.weight[: WIDTH // HEADS] *= factor  # the query of head 0
    return model


def test_sharpness_comes_to_the_edge_of_its_band():
    model = sharp_vit()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    images = next(batches(model, torch.float64, 1))[0]
    before = betas(head_logits(model, images[:2]))
    high = float(before[1:].max()) * 1.5
    assert before[0] > 5 * high
    control = wc.control_(model.train(), optimizer, beta=(1e-9, high), max_logit=None, every=1)
    train(model, optimizer, 1)
    now = betas(head_logits(model, images[:2]))
    assert float(now[0]) == pytest.approx(high, rel=1e-6)
    assert torch.allclose(now[1:], before[1:], rtol=1e-12)
    assert [(r.part, r.head, r.quantity) for r in control.log] == [("sharpness", 0, "β")]
    control.remove_()


@pytest.mark.parametrize("rule", ["bands", "qk_clip"])
def test_the_largest_logit_is_clipped_as_published(rule):
    """γ = τ/S_max, W_Q and W_K × √γ, for the heads above τ alone."""
    model = sharp_vit()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    images = next(batches(model, torch.float64, 1))[0]
    logits = head_logits(model, images[:2]).abs().amax((0, 2, 3))
    limit = float(logits[0]) / 4
    assert (logits[1:] < limit).all()
    kept = model.blocks[0].attn.qkv.weight.detach().clone()
    control = wc.control_(model.train(), optimizer, beta=(1e-9, 1e9), max_logit=limit, every=1, rule=rule)
    train(model, optimizer, 1)
    d, now = WIDTH // HEADS, model.blocks[0].attn.qkv.weight.detach()
    assert float(head_logits(model, images[:2])[:, 0].abs().max()) == pytest.approx(limit, rel=1e-6)
    for start in (0, WIDTH):
        assert torch.allclose(now[start : start + d], kept[start : start + d] / 2, rtol=1e-6)
    assert torch.equal(now[d:WIDTH], kept[d:WIDTH])
    assert torch.equal(now[2 * WIDTH :], kept[2 * WIDTH :])
    assert control.log[0].quantity == "logit"


def test_latent_attention_comes_to_its_limit_though_keys_share_a_rotary_part(monkeypatch):
    model, batch = deepseek()
    found = []
    original = functional.softmax

    def seen(x: Tensor, *args, **kwargs) -> Tensor:
        if x.ndim == 4:
            found.append(x.masked_fill(x < -1e9, 0.0).abs().amax((0, 2, 3)).detach())
        return original(x, *args, **kwargs)

    def largest() -> Tensor:
        found.clear()
        with torch.no_grad(), monkeypatch.context() as patch:
            patch.setattr(functional, "softmax", seen)
            model(**batch)
        return torch.stack(found)

    model.set_attn_implementation("eager")
    before = largest()
    assert before.shape == (2, 4)
    limit = float(before[0].median())
    control = wc.control_(
        model, torch.optim.SGD(model.parameters(), lr=0.0), rule="qk_clip", max_logit=limit, batch=batch
    )
    control.look()
    expected = before[0].clamp_max(limit)
    assert torch.allclose(largest()[0], expected, rtol=1e-6)


def test_the_spectrum_comes_to_its_limit_at_the_same_norm():
    model = MODELS["vit"](torch.float64)
    d = WIDTH // HEADS
    with torch.no_grad():
        model.blocks[1].attn.qkv.weight[WIDTH + d] *= 1e-3  # a row of the key of head 1
    before = model.blocks[1].attn.qkv.weight.detach().clone()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    others = [w for block in model.blocks for w in torch.linalg.cond(block.attn.qkv.weight.view(-1, d, WIDTH)).tolist()]
    kappa = 1.05 * sorted(others)[-2]
    wc.control_(model, optimizer, beta=None, max_logit=None, kappa=kappa, every=1)
    train(model, optimizer, 1)
    now = model.blocks[1].attn.qkv.weight.detach()
    head, old = now[WIDTH + d : WIDTH + 2 * d], before[WIDTH + d : WIDTH + 2 * d]
    assert float(torch.linalg.cond(head)) == pytest.approx(kappa, rel=1e-9)
    assert float(head.norm()) == pytest.approx(float(old.norm()), rel=1e-12)
    changed = (now != before).any(1)
    assert changed[WIDTH + d : WIDTH + 2 * d].all()
    assert int(changed.sum()) == d


def test_the_closed_form_against_a_search():
    """ε by bisection on κ of the mixture, and the same norm."""
    weight = torch.randn(1, 10, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    weight[0, :, 1] *= 0.01
    u, s, vt = torch.linalg.svd(weight[0], full_matrices=False)
    mean, limit, low, high = s.norm() / 2, 4.0, 0.0, 1.0
    for _ in range(200):
        middle = (low + high) / 2
        mixed = (1 - middle) * weight[0] + middle * mean * (u @ vt)
        low, high = (middle, high) if torch.linalg.cond(mixed) > limit else (low, middle)
    mixed *= weight.norm() / mixed.norm()
    assert torch.allclose(limit_condition(weight, limit)[0], mixed, atol=1e-12)


@pytest.mark.parametrize("name", ["timm-vit", "hf-llama", "hf-gpt2", "hf-bert", "torch-encoder", "hf-qwen3"])
def test_balancing_a_thousand_times_changes_no_output(name):
    case = CASES[name]
    model, batch = case.model().double(), case.batch()
    generator = torch.Generator().manual_seed(0)
    layer = wc.attention_layers(model)[0]
    with torch.no_grad():
        for projection, factor in ((layer.query, 30.0), (layer.output, 1 / 30)):
            projection.write_(projection.read() * factor)
        layer.key.write_(layer.key.read() * 1 / 30)
        layer.value.write_(layer.value.read() * 30.0)
    before = model_outputs(model, batch)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        control = wc.control_(model, optimizer, beta=None, max_logit=None, balance=1.01, batch=batch)
        for look in range(1000 if name == "torch-encoder" else 30):
            if look % 100 == 50:  # knocked out of balance again
                with torch.no_grad():
                    c = float(torch.rand((), generator=generator)) * 5 + 1
                    layer.query.write_(layer.query.read() * c)
                    layer.key.write_(layer.key.read() / c)
                    for p, f in ((layer.query, c), (layer.key, 1 / c)):
                        if p.bias is not None:
                            p.store_bias_(p.read_bias() * f)
            control.look()
    assert any(record.acted for record in control.log)
    assert largest_change(before, model_outputs(model, batch)) < 1e-9


def test_moments_go_along_with_a_balance():
    model = MODELS["vit"](torch.float64)
    with torch.no_grad():
        model.blocks[0].attn.qkv.weight[:WIDTH] *= 100
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-6)
    train(model, optimizer, 2)
    kept = copy.deepcopy(optimizer.state[model.blocks[0].attn.qkv.weight])
    control = wc.control_(
        model,
        optimizer,
        beta=None,
        max_logit=None,
        balance=2.0,
        every=1,
        batch=torch.randn(1, 3, 16, 16, dtype=torch.float64),
    )
    weight = model.blocks[0].attn.qkv.weight.detach().clone()
    control.look()
    state = optimizer.state[model.blocks[0].attn.qkv.weight]
    factor = (model.blocks[0].attn.qkv.weight.detach() / weight)[:, :1]
    assert float(factor[0]) == pytest.approx(1 / 1.1)
    assert torch.allclose(state["exp_avg"], kept["exp_avg"] / factor)
    assert torch.allclose(state["exp_avg_sq"], kept["exp_avg_sq"] / factor**2)
    control.undo_()
    assert torch.equal(model.blocks[0].attn.qkv.weight.detach(), weight)
    assert torch.equal(state["exp_avg"], kept["exp_avg"])


def test_a_dry_run_only_logs():
    model = sharp_vit()
    kept = copy.deepcopy(model.state_dict())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    control = wc.control_(model.train(), optimizer, beta=(1e-9, 0.1), kappa=1.5, balance=1.01, every=1, act=False)
    train(model, optimizer, 1)
    assert {record.part for record in control.log} >= {"sharpness", "spectrum", "balance"}
    assert not any(record.acted for record in control.log)
    assert all(torch.equal(kept[name], value) for name, value in model.state_dict().items())


def test_a_resumed_run_has_the_same_bits():
    def start():
        model = sharp_vit(4.0)
        optimizer = wc.optim.Muon(model, lr=0.02, per_head=True)
        return model, optimizer, wc.control_(model, optimizer, beta=(1e-9, 0.12), kappa=4.0, every=4)

    straight, optimizer, control = start()
    train(straight, optimizer, 12)
    assert any(record.acted for record in control.log)
    half, optimizer, control = start()
    train(half, optimizer, 6)
    state = copy.deepcopy((half.state_dict(), optimizer.state_dict(), control.state_dict()))
    again, optimizer, control = start()
    again.load_state_dict(state[0])
    optimizer.load_state_dict(state[1])
    control.load_state_dict(state[2])
    train(again, optimizer, 6, skip=6)
    assert all(torch.equal(a, b) for a, b in zip(straight.parameters(), again.parameters(), strict=True))


def test_what_may_not_be_written_is_an_alarm():
    model = MODELS["vit"](torch.float64)
    nn.utils.parametrizations.spectral_norm(model.blocks[0].attn.qkv)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    control = wc.control_(model, optimizer, beta=(1e-9, 1e-6), every=1)
    with pytest.warns(UserWarning, match="computed from other tensors"):
        train(model, optimizer, 1)
    assert {record.layer for record in control.log if record.acted} == {"blocks.1.attn"}


def test_a_model_that_is_never_called_is_an_alarm():
    model = MODELS["vit"](torch.float64)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    wc.control_(model, optimizer, every=1)
    with pytest.warns(UserWarning, match="was not called in training mode"):
        optimizer.step()


def test_compiled_training_is_controlled():
    model = sharp_vit()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    compiled = torch.compile(model, backend="eager")
    control = wc.control_(compiled, optimizer, beta=(1e-9, 0.05), max_logit=None, every=2)
    for batch in batches(model, torch.float64, 4):
        optimizer.zero_grad()
        loss(compiled, batch).backward()
        optimizer.step()
    assert any(record.acted for record in control.log)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"beta": (0.8, 0.2)}, "least and largest"),
        ({"kappa": 1.0}, "kappa"),
        ({"rule": "qk_clip", "max_logit": None}, "max_logit"),
        ({"every": 0}, "every"),
        ({"layers": "nothing"}, "nothing"),
    ],
)
def test_wrong_arguments_are_told(options, words):
    model = nn.TransformerEncoderLayer(8, 2, 16)
    with pytest.raises(wc.errors.WellcondError, match=words):
        wc.control_(model, torch.optim.SGD(model.parameters(), lr=0.1), **options)


def test_collapsing_updates_are_told_before_anything_is_acted_on():
    model = MODELS["vit"](torch.float64)
    generator = torch.Generator().manual_seed(0)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    images = torch.randn(2, 3, 16, 16, dtype=torch.float64)
    control = wc.control_(model, optimizer, beta=(1e-9, 1e9), max_logit=None, updates=True, every=1, batch=images)
    weight = model.blocks[0].attn.qkv.weight
    for step in range(6):
        update = torch.randn(weight.shape, generator=generator, dtype=torch.float64)
        weight.grad = 1e-4 * (update if step < 5 else torch.outer(update[:, 0], update[0]))
        if step < 5:
            optimizer.step()
        else:
            with pytest.warns(UserWarning, match="updates: .* of its usual"):
                optimizer.step()
    assert {record.part for record in control.log} == {"updates"}
    assert {record.step for record in control.log} == {6}


@pytest.mark.parametrize("act", [True, False])
def test_moments_of_a_fused_weight_are_put_back(act):
    """Both products are balanced, and their moments lie in one tensor."""
    model = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
    optimizer, x = torch.optim.AdamW(model.parameters(), lr=1e-3), torch.randn(4, 5, 8)
    model(x).square().mean().backward()
    optimizer.step()
    kept = copy.deepcopy((model.state_dict(), optimizer.state_dict()["state"]))
    control = wc.control_(model, optimizer, beta=None, max_logit=None, balance=1.0001, batch=x, act=act)
    assert len({record.layer for record in control.look()}) == 2
    if act:
        control.undo_()
    assert all(torch.equal(kept[0][name], value) for name, value in model.state_dict().items())
    for index, state in optimizer.state_dict()["state"].items():
        assert all(torch.equal(kept[1][index][name], value) for name, value in state.items())


def test_an_action_is_not_undone_after_further_steps():
    model = sharp_vit()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    control = wc.control_(model, optimizer, beta=(1e-9, 0.05), max_logit=None, every=2)
    train(model, optimizer, 3)
    with pytest.raises(wc.errors.WellcondError, match="last action was at step 2"):
        control.undo_()


@pytest.mark.parametrize("name", ["hf-llama", "hf-gpt2", "torch-encoder"])
def test_half_precision_comes_to_its_limit_to_rounding(name):
    case = CASES[name]
    batch = case.batch()
    batch = batch.bfloat16() if isinstance(batch, Tensor) and batch.is_floating_point() else batch
    model = case.model().bfloat16()
    for layer in wc.attention_layers(model):
        layer.query.write_(layer.query.read() * 50)
    control = wc.control_(model, torch.optim.SGD(model.parameters(), lr=0.0), beta=(1e-9, 0.5), batch=batch)
    found = [record for record in control.look() if record.part == "sharpness"]
    assert found
    assert all(record.after == pytest.approx(0.5, rel=0.02) for record in found)


def test_the_log_has_what_was_measured():
    """A QK-norm's gain is shared by the heads, so that their mean comes to the limit."""
    case = CASES["hf-qwen3"]
    model = case.model().double()
    layer = wc.attention_layers(model)[0]
    with torch.no_grad():
        layer.module.q_norm.weight *= 40
    before = wc.diagnose(model, case.batch(), jacobian=False).layers[0].heads
    high = sum(head.beta for head in before) / len(before) / 2
    control = wc.control_(model, torch.optim.SGD(model.parameters(), lr=0.0), beta=(1e-9, high), batch=case.batch())
    found = {record.head: record for record in control.look() if record.layer == layer.name}
    now = wc.diagnose(model, case.batch(), jacobian=False).layers[0].heads
    assert found
    for head, record in found.items():
        assert record.before == pytest.approx(before[head].beta)
        assert record.after == pytest.approx(now[head].beta)


def alarm(model: nn.Module, call, words: str, **options) -> wc.Control:
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=1e-3)
    control = wc.control_(model, optimizer, **{"beta": (1e-9, 1e-3), "every": 1} | options)
    call()
    with pytest.warns(UserWarning, match=words):
        optimizer.step()
    assert not any(record.acted for record in control.log)
    return control


@pytest.mark.filterwarnings("ignore:Theorem")
def test_conditioned_and_frozen_weights_are_left_alone():
    x = torch.randn(4, 5, 8)
    folded = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    wc.condition_(folded, "shift", strength=0.1)
    alarm(folded, lambda: folded(x).sum().backward(), "holds W . C of wc.condition_")
    frozen = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    frozen.self_attn.requires_grad_(False)
    kept = frozen.self_attn.in_proj_weight.clone()
    alarm(frozen, lambda: frozen(x).sum().backward(), "is frozen")
    assert torch.equal(frozen.self_attn.in_proj_weight, kept)


def test_inputs_that_cannot_be_cut_are_an_alarm_or_kept_whole():
    """As many tokens as examples, with a mask; and sequences that come first."""
    model = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    alarm(model, lambda: model(torch.randn(6, 6, 8), torch.zeros(6, 6)).sum().backward(), "give batch=")
    first = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0)
    optimizer = torch.optim.SGD(first.parameters(), lr=0.0)
    x = torch.randn(7, 3, 8)  # seven tokens of three examples
    control = wc.control_(first, optimizer, beta=(1e-9, 1e-3), max_logit=None, every=1)
    first(x).sum().backward()
    optimizer.step()
    assert all(record.after == pytest.approx(1e-3, rel=1e-3) for record in control.log)
    now = wc.diagnose(first, x, jacobian=False).layers[0].heads
    assert [head.beta for head in now] == pytest.approx([1e-3, 1e-3], rel=1e-3)


def test_weights_that_are_not_finite_are_told():
    model = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    with torch.no_grad():
        model.self_attn.in_proj_weight[0, 0] = torch.nan
    alarm(model, lambda: model(torch.randn(2, 5, 8)), "not finite|not measured")


def test_training_in_autocast_is_looked_at_in_it():
    model = MODELS["vit"](torch.float32)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    control = wc.control_(model, optimizer, beta=(1e-9, 1e-3), max_logit=None, every=1)
    images, labels = next(batches(model, torch.float32, 1))
    with torch.autocast("cpu", torch.bfloat16):
        value = functional.cross_entropy(model(images.bfloat16()), labels)
    value.backward()
    optimizer.step()
    assert any(record.acted for record in control.log), list(control.log)


def test_audits_go_round_all_layers_and_heads():
    model = MODELS["vit"](torch.float64)
    images = torch.randn(1, 3, 16, 16, dtype=torch.float64)
    bands = {"beta": None, "max_logit": None}
    control = wc.control_(model, torch.optim.SGD(model.parameters(), lr=0.0), **bands, audit=True, batch=images)
    for _ in range(2 * HEADS):
        control.look()
    seen = {(record.layer, record.head) for record in control.log}
    assert seen == {(f"blocks.{block}.attn", head) for block in range(2) for head in range(HEADS)}
    assert all(record.before > 1 for record in control.log)


def test_a_budget_is_a_share_of_the_time_of_steps(monkeypatch):
    """Steps of one second and looks of a tenth: within a hundredth, one look in ten steps, whatever pauses between."""
    now = [0.0]
    monkeypatch.setattr("wellcond.control.control.time.perf_counter", lambda: now[0])
    model = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    control = wc.control_(model, optimizer, every=1, budget=0.01, batch=torch.randn(1, 5, 8), alarms=False)
    looks = []

    def look():
        looks.append(control.steps)
        now[0] += 0.1

    monkeypatch.setattr(control, "look", look)
    for step in range(60):
        now[0] += 1.0 if step != 30 else 1000.0
        optimizer.step()
        assert len(looks) == 1 or len(looks) * 0.1 <= 0.01 * (step + 1)
    assert looks[0] == 1  # what a look costs is known only then
    assert all(9 <= b - a <= 11 for a, b in itertools.pairwise(looks[1:]))
