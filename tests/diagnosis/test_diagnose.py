"""`wc.diagnose` on real models: right numbers, no trace left, words that fit the numbers."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import timm
import torch
from torch import Tensor, nn

import wellcond as wc
from tests.cases import CASES
from wellcond.attention.replay import Softmax
from wellcond.attention.roles import QKV
from wellcond.diagnosis import api as run
from wellcond.diagnosis.measure.budget import (
    BUDGET,
    LEAST_ROWS,
    fitted,
    operations,
    outline,
    shared_operations,
    turns_keys,
)
from wellcond.diagnosis.measure.probe import look_at_layers
from wellcond.diagnosis.measure.weights import gain
from wellcond.diagnosis.records import LayerRecord
from wellcond.errors import WellcondError
from wellcond.jacobian import condition_number, structural_rank
from wellcond.jacobian.head import Head
from wellcond.testing import same_bits

QUICK: dict[str, Any] = {"rows": 2, "heads": [0], "progress": False}


def vit(**options: Any) -> nn.Module:
    torch.manual_seed(0)
    model = timm.create_model("vit_tiny_patch16_224", img_size=32, depth=2, embed_dim=24, num_heads=3, **options)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return model


def images(count: int = 2) -> Tensor:
    return torch.randn(count, 3, 32, 32, generator=torch.Generator().manual_seed(1))


def qkv_of(model: nn.Module, x: Tensor, layer: int = 0) -> tuple[Tensor, Tensor]:
    """Tokens that block `layer` attends to, and their q, k, v, `(3, B, H, N, d)`, by hand."""
    seen: list[Tensor] = []
    attn = model.blocks[layer].attn
    hook = attn.register_forward_pre_hook(lambda _, args: seen.append(args[0]))
    with torch.no_grad():
        model.eval()(x)
    hook.remove()
    tokens = seen[0]
    packed = nn.functional.linear(tokens, attn.qkv.weight, attn.qkv.bias).detach()
    return tokens, packed.view(*tokens.shape[:2], 3, 3, 8).permute(2, 0, 3, 1, 4)


def test_numbers_are_those_computed_by_hand() -> None:
    model, x = vit(), images()
    found = wc.diagnose(model, x, **QUICK).layers[1]
    tokens, (q, k, _) = qkv_of(model, x, 1)
    logits = (q @ k.mT / math.sqrt(8)).double().numpy()
    p = np.exp(logits - logits.max(-1, keepdims=True))
    p /= p.sum(-1, keepdims=True)
    entropy = -(p * np.log(p)).sum(-1).mean((0, 2)) / math.log(p.shape[-1])
    # float32 probabilities: relative error of a few eps each, and sums of five terms
    assert [h.entropy for h in found.heads] == pytest.approx(list(entropy), rel=1e-5)
    assert [h.participation for h in found.heads] == pytest.approx(list((p**2).sum(-1).mean((0, 2))), rel=1e-5)
    assert [h.max_logit for h in found.heads] == pytest.approx(list(np.abs(logits).max((0, 2, 3))), rel=1e-5)
    units = tokens.double() / tokens.double().norm(dim=-1, keepdim=True)
    cosines = (units @ units.mT).numpy()
    n = cosines.shape[1]
    assert found.cosine == pytest.approx(np.mean([(c.sum() - n) / (n * (n - 1)) for c in cosines]), abs=1e-6)
    sigma = np.linalg.svd(tokens.double().numpy(), compute_uv=False)
    assert found.stable_rank == pytest.approx(np.mean((sigma**2).sum(1) / sigma[:, 0] ** 2), rel=1e-5)
    assert found.tokens == n


def test_weights_are_measured_per_head_fused_and_with_gains() -> None:
    model = vit(qk_norm=True)
    record = wc.diagnose(model, images(), **QUICK).layers[0]
    block = model.blocks[0]
    weight = block.attn.qkv.weight.detach().double().view(3, 3, 8, 24)  # role, head, d, D
    gains = {"query": block.attn.q_norm.weight, "key": block.attn.k_norm.weight}
    for index, role in enumerate(("query", "key", "value")):
        own = {w.head: w for w in record.weights if w.role == role}
        assert set(own) == {0, 1, 2, None}
        for head in range(3):
            sigma = torch.linalg.svdvals(weight[index, head])
            assert own[head].effective.values == pytest.approx(sigma.tolist(), rel=1e-12)
            assert own[head].effective.condition == pytest.approx(float(sigma[0] / sigma[-1]), rel=1e-10)
            effective = weight[index, head] * block.norm1.weight.detach().double()
            if role in gains:
                effective = gains[role].detach().double()[:, None] * effective
            # the gain is asked for in float32, on numbers that the norm's eps of 1e-6 moves by half of that
            assert own[head].scaled.values == pytest.approx(torch.linalg.svdvals(effective).tolist(), rel=1e-5)
        fused = torch.linalg.svdvals(weight[index].reshape(24, 24))
        assert own[None].effective.condition == pytest.approx(float(fused[0] / fused[-1]), rel=1e-8)


@pytest.mark.parametrize("width", [1, 2, 5, 8])
def test_a_norm_tells_its_gain_whatever_its_class(width: int) -> None:
    from transformers.models.gemma.modeling_gemma import GemmaRMSNorm

    for norm, expected in (
        (nn.RMSNorm(width), lambda m: m.weight),
        (GemmaRMSNorm(width), lambda m: 1 + m.weight),
        *(((nn.LayerNorm(width), lambda m: m.weight),) if width > 1 else ()),
    ):
        nn.init.normal_(norm.weight)
        assert torch.allclose(gain(norm, width), expected(norm).detach().double(), rtol=1e-4, atol=1e-6)
    assert gain(nn.Identity(), width) is None
    assert gain(nn.LayerNorm(width + 1), width) is None


@pytest.mark.parametrize("name", CASES)
def test_every_real_model_is_diagnosed_and_left_as_it_was(name: str) -> None:
    model, batch = CASES[name].model().double(), CASES[name].batch()
    model.train()
    before = {key: value.clone() for key, value in model.state_dict().items()}
    modes = [module.training for module in model.modules()]
    hooks = [len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules()]
    random = torch.get_rng_state()
    found = wc.diagnose(model, batch, **QUICK)
    assert torch.equal(torch.get_rng_state(), random)
    assert all(same_bits(value, before[key]) for key, value in model.state_dict().items())
    assert [module.training for module in model.modules()] == modes
    assert [len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules()] == hooks
    assert all(p.grad is None for p in model.parameters())
    assert [layer.name for layer in found.layers] == [layer for layer, _ in CASES[name].layers]
    for layer in found.layers:
        _check_record(layer)
    assert json.loads(found.to_json())["layers"][0]["name"] == found.layers[0].name
    assert str(found)


def _check_record(layer: LayerRecord) -> None:
    heads = [w for w in layer.weights if w.head is not None]
    assert all(w.effective.sigma_max >= w.effective.sigma_min >= 0 for w in heads)
    if "no replay" in layer.note:
        return
    for head in layer.heads:
        if head.entropy is not None:
            assert -1e-9 <= head.entropy <= 1 + 1e-6
            assert 0 <= head.participation <= 1 + 1e-6
        else:
            assert layer.kind != "softmax" or layer.tokens == 1 or head.participation is not None
    assert [record.head for record in layer.jacobian] == [0]
    assert layer.jacobian[0].condition.sigma_max > 0


def test_a_compiled_model_is_looked_at_eagerly() -> None:
    plain, compiled, inside = vit().eval(), vit().eval(), vit().eval()
    compiled.compile(backend="eager")
    inside.blocks[1] = torch.compile(inside.blocks[1], backend="eager")
    with torch.no_grad():
        compiled(images())
        inside(images())
    expected = wc.diagnose(plain, images(), **QUICK).to_dict()["layers"]
    wrapped = torch.compile(plain, backend="eager")
    for model in (compiled, inside, wrapped):
        assert wc.diagnose(model, images(), **QUICK).to_dict()["layers"] == expected


def test_the_users_kernel_is_not_switched() -> None:
    model = CASES["hf-bert"].model().double()
    batch = CASES["hf-bert"].batch()
    found = {}
    for kernel in ("sdpa", "eager"):
        model.set_attn_implementation(kernel)
        found[kernel] = wc.diagnose(model, batch, **QUICK).layers[0].heads[1]
        assert model.config._attn_implementation == kernel
    assert found["sdpa"].entropy == pytest.approx(found["eager"].entropy, rel=1e-12)


def test_hooks_are_removed_when_the_model_fails() -> None:
    model = vit()
    with pytest.raises(wc.errors.BatchError, match=r"VisionTransformer cannot be run on Tensor \(2, 5, 32, 32\)"):
        wc.diagnose(model, torch.randn(2, 5, 32, 32))
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())
    assert all(module.training for module in model.modules())


def test_buffers_that_a_pass_changes_are_put_back() -> None:
    class Counting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.block = nn.TransformerEncoderLayer(8, 2, batch_first=True)
            self.register_buffer("calls", torch.zeros(()))
            self.register_buffer("last", torch.zeros(()))

        def forward(self, x: Tensor) -> Tensor:
            self.calls += 1
            self.last = x.mean() + torch.rand(())
            return self.block(x)

    model = Counting()
    last = model.last
    wc.diagnose(model, torch.randn(2, 5, 8), **QUICK)
    assert float(model.calls) == 0
    assert model.last is last


@pytest.mark.parametrize("mode", ["folded", "live"])
def test_a_conditioned_weight_is_measured_with_and_without_its_correction(mode: str) -> None:
    model = vit()
    before = {(w.role, w.head): w.effective for w in wc.diagnose(model, images(), **QUICK).layers[0].weights}
    handle = wc.condition_(model, "shift", strength=5.0, mode=mode)
    for weight in wc.diagnose(model, images(), **QUICK).layers[0].weights:
        used = getattr(handle.layers[0], weight.role).read()
        if weight.head is not None:
            sigma = torch.linalg.svdvals(used[weight.head].double())
            assert weight.effective.sigma_max == pytest.approx(float(sigma[0]), rel=1e-12)
            # folding rounds W to the digits that W + C leaves it
            assert weight.trained.sigma_max == pytest.approx(before[weight.role, weight.head].sigma_max, rel=1e-5)


def test_gradient_norms_are_those_of_backward() -> None:
    model, x = vit().eval(), images()
    record = wc.diagnose(model, x, loss=lambda out: out.square().mean(), **QUICK).layers[0]
    assert all(p.grad is None for p in model.parameters())
    model(x).square().mean().backward()
    gradient = model.blocks[0].attn.qkv.weight.grad.view(3, 3, 8, 24)
    for index, role in enumerate(("query", "key", "value")):
        own = {w.head: w.gradient for w in record.weights if w.role == role}
        norms = gradient[index].flatten(1).norm(dim=1).tolist()
        assert [own[head] for head in range(3)] == pytest.approx(norms, rel=1e-5)
        assert own[None] == pytest.approx(float(gradient[index].norm()), rel=1e-5)


def test_a_loss_of_the_models_own() -> None:
    model = CASES["hf-gpt2"].model().double()
    batch = CASES["hf-gpt2"].batch()
    with_labels = batch | {"labels": batch["input_ids"]}
    found = wc.diagnose(model, with_labels, loss=True, **QUICK)
    assert all(w.gradient > 0 for w in found.layers[0].weights)
    with pytest.raises(WellcondError, match="labels"):
        wc.diagnose(model, batch, loss=True, **QUICK)


def codes(found: wc.Diagnosis) -> set[str]:
    return {concern.code for concern in found.concerns}


def test_verdicts_say_what_was_done_to_the_model() -> None:
    healthy = vit()
    assert not codes(wc.diagnose(healthy, images(), **QUICK)) & {"entropy collapse", "rank collapse", "not finite"}
    sharp = vit()
    with torch.no_grad():
        sharp.blocks[1].attn.qkv.weight[:8] *= 300  # the queries of head 0
    found = wc.diagnose(sharp, images(), **QUICK)
    assert found.layers[1].heads[0].code == "entropy collapse"
    assert found.layers[1].heads[1].code != "entropy collapse"
    assert str(found.worst(1)).startswith("blocks.1.attn head 0: entropy collapse (0.0")
    assert "bound the logits by a spectral norm: wc.condition_(model, " in str(found.worst(1))
    dead = vit()
    with torch.no_grad():
        dead.blocks[0].attn.qkv.weight[56:60] = 0.0  # half of the values of head 1
    found = wc.diagnose(dead, images(), progress=False)
    assert found.layers[0].heads[1].code == "rank deficient"
    broken = vit()
    with torch.no_grad():
        broken.blocks[0].attn.qkv.weight[0, 0] = float("nan")  # the query of head 0
        broken.blocks[0].attn.proj.weight[0, 0] = float("nan")
    found = wc.diagnose(broken, images(), **QUICK)
    assert [head.code for head in found.layers[0].heads] == ["not finite", "", ""]
    assert found.layers[0].jacobian == ()
    assert found.layers[1].note == "not finite: no Jacobian"
    assert json.loads(found.to_json())["layers"][1]["cosine"] == "nan"
    assert "not finite: no Jacobian" in found.to_html()
    assert found.plot()
    equal = vit()
    with torch.no_grad():
        equal.blocks[1].norm1.weight.zero_()
        equal.blocks[1].norm1.bias.fill_(1.0)
    found = wc.diagnose(equal, images(), **QUICK)
    assert found.layers[1].code == "rank collapse"
    assert found.layers[1].stable_rank == pytest.approx(1.0, rel=1e-6)


def test_the_jacobian_is_exact_where_it_is_small_and_a_marked_sample_where_it_is_not() -> None:
    model, x = vit(), images()
    whole = wc.diagnose(model, x, progress=False).jacobian["blocks.0.attn"][2]
    layer = wc.attention_layers(model)[0]
    expected = wc.jacobian.spectrum(wc.jacobian.head_of(layer, x, 2, sequences=[0]))
    assert whole.condition == expected
    assert whole.rows == whole.total_rows == 5
    assert len(whole.spectrum) == 40
    some = wc.diagnose(model, x, rows=2, progress=False).jacobian["blocks.0.attn"][2]
    assert some.condition.status == "lower bound"
    assert some.condition.value <= whole.condition.value
    assert (some.rows, some.total_rows) == (2, 5)
    assert wc.diagnose(model, x, jacobian=False).jacobian["blocks.0.attn"] == {}
    both = wc.diagnose(model, x, vertical=True, progress=False).jacobian["blocks.0.attn"][2]
    assert both.bound.vertical == wc.jacobian.spectrum(
        wc.jacobian.head_of(layer, x, 2, sequences=[0]), convention="vertical"
    )
    assert both.bound.full_rank is False  # five tokens cannot span 24 coordinates
    assert both.ratio == pytest.approx(both.bound.vertical.value / both.bound.value)
    assert both.ratio <= 1


def test_a_budget_leaves_out_rows_then_heads_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    model, x = vit(), images()
    whole = wc.diagnose(model, x, progress=False)
    assert [(j.rows, j.head) for j in whole.layers[0].jacobian] == [(5, 0), (5, 1), (5, 2)]
    assert "κ(J) is of" not in str(whole)
    layer = wc.attention_layers(model)[0]
    (seen,) = look_at_layers(wc.attention_layers(model).select("blocks.0.*"), x)
    assert seen.call is not None
    shape = outline(layer, seen.call, (0,))
    some_rows = 3 * operations(shape, 4, mapped=False) + shared_operations(shape, 4)
    one_head = operations(shape, 4, mapped=False) + shared_operations(shape, 4)
    for budget, heads in ((some_rows, [0, 1, 2]), (one_head, [0]), (0.0, [0])):
        monkeypatch.setattr(run, "BUDGET", 2 * budget)  # for two layers
        found = wc.diagnose(model, x, progress=False)
        assert [(j.rows, j.total_rows, j.head) for j in found.layers[1].jacobian] == [(4, 5, head) for head in heads]
        said = "4 of 5 query rows" + ("" if len(heads) == 3 else " and 1 of 3 heads a layer")
        assert f'κ(J) is of {said}; jacobian="exact" measures all' in str(found)
        assert json.loads(found.to_json())["settings"]["jacobian"]["budget"] == budget
    assert len(wc.diagnose(model, x, heads=[2, 1], progress=False).layers[0].jacobian) == 2  # what is asked for stays
    assert wc.diagnose(model, x, rows=5, progress=False).jacobian == whole.jacobian
    assert wc.diagnose(model, x, jacobian="exact", progress=False).jacobian == whole.jacobian


def test_a_large_model_keeps_to_the_budget() -> None:
    """Counted, not timed: a ViT-B and a Llama of eight layers."""
    from transformers import LlamaConfig, LlamaModel

    sizes = {"hidden_size": 256, "intermediate_size": 512, "num_attention_heads": 8, "num_key_value_heads": 4}
    with torch.device("meta"):
        llama = LlamaModel(LlamaConfig(vocab_size=9, num_hidden_layers=8, **sizes))
        base = timm.create_model("vit_base_patch16_224")
    for model, tokens in ((llama, 128), (base, 197)):
        layers = wc.attention_layers(model)
        layer = layers[0]
        shapes = {role: torch.empty(p.shape[1:], device="meta") for role, p in layer.projections(*QKV)}
        x = torch.empty(1, tokens, layer.width, device="meta")
        head = Head(dict.fromkeys(shapes, x), shapes, {}, Softmax(1.0))
        mapped = turns_keys(layer)
        rows, heads = fitted(head, layer.num_heads, BUDGET / len(layers), mapped=mapped)
        spent = heads * operations(head, rows, mapped=mapped) + shared_operations(head, rows)
        assert 0.4 * BUDGET < len(layers) * spent <= BUDGET
        assert rows >= LEAST_ROWS


def test_heads_of_a_layer_share_their_structural_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    """A decoder's has no formula, and the twin that shows it costs more than the spectrum."""
    model, batch = CASES["hf-llama"].model().double(), CASES["hf-llama"].batch()
    layer = wc.attention_layers(model)[0]
    expected = [wc.jacobian.spectrum(head) for head in wc.jacobian.heads_of(layer, batch, sequences=[0])]
    calls = []
    by_qr = structural_rank.by_qr
    for module in (structural_rank, condition_number):
        monkeypatch.setattr(module, "by_qr", lambda *a, **k: calls.append(k) or by_qr(*a, **k))
    found = wc.diagnose(model, batch, layers=layer.name, jacobian="exact", progress=False).layers[0].jacobian
    assert [record.condition for record in found] == expected
    assert len(found) > 1
    assert len([k for k in calls if k.get("all_values")]) == 1  # the twin's


def test_heads_that_mix_otherwise_do_not_share_their_rank() -> None:
    """ALiBi gives each head a bias of its own, so that it has a twin of its own; other weights make no difference."""
    torch.manual_seed(0)
    x = torch.randn(1, 6, 8, dtype=torch.float64)
    keys = []
    for slope in (0.5, 0.25, 0.5):
        bias = -slope * (torch.arange(6)[:, None] - torch.arange(6)).abs().double()[None, None]
        head = wc.jacobian.softmax_head(x, *torch.randn(3, 8, 4, dtype=torch.float64), bias=bias)
        keys.append(structural_rank._likeness(head.twin(), torch.arange(6), "side-by-side"))
    assert keys[0] == keys[2] != keys[1]
    turned = wc.jacobian.softmax_head(
        x, *torch.randn(3, 8, 4, dtype=torch.float64), bias=bias, key_map=lambda k: k.flip(-1)
    )
    assert structural_rank._likeness(turned.twin(), torch.arange(6), "side-by-side") not in keys


def test_an_exact_jacobian_that_takes_long_says_so_before_it_starts(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    model, x = vit(), images()
    monkeypatch.setattr(run, "operations_per_second", lambda: 1e5)  # a machine on which it takes minutes
    wc.diagnose(model, x, jacobian="exact")
    (said,) = capsys.readouterr().err.splitlines()  # no bar where nobody watches, but a line
    assert re.fullmatch(r"diagnose: exact κ\(J\), about \d+ (s|min|h)", said)
    wc.diagnose(model, x, jacobian="exact", progress=False)
    wc.diagnose(model, x)
    assert "exact" not in capsys.readouterr().err


def test_padding_does_not_count() -> None:
    model = CASES["hf-bert"].model().double()
    batch = CASES["hf-bert"].batch()
    short = {key: value[1:, :4] for key, value in batch.items()}  # the second sequence without its padding
    alone = wc.diagnose(model, short, **QUICK).layers[0]
    padded = wc.diagnose(model, {key: value[1:] for key, value in batch.items()}, **QUICK).layers[0]
    assert padded.cosine == pytest.approx(alone.cosine, rel=1e-9)
    assert padded.stable_rank == pytest.approx(alone.stable_rank, rel=1e-9)


def test_padded_tokens_of_torchs_encoder_do_not_count_and_are_not_packed() -> None:
    """Its fast path would hand packed tokens to the hooks."""
    torch.manual_seed(0)
    encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 2, 32, batch_first=True), 2).double().eval()
    x, mask = torch.randn(2, 6, 16, dtype=torch.float64), torch.zeros(2, 6, dtype=torch.bool)
    mask[:, 4:] = True
    before = torch.backends.mha.get_fastpath_enabled()
    alone = wc.diagnose(encoder, x[:, :4], **QUICK).layers
    padded = wc.diagnose(encoder, {"src": x, "src_key_padding_mask": mask}, **QUICK).layers
    assert torch.backends.mha.get_fastpath_enabled() == before
    for layer, other in zip(padded, alone, strict=True):
        assert layer.cosine == pytest.approx(other.cosine, rel=1e-9)
        assert layer.stable_rank == pytest.approx(other.stable_rank, rel=1e-9)


def test_half_precision_and_a_plain_table() -> None:
    model, x = vit().bfloat16(), images().bfloat16()
    exact = wc.diagnose(vit(), images(), **QUICK).layers[0]
    half = wc.diagnose(model, x, **QUICK)
    # bfloat16 has eight bits: tokens and weights are off by 0.4 %
    assert [h.entropy for h in half.layers[0].heads] == pytest.approx([h.entropy for h in exact.heads], rel=0.1)
    assert max(map(len, str(half).split("\n\nworst")[0].splitlines())) <= 140


def test_files_are_written_whole(tmp_path: Path) -> None:
    found = wc.diagnose(vit(), images(), **QUICK)
    text = found.to_json(tmp_path / "d.json")
    assert (tmp_path / "d.json").read_text() == text
    data = json.loads(text)
    assert set(data) == {"schema", "model", "inputs", "layers", "skipped", "settings", "versions"}
    found.plot(tmp_path / "d.png")
    assert (tmp_path / "d.png").read_bytes().startswith(b"\x89PNG")
    assert "blocks.0.attn" in found.to_html(tmp_path / "d.html")
    assert not list(tmp_path.glob(".*"))
    with pytest.raises(WellcondError, match="cannot be written"):
        found.to_json(tmp_path / "nowhere" / "d.json")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"jacobian": "maybe"}, "'auto', 'exact'"),
        ({"layers": "nothing.*"}, "no attention layer matches"),
        ({"layers": []}, "no layer to diagnose"),
        ({"heads": [7]}, "there is no head 7"),
        ({"rows": 0}, "at least 1"),
        ({"rows": [99]}, "numbered 0 to 4"),
        ({"sequences": [5]}, "there are no"),
        ({"loss": lambda out: out}, "one number"),
    ],
)
def test_bad_input_gets_one_clear_error(options: dict[str, Any], message: str) -> None:
    with pytest.raises(WellcondError, match=message):
        wc.diagnose(vit(), images(), **options)
