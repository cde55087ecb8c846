"""`wellcond.optim.Muon` against `torch.optim.Muon`, torch's AdamW, and a literal loop over heads."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from torch import Tensor, nn
from torch.optim._muon import _zeropower_via_newtonschulz
from transformers import MixtralConfig, MixtralForCausalLM, Qwen3MoeConfig, Qwen3MoeForCausalLM

import wellcond as wc
from tests.attention.test_head_blocks import deepseek
from tests.cases import CASES
from tests.training import MODELS, batches, loss
from wellcond.optim.orthogonalize import POLAR_EXPRESS, newton_schulz, polar_factor

STEPS = 50


def train(model: nn.Module, optimizers: list[torch.optim.Optimizer], steps: int = STEPS) -> nn.Module:
    dtype = next(model.parameters()).dtype
    for batch in batches(model, dtype, steps):
        for optimizer in optimizers:
            optimizer.zero_grad()
        loss(model, batch).backward()
        for optimizer in optimizers:
            optimizer.step()
    return model


def apart(a: Tensor, b: Tensor) -> float:
    a, b = a.detach(), b.detach()
    return float((a - b).abs().max() / b.abs().max().clamp_min(1e-12))


def torch_pair(model: nn.Module, **options) -> list[torch.optim.Optimizer]:
    """What a user writes today: two optimizers."""
    chosen = wc.optim.assign(model)
    muon = torch.optim.Muon([one.parameter for one in chosen.of("muon")], lr=0.02, **options)
    rest = [one.parameter for one in chosen.of("adamw")]
    return [muon, torch.optim.AdamW(rest, lr=3e-4, betas=(0.9, 0.95), weight_decay=0.0)]


@pytest.mark.parametrize("adjust", [None, "original", "match_rms_adamw", "spectral_unclamped"])
@pytest.mark.parametrize("kind", ["vit", "gpt2"])
def test_whole_matrices_are_trained_as_torch_trains_them(kind, adjust):
    options = {"adjust_lr_fn": adjust, "weight_decay": 0.1, "nesterov": adjust != "original"}
    mine, theirs = (MODELS[kind](torch.float64) for _ in range(2))
    train(mine, [wc.optim.Muon(mine, lr=0.02, **options)])
    train(theirs, torch_pair(theirs, **options))
    for (name, a), b in zip(mine.named_parameters(), theirs.parameters(), strict=True):
        assert apart(a, b) <= 1e-6, name


class LiteralLoop(torch.optim.Optimizer):
    """Per-head Muon with nothing batched: every head's slice as if it were a parameter of its own."""

    def __init__(self, slices: list[tuple[Tensor, tuple[slice, slice]]], lr: float) -> None:
        super().__init__([p for p, _ in {id(p): (p, s) for p, s in slices}.values()], {"lr": lr})
        self.slices = slices
        self.buffers: dict[int, Tensor] = {}

    @torch.no_grad()
    def step(self, closure=None):
        lr = self.param_groups[0]["lr"]
        for index, (p, where) in enumerate(self.slices):
            grad = p.grad[where]
            buffer = self.buffers.setdefault(index, torch.zeros_like(grad))
            buffer.lerp_(grad, 0.05)
            update = grad.lerp(buffer, 0.95)
            u, s, vt = torch.linalg.svd(update, full_matrices=False)
            keep = s > s[0] * 2.2e-16 * max(update.shape)
            rows, columns = grad.shape
            p[where] *= 1 - lr * 0.1
            p[where] -= lr * math.sqrt(max(1, rows / columns)) * (u[:, keep] @ vt[keep])


def literal_slices(model: nn.Module, kind: str) -> list[tuple[Tensor, tuple[slice, slice]]]:
    """Written from the models' configurations: 3 heads of width 8 at width 24."""
    every, found = slice(None), []
    for name, p in model.named_parameters():
        if "norm" in name or "ln_" in name or p.ndim != 2 or name.startswith(("head", "lm_head", "transformer.wte")):
            continue
        if name.startswith("transformer.wpe"):
            continue
        heads = [slice(8 * i, 8 * i + 8) for i in range(p.numel() // 24 // 8)]
        if name.endswith(("attn.qkv.weight", "attn.c_proj.weight")):
            found += [(p, (rows, every)) for rows in heads]
        elif name.endswith(("attn.proj.weight", "attn.c_attn.weight")):
            found += [(p, (every, columns)) for columns in heads]
        else:
            found.append((p, (every, every)))
    return found


@pytest.mark.parametrize("kind", ["vit", "gpt2"])
def test_heads_are_trained_as_by_a_literal_loop(kind):
    """Linear and transposed storage; the exact factor, which rounding does not reach."""
    mine, theirs = (MODELS[kind](torch.float64) for _ in range(2))
    optimizer = wc.optim.Muon(mine, lr=0.02, per_head=True, orthogonalize="polar", adamw_lr=0.0)
    train(mine, [optimizer], 10)
    train(theirs, [LiteralLoop(literal_slices(theirs, kind), 0.02)], 10)
    for (name, a), b in zip(mine.named_parameters(), theirs.parameters(), strict=True):
        assert apart(a, b) <= 1e-6, name


@pytest.mark.parametrize("name", ["timm-vit", "hf-llama", "hf-gpt-neox", "hf-gpt2", "hf-falcon"])
def test_each_block_has_the_update_that_torch_gives_it_alone(name):
    """Newton–Schulz in bfloat16, batched over heads and layers, against torch's function on each slice."""
    model = CASES[name].model()
    values = dict(model.named_parameters())
    optimizer = wc.optim.Muon(model, lr=1.0, per_head=True, weight_decay=0.0, momentum=0.0, adamw_lr=0.0)
    generator = torch.Generator().manual_seed(0)
    for p in model.parameters():
        p.grad = torch.randn(p.shape, generator=generator)
    before = {key: p.detach().clone() for key, p in values.items()}
    optimizer.step()
    for one in optimizer.assignment.of("muon"):
        for block in optimizer.blocks[one.name]:
            grad, moved = (block.view(t) for t in (values[one.name].grad, values[one.name].detach()))
            expected = _zeropower_via_newtonschulz(grad.clone(), (3.4445, -4.775, 2.0315), 5, 1e-7).float()
            expected = expected * math.sqrt(max(1, grad.shape[0] / grad.shape[1]))
            found = block.view(before[one.name]) - moved
            # Products of bfloat16 may be summed in another order in a batch: a unit in the last of its 8 bits.
            assert float((found - expected).abs().max()) < 2**-6 * float(expected.abs().max()), (one.name, block)


def test_published_coefficients_orthogonalise():
    x = torch.randn(3, 16, 40, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    exact = polar_factor(x)
    express = newton_schulz(x, POLAR_EXPRESS, 12, dtype=torch.float64)
    assert torch.allclose(express, exact, atol=1e-9)
    jordan = torch.linalg.svdvals(newton_schulz(x).float())
    assert 0.6 < float(jordan.min()) < float(jordan.max()) < 1.3


def test_what_has_no_gradient_does_not_move():
    x = torch.zeros(2, 4, 6)
    x[0, 1, 2] = 3.0
    for factor in (polar_factor(x), newton_schulz(x).float()):
        assert bool((factor[1] == 0).all())
        assert int((factor[0].abs() > 0.1).sum()) == 1


def test_embeddings_heads_norms_and_biases_are_trained_by_adamw():
    chosen = wc.optim.assign(CASES["hf-llama"].model())
    reasons = {one.name: (one.algorithm, one.reason) for one in chosen.parameters}
    assert reasons["embed_tokens.weight"] == ("adamw", "an embedding")
    assert all(algorithm == "muon" for name, (algorithm, _) in reasons.items() if "_proj.weight" in name)
    assert all(algorithm == "adamw" for name, (algorithm, _) in reasons.items() if "norm" in name or "lm_head" in name)
    vit = {one.name: one.algorithm for one in wc.optim.assign(CASES["timm-vit"].model()).parameters}
    assert vit["head.weight"] == vit["patch_embed.proj.weight"] == vit["pos_embed"] == "adamw"
    assert vit["blocks.0.mlp.fc1.weight"] == "muon"


def test_latent_attention_and_experts_are_trained_by_heads_and_experts():
    model, batch = deepseek()
    layers = wc.attention_layers(model, batch)
    optimizer = wc.optim.Muon(
        model, lr=1.0, per_head=True, weight_decay=0.0, adamw_lr=0.0, orthogonalize="polar", layers=layers
    )
    names = {one.name for one in optimizer.assignment.of("muon")}
    assert {
        "layers.0.self_attn.kv_b_proj.weight",
        "layers.1.mlp.experts.down_proj",
        "layers.0.self_attn.q_a_proj.weight",
    } <= names
    for p in model.parameters():
        p.grad = torch.randn_like(p)
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    optimizer.step()
    after = dict(model.named_parameters())

    def singular(name, index):
        return torch.linalg.svdvals((before[name] - after[name].detach())[index])

    key = singular("layers.0.self_attn.kv_b_proj.weight", slice(14, 22))  # key of head 1: 8 rows of 10
    assert torch.allclose(key, torch.ones(8), atol=1e-5)
    expert = singular("layers.1.mlp.experts.down_proj", 2)  # 32 × 16: the rate is √2
    assert torch.allclose(expert, torch.full((16,), math.sqrt(2)), atol=1e-5)


def test_a_resumed_run_has_the_same_bits(tmp_path):
    def start():
        model = MODELS["vit"](torch.float32)
        return model, wc.optim.Muon(model, lr=0.02, per_head=True)

    def run(model, optimizer, given):
        for batch in given:
            optimizer.zero_grad()
            loss(model, batch).backward()
            optimizer.step()

    straight, optimizer = start()
    every = list(batches(straight, torch.float32, 12))
    run(straight, optimizer, every)
    half, optimizer = start()
    run(half, optimizer, every[:6])
    torch.save({"model": half.state_dict(), "optimizer": optimizer.state_dict()}, tmp_path / "state.pt")
    again, optimizer = start()
    state = torch.load(tmp_path / "state.pt", weights_only=True)
    again.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    run(again, optimizer, every[6:])
    assert all(torch.equal(a, b) for a, b in zip(straight.parameters(), again.parameters(), strict=True))


def test_closures_schedulers_and_gradient_scaling():
    model = MODELS["vit"](torch.float32)
    optimizer = wc.optim.Muon(model, lr=0.02, per_head="qkv")
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.5**step)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    batch = next(batches(model, torch.float32, 1))

    def closure():
        optimizer.zero_grad()
        value = loss(model, batch)
        value.backward()
        return value

    first = optimizer.step(closure)
    assert first is not None
    scheduler.step()
    assert [group["lr"] for group in optimizer.param_groups] == pytest.approx([0.01, 1.5e-4])
    optimizer.zero_grad()
    scaler.scale(loss(model, batch)).backward()
    scaler.step(optimizer)
    scaler.update()
    kept = copy.deepcopy(model.state_dict())
    next(model.parameters()).grad.fill_(torch.inf)
    scaler.step(optimizer)  # which is left out
    assert all(torch.equal(kept[name], value) for name, value in model.state_dict().items())


@pytest.mark.filterwarnings("ignore:Theorem")
def test_conditioned_weights_are_trained():
    """Folded and live training are one training; per-head Muon does not change that."""
    models = {m: MODELS["vit"](torch.float64) for m in ("folded", "live")}
    for m, model in models.items():
        wc.init_(model, "orthogonal", seed=0)
        handle = wc.condition_(model, "shift", strength=1.0, mode=m)
        optimizer = wc.optim.Muon(model, lr=0.02, per_head=True, orthogonalize="polar")
        handle.attach(optimizer)
        train(model, [optimizer], 5)
    batch = next(batches(models["live"], torch.float64, 1))
    a, b = (float(loss(model, batch).detach()) for model in models.values())
    assert abs(a - b) < 1e-9


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"per_head": "xyz"}, "letters q, k, v, o"),
        ({"lr": -1.0}, "lr"),
        ({"overrides": {"norm1.weight": "muon"}}, "trains matrices"),
        ({"overrides": {"norm1.weight": "sgd"}}, "overrides"),
        ({"orthogonalize": "svd"}, "orthogonalize"),
    ],
)
def test_wrong_arguments_are_told(options, words):
    with pytest.raises(wc.errors.WellcondError, match=words):
        wc.optim.Muon(nn.TransformerEncoderLayer(8, 2, 16), **options)


def test_sparse_gradients_are_refused():
    model = nn.Sequential(nn.Embedding(9, 8, sparse=True), nn.TransformerEncoderLayer(8, 2, 16, batch_first=True))
    optimizer = wc.optim.Muon(model)
    model(torch.tensor([[1, 2]])).sum().backward()
    with pytest.raises(wc.errors.OptimizerError, match="dense"):
        optimizer.step()


def mixture(cls, config, **more):
    sizes = {"vocab_size": 40, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2}
    return cls(config(**sizes, **heads, **more))


@pytest.mark.parametrize("name", ["mixtral", "qwen3-moe"])
def test_experts_are_trained_by_muon_and_their_routers_by_adamw(name):
    """Blocks whose only MLP is a bank of experts."""
    if name == "mixtral":
        model = mixture(MixtralForCausalLM, MixtralConfig, num_local_experts=4, num_experts_per_tok=2)
    else:
        options = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16, "head_dim": 8}
        model = mixture(Qwen3MoeForCausalLM, Qwen3MoeConfig, **options)
    chosen = {one.name: one.algorithm for one in wc.optim.assign(model).parameters}
    experts = {kind for key, kind in chosen.items() if ".experts." in key}
    routers = {kind for key, kind in chosen.items() if ".gate.weight" in key or ".router." in key}
    assert experts == {"muon"}
    assert routers == {"adamw"}
    assert chosen["lm_head.weight"] == chosen["model.embed_tokens.weight"] == "adamw"


def test_blocks_without_attention_are_of_the_stack_and_a_head_in_a_list_is_not():
    class Hybrid(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            plain = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8))
            self.layers = nn.ModuleList(
                [nn.Embedding(9, 8), plain, nn.TransformerEncoderLayer(8, 2, 16), nn.Linear(8, 9)]
            )

    chosen = {one.name: one.algorithm for one in wc.optim.assign(Hybrid()).parameters}
    assert chosen["layers.1.0.weight"] == chosen["layers.2.linear1.weight"] == "muon"
    assert chosen["layers.3.weight"] == chosen["layers.0.weight"] == "adamw"


def test_a_copy_trains_on():
    model = MODELS["vit"](torch.float32)
    optimizer = wc.optim.Muon(model, lr=0.02, per_head=True)
    train(model, [optimizer], 2)
    other, copied = copy.deepcopy((model, optimizer))
    for one, own in ((model, optimizer), (other, copied)):
        train(one, [own], 3)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), other.parameters(), strict=True))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"overrides": {"patch_embed.proj.weight": "muon"}}, "trains matrices"),
        ({"overrides": {"cls_token": "muon"}}, "trains matrices"),
        ({"overrides": {"nothing*": "adamw"}}, "fits no trained parameter"),
        ({"per_head": "qk"}, "also holds value"),
    ],
)
def test_what_muon_cannot_cut_or_train_is_told_at_the_start(options, words):
    with pytest.raises(wc.errors.WellcondError, match=words):
        wc.optim.Muon(MODELS["vit"](torch.float32), **options)


def test_coefficients_may_be_whole_numbers():
    assert newton_schulz(torch.randn(3, 4), (3, -4, 2)).shape == (3, 4)
