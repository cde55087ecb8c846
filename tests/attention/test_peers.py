"""What spectral conditioning is compared with: each peer against its formula written out, on real models."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils import parametrize
from torch.utils.checkpoint import checkpoint

import wellcond as wc
from tests.cases import CASES
from wellcond.attention.paths import resolve
from wellcond.attention.storage import fetch
from wellcond.conditioning.layernorm import is_layer_norm
from wellcond.conditioning.methods import METHODS
from wellcond.conditioning.methods.tokens import TokenHook


def tensors(output: Any) -> list[Tensor]:
    """Every tensor in what a model returns."""
    if isinstance(output, Tensor):
        return [output]
    items = output.to_tuple() if hasattr(output, "to_tuple") else output
    return [t for item in items for t in tensors(item)] if isinstance(items, (tuple, list)) else []


def run(model: nn.Module, batch: Any) -> list[Tensor]:
    out = model(**batch) if isinstance(batch, dict) else model(*batch) if isinstance(batch, tuple) else model(batch)
    return tensors(out)


def case(name: str) -> tuple[nn.Module, Any]:
    return CASES[name].model().double(), CASES[name].batch()


def same(first: list[Tensor], second: list[Tensor]) -> bool:
    return len(first) == len(second) > 0 and all(map(torch.equal, first, second))


def close(first: list[Tensor], second: list[Tensor], tolerance: float = 1e-10) -> bool:
    return len(first) == len(second) > 0 and all(
        torch.allclose(a, b, atol=tolerance, rtol=tolerance) for a, b in zip(first, second, strict=True)
    )


def train(model: nn.Module, optimizer: torch.optim.Optimizer, batch: Tensor, steps: int) -> list[float]:
    losses = []
    for _ in range(steps):
        value = (model(batch) - 1).square().mean()
        optimizer.zero_grad()
        value.backward()
        optimizer.step()
        losses.append(float(value.detach()))
    return losses


# Every method on every model.


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.filterwarnings("ignore")
def test_every_case_works_or_is_refused(method: str) -> None:
    worked, reasons = set(), []
    for name in CASES:
        model, batch = case(name)
        with torch.no_grad():
            torch.manual_seed(0)
            before = run(model, batch)
            kept = {key: value.clone() for key, value in model.state_dict().items()}
            try:
                handle = wc.condition_(model, method)
            except wc.errors.InapplicableError as error:
                reasons.append((name, str(error)))
            else:
                try:
                    torch.manual_seed(0)
                    assert all(torch.isfinite(t).all() for t in run(model, batch)), name
                    assert handle.method in str(handle.summary()), name
                    worked.add(name)
                except wc.errors.InapplicableError:
                    assert method == "conditioned_tokens", name  # what the tokens are is known when they come
                handle.remove_()
            torch.manual_seed(0)
            assert same(before, run(model, batch)), name
        assert kept.keys() == model.state_dict().keys(), name
        assert all(torch.equal(value, kept[key]) for key, value in model.state_dict().items()), name
    assert all(any(f"'{layer}'" in reason for layer, _ in CASES[name].layers) for name, reason in reasons)
    if method == "qk_norm":
        slots = {"timm-vit", "timm-deit", "timm-rope-grouped", "timm-eva02-fused", "timm-vit-parallel-scaling"}
        assert slots <= worked <= {name for name in CASES if name.startswith("timm-")} - {"timm-vit-qk-norm"}
    elif method == "conditioned_tokens":
        unclear = {"timm-coatnet", "hf-qwen2.5-vl-vision"}  # the block changes the width; many images in one sequence
        causal = {"timm-vit-qk-norm", "hf-bert-cross", "hf-gpt2", "hf-llama", "hf-bloom"}
        assert {*TOKENS, "torch-decoder", "hf-bart"} <= worked <= CASES.keys() - unclear - causal
    else:
        assert worked == CASES.keys()


@pytest.mark.parametrize(
    ("method", "options"),
    [
        ("sigma_reparam", {"per": "layer"}),
        ("sigma_reparam", {"gain": "final"}),
        ("sigma_reparam", {"gain": 0.0}),
        ("sigma_reparam", {"gain": True}),
        ("sigma_reparam", {"gain": float("inf")}),
        ("sigma_reparam", {"strength": 2.0}),
        ("sigma_reparam", {"mode": "folded"}),
        ("weight_conditioning", {"per": "head"}),
        ("weight_conditioning", {"strength": 1.0}),
        ("qk_norm", {"norm": "batch"}),
        ("qk_norm", {"norm": ["layer"]}),
        ("qk_norm", {"gain": -1}),
        ("qk_norm", {"roles": "v"}),
        ("conditioned_tokens", {"strength": 1.0}),
        ("conditioned_tokens", {"roles": "qk"}),
    ],
)
def test_malformed_options(method: str, options: dict[str, Any]) -> None:
    model, batch = case("timm-vit")
    before = run(model, batch)
    with pytest.raises(wc.errors.SchemeError):
        wc.condition_(model, method, **options)
    assert same(before, run(model, batch))


# σReparam.


class Literal(nn.Module):
    """The published procedure: one power iteration in each training forward pass."""

    def __init__(self, weight: Tensor) -> None:
        super().__init__()
        u, s, vt = torch.linalg.svd(weight.detach(), full_matrices=False)
        self.u, self.v, self.gamma = u[:, 0], vt[0], nn.Parameter(s[:1].clone())

    def forward(self, weight: Tensor) -> Tensor:
        if self.training:
            with torch.no_grad():
                self.u = functional.normalize(weight @ self.v, dim=0)
                self.v = functional.normalize(weight.T @ self.u, dim=0)
        return self.gamma / (self.u @ weight @ self.v) * weight


def written_out(model: nn.Module) -> nn.Module:
    for block in model.blocks:
        parametrize.register_parametrization(block.attn.qkv, "weight", Literal(block.attn.qkv.weight))
    return model


@pytest.mark.parametrize("per", ["matrix", "head"])
@pytest.mark.parametrize("name", ["timm-vit", "timm-maxvit-nchw", "hf-gpt2", "hf-llama", "hf-bloom", "torch-decoder"])
def test_sigma_starts_as_the_model_was(name: str, per: str) -> None:
    model, batch = case(name)
    before, weights = run(model, batch), {k: v.clone() for k, v in model.state_dict().items()}
    count = len(list(model.parameters()))
    handle = wc.condition_(model, "sigma_reparam", per=per)
    assert all(torch.equal(weights[key], value) for key, value in model.state_dict().items())  # not one bit
    assert close(before, run(model, batch))
    assert len(list(model.parameters())) == count + len(handle.weights)
    groups = sum(part.layout.heads for weight in handle.weights for part in weight.parts)
    expected = groups if per == "head" else len(handle.weights)
    assert handle.cost(10)["parameters"][1] - handle.cost(10)["parameters"][0] == expected


def test_sigma_trains_as_written_out() -> None:
    (mine, batch), (theirs, _) = case("timm-vit"), case("timm-vit")
    handle = wc.condition_(mine.train(), "sigma_reparam")
    written_out(theirs.train())
    losses = [train(m, torch.optim.Adam(m.parameters(), lr=0.01), batch, 8) for m in (mine, theirs)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-9)
    assert losses[0][-1] < 0.5 * losses[0][0]
    mine.eval()
    theirs.eval()
    # The last change of W has been iterated on here; there the next training forward pass does it.
    theirs.blocks[0].attn.qkv.train()
    theirs.blocks[1].attn.qkv.train()
    assert torch.allclose(mine.blocks[1].attn.qkv.weight, theirs.blocks[1].attn.qkv.weight, atol=1e-9)
    gains = [float(p.detach()) for name, p in mine.named_parameters() if name.endswith("weight_gain")]
    assert gains == pytest.approx([b.attn.qkv.parametrizations.weight[0].gamma.item() for b in theirs.blocks], rel=1e-9)
    handle.remove_()


@pytest.mark.parametrize("per", ["matrix", "head"])
@pytest.mark.parametrize("name", ["timm-vit", "hf-vit", "timm-maxvit-nchw"])
def test_sigma_max_is_gamma_while_training(name: str, per: str) -> None:
    model, batch = case(name)
    handle = wc.condition_(model.train(), "sigma_reparam", per=per)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    start = [weight.parameter.detach().clone() for weight in handle.weights]
    for _ in range(10):
        optimizer.zero_grad()
        sum(t.square().mean() for t in run(model, batch)).backward()
        optimizer.step()
    for weight, first in zip(handle.weights, start, strict=True):
        assert not torch.equal(first, weight.parameter)
        gain = weight.owner._parameters[f"{weight.name}_gain"]
        used = getattr(weight.owner, weight.name)
        if per == "matrix":
            largest = torch.linalg.svdvals(used.flatten(1))[:1]
        else:
            largest = torch.cat([torch.linalg.svdvals(part.layout.read(used.detach()))[:, 0] for part in weight.parts])
        assert torch.allclose(largest, gain, rtol=1e-3)


def test_sigma_has_the_gradient_of_the_spectral_norm() -> None:
    model = nn.MultiheadAttention(6, 2).double()
    handle = wc.condition_(model, "sigma_reparam", gain=0.7)
    rule = handle._applied.storage.live(handle.weights[0]).rule
    weight = model._parameters["in_proj_weight"].detach().clone().requires_grad_()
    assert torch.autograd.gradcheck(rule.compute, (weight,))
    probe = torch.randn(18, 6, dtype=torch.float64)
    (mine,) = torch.autograd.grad((rule.compute(weight) * probe).sum(), weight)
    exact = 0.7 / torch.linalg.matrix_norm(weight, 2) * weight
    (theirs,) = torch.autograd.grad((exact * probe).sum(), weight)
    assert torch.allclose(mine, theirs, atol=1e-12)


def test_sigma_iterates_at_steps_only() -> None:
    model, batch = case("timm-vit")
    handle = wc.condition_(model.train(), "sigma_reparam")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    train(model, optimizer, batch, 1)
    rule = handle._applied.storage.live(handle.weights[0]).rule
    u = rule.u.clone()
    run(model, batch)
    run(model.eval(), batch)
    torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=1.0).step()  # somebody else's
    assert torch.equal(u, rule.u)
    train(model, optimizer, batch, 1)
    assert not torch.equal(u, rule.u)
    with torch.no_grad():
        for weight in handle.weights:
            weight.parameter.mul_(1.5).add_(0.01)
    u = rule.u.clone()
    handle.after_step()  # for loops without a torch optimizer
    assert not torch.equal(u, rule.u)


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("method", ["sigma_reparam", "weight_conditioning", "qk_norm", "conditioned_tokens"])
def test_recomputed_activations(method: str, reentrant: bool) -> None:
    grads = []
    for again in (False, True):
        model, batch = case("timm-vit")
        wc.condition_(model.train(), method)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        train(model, optimizer, batch, 2)
        if again:
            for block in model.blocks:
                plain = block.forward
                block.forward = lambda x, plain=plain: checkpoint(plain, x, use_reentrant=reentrant)
        train(model, optimizer, batch, 2)
        grads.append([p.detach().clone() for p in model.parameters()])
    assert same(*grads)


@pytest.mark.parametrize("method", ["sigma_reparam", "weight_conditioning", "qk_norm", "conditioned_tokens"])
def test_copies_and_functional_calls(method: str) -> None:
    model, batch = case("timm-vit")
    wc.condition_(model.train(), method, **({"per": "head"} if method == "sigma_reparam" else {}))
    train(model, torch.optim.SGD(model.parameters(), lr=0.1), batch, 2)
    before = run(model, batch)
    copied, thawed = copy.deepcopy(model), pickle.loads(pickle.dumps(model))
    assert same(before, run(copied, batch))
    assert same(before, run(thawed, batch))
    train(copied, torch.optim.SGD(copied.parameters(), lr=0.1), batch, 2)
    assert same(before, run(model, batch))
    assert not same(before, run(copied, batch))
    given = {name: p.detach().clone().requires_grad_() for name, p in copied.named_parameters()}
    called = torch.func.functional_call(model, given, (batch,))
    if method != "sigma_reparam":  # whose u belongs to the model, not to its parameters
        assert close([called], run(copied, batch))
    grads = torch.autograd.grad(called.square().mean(), list(given.values()))
    assert all(torch.isfinite(grad).all() and bool(grad.any()) for grad in grads)


@pytest.mark.parametrize("method", ["sigma_reparam", "weight_conditioning"])
def test_compiled(method: str) -> None:
    torch._dynamo.reset()  # what other tests have compiled counts towards its limit

    def build() -> nn.Module:
        torch.manual_seed(0)
        return wc.condition_(nn.MultiheadAttention(12, 3, dropout=0.0).double().train(), method).model

    x = torch.randn(5, 2, 12, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    results = []
    for compiled in (False, True):
        model = build()
        forward: Any = torch.compile(model, backend="aot_eager", fullgraph=True) if compiled else model
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(3):
            forward(x, x, x)[0].square().mean().backward()
            optimizer.step()
        results.append([forward(x, x, x)[0], *model.parameters()])
    assert close(*results)


def test_sigma_resumes_to_the_bit() -> None:
    def build() -> tuple[nn.Module, Any, torch.optim.Optimizer]:
        model, _ = case("timm-vit")
        handle = wc.condition_(model.train(), "sigma_reparam", per="head")
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        return model, handle.attach(optimizer), optimizer

    batch = CASES["timm-vit"].batch()
    model, handle, optimizer = build()
    train(model, optimizer, batch, 3)
    saved = copy.deepcopy((model.state_dict(), handle.state_dict(), optimizer.state_dict()))
    straight = train(model, optimizer, batch, 3)
    model, handle, optimizer = build()
    model.load_state_dict(saved[0])
    handle.load_state_dict(saved[1])
    optimizer.load_state_dict(saved[2])
    assert train(model, optimizer, batch, 3) == straight


def test_sigma_loads_folds_and_unfolds() -> None:
    model, batch = case("timm-vit")
    plain, _ = case("timm-vit")
    with torch.no_grad():
        plain.blocks[0].attn.qkv.weight.mul_(3)
    handle = wc.condition_(model, "sigma_reparam", gain=1.0)
    assert not close(run(model, batch), run(plain, batch))
    assert float(torch.linalg.matrix_norm(model.blocks[0].attn.qkv.weight, 2).detach()) == pytest.approx(1.0)
    model.load_state_dict(plain.state_dict())  # W = V, γ = σ(V)
    gain = model.blocks[0].attn.qkv.weight_gain
    assert gain.item() == pytest.approx(torch.linalg.svdvals(plain.blocks[0].attn.qkv.weight)[0].item())
    assert close(run(model, batch), run(plain, batch))
    handle.fold_()
    assert "weight_gain" not in dict(model.blocks[0].attn.qkv.named_parameters())
    assert close(run(model, batch), run(plain, batch))
    handle.unfold_()
    assert close(run(model, batch), run(plain, batch))
    with pytest.raises(wc.errors.InapplicableError, match="no strength"):
        handle.strength_(2.0)


def test_a_copy_keeps_its_pair_and_data_writes_are_seen() -> None:
    class Careless(torch.optim.SGD):
        """Writes into `.data`, which has no version."""

        @torch.no_grad()
        def step(self, closure: Any = None) -> None:
            for parameter in self.param_groups[0]["params"]:
                parameter.data -= 0.1 * parameter.grad

    model, batch = case("timm-vit")
    wc.condition_(model.train(), "sigma_reparam")
    train(model, torch.optim.SGD(model.parameters(), lr=0.1), batch, 2)
    copied = copy.deepcopy(model)
    before = run(copied, batch)
    other = nn.Parameter(torch.ones(1))
    other.sum().backward()
    torch.optim.SGD([other], lr=1.0).step()
    assert same(before, run(copied, batch))
    rule = copied.blocks[0].attn.qkv._wellcond["weight"].rule
    u = rule.u.clone()
    train(copied, Careless(copied.parameters()), batch, 1)
    assert not torch.equal(u, rule.u)
    used, stored = copied.blocks[0].attn.qkv.weight, copied.blocks[0].attn.qkv._parameters["weight"]
    assert torch.equal(copied.state_dict()["blocks.0.attn.qkv.weight"], used)
    assert torch.allclose(used / stored, (used / stored)[0, 0])


def test_sigma_of_some_roles_leaves_the_others() -> None:
    model, _ = case("timm-vit")
    value = model.blocks[0].attn.qkv.weight[24:].detach().clone()
    wc.condition_(model, "sigma_reparam", roles="qk", gain=1.0)
    used = model.blocks[0].attn.qkv.weight
    assert torch.equal(used[24:], value)
    assert float(torch.linalg.matrix_norm(used[:24], 2).detach()) == pytest.approx(1.0)


def test_sigma_of_tied_weights_has_one_gain() -> None:
    model = nn.Sequential(nn.MultiheadAttention(6, 2), nn.MultiheadAttention(6, 2))
    model[1].in_proj_weight = model[0].in_proj_weight
    count = len(list(model.parameters()))
    wc.condition_(model, "sigma_reparam")
    assert len(list(model.parameters())) == count + 1
    assert model[0].in_proj_weight_gain is model[1].in_proj_weight_gain


def test_sigma_follows_the_model_to_another_dtype() -> None:
    model, batch = case("timm-vit")
    wc.condition_(model.float(), "sigma_reparam")
    single = [t.double() for t in run(model, batch.float())]
    assert close(single, run(model.double(), batch), 1e-4)
    half, _ = case("timm-vit")
    weight = half.bfloat16().blocks[0].attn.qkv.weight.detach().clone()
    wc.condition_(half, "sigma_reparam")
    assert torch.equal(half.blocks[0].attn.qkv.weight, weight)


def test_sigma_is_refused() -> None:
    model, batch = case("timm-vit")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    handle = wc.condition_(model, "sigma_reparam")
    assert handle.concerns(optimizer)
    with pytest.raises(wc.errors.OptimizerError, match="weight_gain"):
        handle.attach(optimizer)
    handle.attach(torch.optim.SGD(model.parameters(), lr=0.1))
    handle.remove_()
    with torch.no_grad():
        model.blocks[1].attn.qkv.weight.zero_()
    before = run(model, batch)
    with pytest.raises(wc.errors.InapplicableError, match=r"blocks\.1.*norm of zero"):
        wc.condition_(model, "sigma_reparam")
    assert same(before, run(model, batch))
    wrapped = type("DistributedDataParallel", (nn.Module,), {})()
    wrapped.module = model
    with pytest.raises(wc.errors.InapplicableError, match="DistributedDataParallel"):
        wc.condition_(wrapped, "qk_norm")


# Weight conditioning.


@pytest.mark.parametrize("name", ["timm-vit", "hf-gpt2", "hf-falcon", "timm-maxvit-nchw"])
def test_rows_have_unit_norm(name: str) -> None:
    model, batch = case(name)
    handle = wc.condition_(model, "weight_conditioning", roles="qk")
    for layer in handle.layers:
        for role, projection in layer.projections("query", "key", "value"):
            unit = projection.read().norm(dim=1)
            assert torch.allclose(unit, torch.ones_like(unit), atol=1e-12) == (role != "value")
    reference, _ = case(name)
    for layer in wc.attention_layers(reference):
        for _, projection in layer.projections("query", "key"):
            projection.write_(functional.normalize(projection.read(), dim=1))
    assert close(run(model, batch), run(reference, batch))


def test_the_scale_of_a_row_has_no_effect() -> None:
    model, batch = case("timm-vit")
    plain = run(model, batch)
    handle = wc.condition_(model, "weight_conditioning")
    before = run(model, batch)
    with torch.no_grad():
        for weight in handle.weights:
            weight.parameter.mul_(torch.linspace(0.1, 9, 36, dtype=torch.float64)[:, None])
    assert close(before, run(model, batch))
    handle.remove_()
    assert not close(plain, run(model, batch))


def test_row_gradient_and_zero_rows() -> None:
    model = nn.MultiheadAttention(6, 2).double()
    handle = wc.condition_(model, "weight_conditioning", roles="kv")
    rule = handle._applied.storage.live(handle.weights[0]).rule
    weight = model._parameters["in_proj_weight"].detach().clone().requires_grad_()
    assert torch.autograd.gradcheck(rule.compute, (weight,))
    zeroed = weight.detach().clone()
    zeroed[7] = 0
    zeroed.requires_grad_()
    used = rule.compute(zeroed)
    (grad,) = torch.autograd.grad(used.sum(), zeroed)
    assert torch.isfinite(grad).all()
    assert not used[7].any()
    assert torch.equal(rule.invert(used.detach()), used)


def test_weights_without_unit_rows_are_refused() -> None:
    model, batch = case("timm-vit")
    handle = wc.condition_(model, "weight_conditioning")
    exported = copy.deepcopy(model.state_dict())
    before = run(model, batch)
    other, _ = case("timm-vit")
    with pytest.raises(wc.errors.CheckpointError, match="unit"):
        model.load_state_dict(other.state_dict())
    handle.remove_()
    with pytest.raises(wc.errors.CheckpointError, match="unit"):
        wc.condition_(other, "weight_conditioning", as_original=False)
    assert not other.__dict__.get("_wellcond_handles")
    for dtype in (torch.float64, torch.float32, torch.bfloat16):
        other, _ = case("timm-vit")
        other.load_state_dict(exported)
        wc.condition_(other.to(dtype), "weight_conditioning", as_original=False)
        assert close(before, [t.double() for t in run(other, batch.to(dtype))], 16 * torch.finfo(dtype).eps + 1e-9)


# QK-norm.

NAMED = {
    "timm-vit": ("vit_tiny_patch16_224", {"img_size": 16, "patch_size": 8, "embed_dim": 12, "num_heads": 3}),
    "timm-deit3": ("deit3_small_patch16_224", {"img_size": 16, "patch_size": 8, "embed_dim": 12, "num_heads": 3}),
}


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("name", NAMED)
def test_qk_norm_is_the_models_own(name: str, fused: bool) -> None:
    import timm

    model, batch = case(name)
    before = run(model, batch)
    wc.condition_(model, "qk_norm")
    architecture, sizes = NAMED[name]
    own = timm.create_model(architecture, num_classes=7, depth=2, qk_norm=True, **sizes).double().eval()
    with torch.no_grad():
        for block in model.blocks:
            for norm in (block.attn.q_norm, block.attn.k_norm):
                norm.weight.uniform_(0.5, 2)
                norm.bias.uniform_(-1, 1)
    own.load_state_dict(model.state_dict())
    for module in (*model.modules(), *own.modules()):
        if hasattr(module, "fused_attn"):
            module.fused_attn = fused
    assert close(run(own, batch), run(model, batch))
    assert not close(before, run(model, batch), 1e-3)
    assert {name for name, _ in own.named_parameters()} == {name for name, _ in model.named_parameters()}


@pytest.mark.parametrize("norm", ["layer", "rms", "l2"])
@pytest.mark.parametrize("name", ["timm-vit", "timm-rope-grouped", "timm-eva02-fused", "timm-vit-parallel-scaling"])
def test_the_scale_of_queries_and_keys_has_no_effect(name: str, norm: str) -> None:
    @torch.no_grad()
    def moved(model: nn.Module) -> float:
        """How far the output goes when queries and keys are trebled, biases being zero."""
        layers = wc.attention_layers(model)
        projections = [p for layer in layers for _, p in layer.projections("query", "key")]
        for projection in projections:
            if projection.bias:
                bias = fetch(model, projection.bias)
                bias.copy_(projection.bias_zeroed(bias))
        (before,) = run(model, batch)
        for projection in projections:
            projection.write_(3 * projection.read())
        return float((run(model, batch)[0] - before).abs().max())

    model, batch = case(name)
    plain = moved(copy.deepcopy(model))
    wc.condition_(model, "qk_norm", norm=norm)
    assert moved(model) < 1e-2 * plain  # all that is left is eps beside the variance
    assert plain > 1e-4


def test_l2_logits_are_cosines() -> None:
    model, batch = case("timm-vit")
    wc.condition_(model, "qk_norm", norm="l2", gain=4.0)
    attention, seen = model.blocks[1].attn, {}
    for name in ("q_norm", "k_norm"):
        getattr(attention, name).register_forward_hook(lambda m, a, out, name=name: seen.update({name: (a[0], out)}))
    run(model, batch)
    logits = seen["q_norm"][1] @ seen["k_norm"][1].mT * attention.scale
    cosines = functional.cosine_similarity(seen["q_norm"][0][..., None, :], seen["k_norm"][0][..., None, :, :], dim=-1)
    assert torch.allclose(logits, 4 * cosines)
    assert 1 < float(logits.abs().max().detach()) <= 4.0
    assert model.blocks[0].attn.q_norm.gain in set(model.parameters())


def test_qk_norm_all_or_nothing_and_back() -> None:
    from timm.layers import Attention

    model = nn.Sequential(Attention(12, 3), nn.MultiheadAttention(12, 3))
    with pytest.raises(wc.errors.InapplicableError, match=r"'1' \(MultiheadAttention\).*layers="):
        wc.condition_(model, "qk_norm")
    slot = model[0].q_norm
    assert type(slot) is nn.Identity
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    handle = wc.condition_(model.bfloat16(), "qk_norm", layers="0")
    assert {p.dtype for p in model[0].q_norm.parameters()} == {torch.bfloat16}
    with pytest.raises(wc.errors.OptimizerError, match=r"0\.q_norm\.weight"):
        handle.attach(optimizer)
    handle.attach(torch.optim.SGD(model.parameters(), lr=0.1))
    assert wc.condition_(model, "qk_norm", layers="0") is handle
    with pytest.raises(wc.errors.WeightError, match="already"):
        wc.condition_(model, "qk_norm", layers="0", norm="rms")
    assert all(head.trained == head.effective for head in handle.summary().heads)
    # 3 · 12 · 12 weights and 2 · (4 + 4) of the norms; 8 operations on each of 2 · 12 numbers of 10 tokens
    assert handle.cost(10)["parameters"] == (432, 448, 448)
    assert handle.cost(10)["FLOPs of the projections, forward"] == (8640, 8640 + 8 * 240, None)
    handle.remove_()
    assert model[0].q_norm is slot


# Conditioned tokens.

TOKENS: dict[str, Callable[[Tensor], Tensor]] = {
    "timm-vit": lambda x: x,  # N = 5 < D = 12
    "hf-bert": lambda x: x,
    "hf-t5": lambda x: x,
    "hf-swin": lambda x: x,  # N = 64 > D = 12
    "timm-attention-masked": lambda x: x,  # a keyword, and no block
    "timm-swin": lambda x: x.reshape(len(x), -1, x.shape[3]),  # a grid, channels last
    "timm-davit": lambda x: x.reshape(*x.shape[:2], -1).mT,  # a grid, channels first
    "torch-mha": lambda x: x.transpose(0, 1),  # the sequence first
}


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("name", TOKENS)
def test_tokens_are_conditioned(name: str, dtype: torch.dtype) -> None:
    model = CASES[name].model().to(dtype)
    batch = CASES[name].batch()
    if dtype == torch.float32:
        batch = _as_float(batch)
    handle = wc.condition_(model, "conditioned_tokens")
    assert handle.summary().heads[0].status == "no batch yet"
    seen: list[Tensor] = []

    def look(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        given = args[0] if args else kwargs["x"]
        seen.append(TOKENS[name](given.detach()))

    first = wc.attention_layers(model)[0]
    path = first.block.name.removesuffix(".layer") if first.block else first.name
    resolve(model, path).register_forward_pre_hook(look, with_kwargs=True)
    run(model, batch)
    sigma = torch.linalg.svdvals(seen[0].double())
    kappa = (sigma[:, 0] / sigma[:, -1]).tolist()
    summary = handle.summary()
    assert max(kappa) <= 2 + 1e-4
    assert max(head.trained for head in summary.heads) > 2.5
    assert [head.effective for head in summary.heads] == pytest.approx(kappa, rel=1e-4)
    assert summary.holds
    handle.remove_()
    run(model, batch)
    sigma = torch.linalg.svdvals(seen[1].double())
    before = [min(head.trained, 1e4) for head in summary.heads]  # T5's batch repeats a token: rank deficient
    assert before == pytest.approx((sigma[:, 0] / sigma[:, -1]).clamp(max=1e4).tolist(), rel=1e-2)


def _as_float(batch: Any) -> Any:
    if isinstance(batch, dict):
        return {key: _as_float(value) for key, value in batch.items()}
    if isinstance(batch, tuple):
        return tuple(_as_float(value) for value in batch)
    return batch.float() if isinstance(batch, Tensor) and batch.is_floating_point() else batch


def test_tokens_have_the_formula_and_no_gradient_of_their_own() -> None:
    model = nn.TransformerEncoderLayer(6, 2, batch_first=True).double()
    wc.condition_(model, "conditioned_tokens")
    (hook,) = model._forward_pre_hooks.values()
    assert isinstance(hook, TokenHook)
    x = torch.randn(2, 4, 6, dtype=torch.float64, requires_grad=True)
    x.data[1, 3] = x.data[1, 2]  # rank deficient
    ((new,), _) = hook(model, (x,), {})
    u, s, vt = torch.linalg.svd(x[0].detach())
    assert torch.allclose(new[0], x[0] + s[0] * u @ vt[:4])
    sigma = torch.linalg.svdvals(new)
    assert torch.allclose(sigma[1, 0] / sigma[1, -1], torch.tensor(2.0, dtype=torch.float64))
    new.sum().backward()
    assert torch.equal(x.grad, torch.ones_like(x))


def test_tokens_that_are_not_clear_or_not_to_be_seen() -> None:
    for name in ("hf-gpt2", "hf-llama"):
        with pytest.raises(wc.errors.InapplicableError, match="causally"):
            wc.condition_(CASES[name].model(), "conditioned_tokens")
    model, batch = case("torch-encoder")
    handle = wc.condition_(model, "conditioned_tokens")
    assert wc.condition_(model, "conditioned_tokens") is handle
    with pytest.raises(wc.errors.InapplicableError, match="already"):
        wc.condition_(copy.deepcopy(model), "conditioned_tokens")  # a copy is conditioned, and has no handle
    future = torch.ones(4, 4, dtype=torch.bool).triu(1)
    for mask in (future, torch.zeros(4, 4, dtype=torch.float64).masked_fill(future, float("-inf"))):
        with pytest.raises(wc.errors.InapplicableError, match="causally"):
            model(batch, src_mask=mask)
    model(batch, src_mask=torch.eye(4, dtype=torch.bool))
    for shape in ((15, 4), (2, 15, 4, 15), (2, 4, 14)):
        with pytest.raises(wc.errors.InapplicableError, match="not clear"):
            model(torch.zeros(shape, dtype=torch.float64))


# Without LayerNorm.


def norms(model: nn.Module) -> list[str]:
    return [name for name, module in model.named_modules() if is_layer_norm(module)]


LEFT = {
    "timm-vit": ["norm"],
    "timm-vit-qk-norm": [f"blocks.{i}.attn.{n}" for i in (0, 1) for n in ("q_norm", "k_norm", "norm")] + ["norm"],
    "hf-bert": ["embeddings.LayerNorm"],
    "hf-gpt2": ["transformer.ln_f"],
    "hf-llama": ["norm"],
    "torch-encoder": [],
}


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("name", LEFT)
def test_without_layernorm_and_back(name: str, training: bool) -> None:
    model, batch = case(name)
    model.train(training)

    def output() -> list[Tensor]:
        torch.manual_seed(0)
        return [t.detach() for t in run(model, batch)]

    before, modules, keys = output(), dict(model.named_modules()), list(model.state_dict())
    undo = wc.without_layernorm(model)
    assert norms(model) == LEFT[name]
    assert not close(before, output())
    with torch.no_grad():
        assert close(output(), output())
    assert {path for path, _ in undo.replaced} == {n for n in modules if is_layer_norm(modules[n])} - set(LEFT[name])
    assert all(path in str(undo) for path, _ in undo.replaced)
    assert not any(key.startswith(path + ".") for path, _ in undo.replaced for key in model.state_dict())
    undo.undo_()
    assert same(before, output())
    assert all(module is modules[path] for path, module in model.named_modules())
    assert list(model.state_dict()) == keys
    with pytest.raises(wc.errors.InapplicableError):
        undo.undo_()


def test_without_layernorm_is_the_block_without_it() -> None:
    model, batch = case("timm-vit")
    wc.without_layernorm(model, final=True)
    assert not norms(model)
    x = torch.cat([model.cls_token.expand(2, -1, -1), model.patch_embed(batch)], 1) + model.pos_embed
    for block in model.blocks:
        x = x + block.attn(x)
        x = x + block.mlp(x)
    assert close([model.head(x[:, 0])], run(model, batch))


@torch.no_grad()
def test_without_layernorm_leaves_the_fused_path() -> None:
    """`nn.TransformerEncoderLayer` in evaluation normalises by itself, also the nested tensors of an encoder."""
    layer = nn.TransformerEncoderLayer(16, 4, 20, batch_first=True).double()
    model = nn.TransformerEncoder(layer, 2, norm=nn.LayerNorm(16).double()).eval()
    x = torch.randn(2, 5, 16, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    padding = torch.tensor([[False] * 5, [False] * 3 + [True] * 2])
    before = [model(x), model(x, src_key_padding_mask=padding)]
    undo = wc.without_layernorm(model)
    expected = x
    for each in model.layers:
        expected = expected + each.self_attn(expected, expected, expected, need_weights=False)[0]
        expected = expected + each.linear2(each.linear1(expected).relu())
    expected = model.norm(expected)
    assert torch.allclose(model(x), expected)
    short = model(x[1:, :3])
    assert torch.allclose(model(x, src_key_padding_mask=padding)[1:, :3], short)
    undo.undo_()
    assert same(before, [model(x), model(x, src_key_padding_mask=padding)])


@pytest.mark.filterwarnings("ignore")
def test_without_layernorm_on_every_case() -> None:
    worked, refused = 0, set()
    for name in CASES:
        model, batch = case(name)
        with torch.no_grad():
            torch.manual_seed(0)
            before = run(model, batch)
            try:
                undo = wc.without_layernorm(model, final=True)
            except wc.errors.InapplicableError:
                refused.add(name)
            else:
                torch.manual_seed(0)
                assert all(torch.isfinite(t).all() for t in run(model, batch)), name
                undo.undo_()
                worked += 1
            torch.manual_seed(0)
            assert same(before, run(model, batch)), name
    # An attention layer by itself, a block that is one, and a block whose MLP is a mixture of experts.
    bare = {"torch-mha", "torch-mha-separate", "timm-attention-masked", "timm-vit-parallel-scaling", "hf-gpt-oss"}
    assert refused == bare
    assert worked == len(CASES) - len(bare)


def test_without_layernorm_of_some_layers_and_after_a_move() -> None:
    model, _ = case("timm-vit")
    undo = wc.without_layernorm(model, layers="blocks.0.*")
    assert [path for path, _ in undo.replaced] == ["blocks.0.norm1", "blocks.0.norm2"]
    assert model.blocks[0].norm1.weight.dtype == torch.float64  # code that asks a norm for its dtype finds one
    assert model.blocks[0].norm1("x", "condition", scale=2) == "x"
    model.float().train()
    undo.undo_()
    assert {p.dtype for p in model.parameters()} == {torch.float32}
    assert model.blocks[0].norm1.training
    wc.without_layernorm(model)
    with pytest.raises(wc.errors.InapplicableError, match="no LayerNorm"):
        wc.without_layernorm(model)
    with pytest.raises(wc.errors.InapplicableError, match="no residual block"):
        wc.without_layernorm(nn.MultiheadAttention(6, 2))
