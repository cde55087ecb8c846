"""`wc.attention_layers(model, inputs)`: how far each view is known, and that looking leaves no trace."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import AutoModel, DeepseekV3Config

import wellcond as wc
from tests.cases import CASES
from wellcond.errors import InapplicableError, LayerFilterError, NoAttentionError
from wellcond.jacobian.layer_heads import head_of
from wellcond.testing import same_bits, state

D, H, N = 12, 3, 7


def generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)


def tokens(*shape: int) -> Tensor:
    return torch.randn(*shape, D, generator=generator(), dtype=torch.float64)


def built(cls: type[nn.Module], *args: Any) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return cls(*args).double()


class Cosine(nn.Module):
    """Separate projections whose queries and keys are normalised, which no name tells."""

    def __init__(self) -> None:
        super().__init__()
        self.heads = H
        self.to_q, self.to_k, self.to_v, self.to_out = (nn.Linear(D, D) for _ in range(4))

    def probabilities(self, x: Tensor) -> Tensor:
        q, k = (f(x).unflatten(-1, (H, -1)).transpose(1, 2) for f in (self.to_q, self.to_k))
        return (10 * F.normalize(q, dim=-1) @ F.normalize(k, dim=-1).mT).softmax(-1)

    def forward(self, x: Tensor) -> Tensor:
        v = self.to_v(x).unflatten(-1, (H, -1)).transpose(1, 2)
        out: Tensor = self.to_out((self.probabilities(x) @ v).transpose(1, 2).flatten(2))
        return out


class HeadMajor(nn.Module):
    """A fused weight whose name says blocks and whose order is by head."""

    def __init__(self) -> None:
        super().__init__()
        self.num_heads = H
        self.qkv, self.proj = nn.Linear(D, 3 * D), nn.Linear(D, D)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).unflatten(-1, (H, 3, -1)).permute(3, 0, 2, 1, 4)
        out: Tensor = self.proj(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
        return out


class Twice(nn.Module):
    """Two attentions in one module: along rows, then along columns of a grid."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(D, 3 * D), nn.Linear(D, 3 * D)

    def forward(self, x: Tensor) -> Tensor:
        for f in (self.a, self.b):
            q, k, v = f(x).chunk(3, -1)
            x = (x + (q @ k.mT).softmax(-1) @ v).transpose(1, 2)
        return x


class Chunked(nn.Module):
    """Queries meet their keys block by block, as where memory is short."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(D, 3 * D)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).chunk(3, -1)
        return torch.cat([(part @ k.mT).softmax(-1) @ v for part in q.split(4, 1)], 1)


class Remembering(nn.Module):
    """Keeps keys in a list, counts in a number, and normalises by running statistics."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.norm = nn.Linear(D, 3 * D), nn.BatchNorm1d(D)
        self.keys: list[Tensor] = []
        self.calls = 0
        self.seen = torch.zeros(1)

    def forward(self, x: Tensor, cache: list[Tensor]) -> Tensor:
        self.calls += 1
        self.seen += 1
        self.last = x
        q, k, v = self.qkv(self.norm(x.mT).mT).chunk(3, -1)
        self.keys.append(k)
        cache.append(k)
        q = q * torch.rand_like(q[..., :1])
        return (q @ torch.cat(cache, 1).mT).softmax(-1) @ F.pad(v, (0, 0, 3, 0))


class Router(nn.Module):
    """A softmax that chooses experts is no attention."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.experts = nn.Linear(D, 4), nn.ModuleList(nn.Linear(D, D) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        weights = self.gate(x).softmax(-1)
        out: Tensor = sum(weights[..., i : i + 1] * expert(x) for i, expert in enumerate(self.experts))  # type: ignore[assignment]
        return out


def test_a_view_says_how_far_it_is_known() -> None:
    case = CASES["timm-vit"]
    model = case.model().double()
    assert {layer.standing for layer in wc.attention_layers(model)} == {"described"}
    assert {layer.standing for layer in wc.attention_layers(model, case.batch())} == {"verified"}
    guess = built(Cosine)
    assert wc.attention_layers(guess)[0].standing == "guessed"
    assert "guessed from names and sizes" in str(wc.plan(guess, "conditioned"))
    assert "guessed" not in str(wc.plan(guess, "conditioned", layers=wc.attention_layers(guess, tokens(2, N))))


def test_cosine_attention_is_measured_as_it_is() -> None:
    model, x = built(Cosine), tokens(2, N)
    (record,) = wc.diagnose(model, x).layers
    truth = (torch.special.entr(model.probabilities(x)).sum(-1) / math.log(N)).mean((0, 2))  # type: ignore[operator]
    assert [head.entropy for head in record.heads] == pytest.approx(truth.tolist(), rel=1e-12)
    (layer,) = wc.attention_layers(model)
    for head, jacobian in enumerate(record.jacobian):
        values = torch.linalg.svdvals(by_autograd(model, x[:1], head))
        rank = jacobian.condition.rank
        assert jacobian.condition.value == pytest.approx(float(values[0] / values[rank - 1]), rel=1e-6)
    assert head_of(layer, x, 0).output().shape == (2, N, D // H)


def by_autograd(model: nn.Module, x: Tensor, head: int) -> Tensor:
    """∂A/∂(W_Q, W_K, W_V) of one head through the module itself."""
    rows = slice(head * D // H, (head + 1) * D // H)
    names = ("to_q.weight", "to_k.weight", "to_v.weight")
    weights = [model.get_parameter(name).detach() for name in names]

    def mixed(*parts: Tensor) -> Tensor:
        seen: list[Tensor] = []
        handle = model.to_out.register_forward_pre_hook(lambda module, args: seen.append(args[0]))  # type: ignore[union-attr]
        changed = {
            name: torch.cat([weight[: rows.start], part, weight[rows.stop :]])
            for name, weight, part in zip(names, weights, parts, strict=True)
        }
        torch.func.functional_call(model, changed, x)
        handle.remove()
        return seen[0][..., rows]

    blocks = torch.autograd.functional.jacobian(mixed, tuple(weight[rows] for weight in weights))
    return torch.cat([block.flatten(0, 2).flatten(1) for block in blocks], 1)


def test_a_fused_order_is_what_the_pass_shows() -> None:
    model, x = built(HeadMajor), tokens(2, N)
    (guess,), (layer,) = wc.attention_layers(model), wc.attention_layers(model, x)
    assert layer.standing == "verified"
    assert layer.key is not None
    expected = model.qkv.weight.unflatten(0, (H, 3, -1))[:, 1].mT  # type: ignore[operator, union-attr]
    assert torch.equal(layer.key.read(), expected)
    assert guess.key is not None
    assert not torch.equal(guess.key.read(), expected)


def test_two_sites_of_a_module_have_names_of_their_own() -> None:
    model = built(Twice)
    layers = wc.attention_layers(model, tokens(2, D))
    assert [layer.name for layer in layers] == ["", "#2"]
    assert layers[1].query is not None
    assert layers[1].query.weight.path == "b.weight"
    assert layers[1].module is model


def test_blocks_of_queries_are_one_attention() -> None:
    model, x = built(Chunked), tokens(1, N)
    (layer,) = wc.attention_layers(model, x)
    assert layer.standing == "verified"
    q, k, v = model.qkv(x).chunk(3, -1)  # type: ignore[operator]
    assert torch.allclose(head_of(layer, x).output(), (q @ k.mT).softmax(-1) @ v, rtol=1e-12)
    assert wc.diagnose(model, x).layers[0].heads[0].entropy is None


def test_no_attention_is_found_where_there_is_none() -> None:
    with pytest.raises(NoAttentionError):
        wc.attention_layers(built(Router), tokens(2, N))


def test_latent_attention_is_found_measured_initialised_and_conditioned() -> None:
    config = DeepseekV3Config(
        hidden_size=32,
        num_hidden_layers=1,
        num_attention_heads=4,
        num_key_value_heads=4,
        vocab_size=31,
        intermediate_size=48,
        q_lora_rank=12,
        kv_lora_rank=8,
        qk_nope_head_dim=8,
        qk_rope_head_dim=4,
        v_head_dim=6,
        max_position_embeddings=32,
    )
    model, batch = AutoModel.from_config(config).double(), torch.randint(0, 31, (2, N), generator=generator())
    layers = wc.attention_layers(model, batch)
    (layer,) = layers
    assert layer.query is not None
    assert (layer.standing, layer.query.shape, layer.head_dim) == ("verified", (4, 12, 12), 12)
    assert wc.diagnose(model, batch).layers[0].heads[0].entropy is not None
    plan = wc.init_(model, "conditioned", seed=0, layers=layers)
    assert {entry.layer for entry in plan.entries} == {layer.name}
    assert wc.condition_(model, "polar", layers=layers).active


def test_a_refused_layer_is_neither_initialised_nor_conditioned() -> None:
    model, x = built(Cosine), tokens(2, N)
    (layer,) = wc.attention_layers(model, x)
    refused = [replace(layer, standing="refused", reason="it differs")]
    before = state(model)
    with pytest.raises(InapplicableError, match="it differs"):
        wc.init_(model, "conditioned", layers=refused)
    with pytest.raises(InapplicableError, match="it differs"):
        wc.condition_(model, "polar", layers=refused)
    assert all(same_bits(value, before[name]) for name, value in state(model).items())


class Nameless(nn.Module):
    """Attention whose projections have names that nobody knows."""

    def __init__(self) -> None:
        super().__init__()
        self.alpha, self.beta, self.gamma, self.delta = (nn.Linear(D, D) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (f(x).unflatten(-1, (H, -1)).transpose(1, 2) for f in (self.alpha, self.beta, self.gamma))
        out: Tensor = self.delta(((q @ k.mT).softmax(-1) @ v).transpose(1, 2).flatten(2))
        return out


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.mixing = nn.LayerNorm(D), nn.LayerNorm(D), Nameless()
        self.mlp = nn.Sequential(nn.Linear(D, 2 * D), nn.GELU(), nn.Linear(2 * D, D))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.mixing(self.first(x))
        out: Tensor = x + self.mlp(self.second(x))
        return out


def test_a_model_that_only_a_pass_shows_is_diagnosed_monitored_and_located() -> None:
    model, x = nn.Sequential(built(Block), built(Block)), tokens(3, 9)
    with pytest.raises(NoAttentionError):
        wc.attention_layers(model)
    assert [layer.heads[0].entropy is not None for layer in wc.diagnose(model, x).layers] == [True, True]
    with wc.Monitor(model, x, every=1, alarms=False) as monitor:
        assert {len(record["layers"]) for record in monitor.step() if record["tier"] != "jacobian"} == {2}
    assert [layer.layer for layer in wc.locate(model, x).layers] == ["0.mixing", "1.mixing"]


def test_views_of_another_model_are_refused() -> None:
    model, x = built(Cosine), tokens(1, N)
    with pytest.raises(LayerFilterError, match="another model"):
        wc.init_(built(Cosine), "conditioned", layers=wc.attention_layers(model, x))


@pytest.mark.parametrize("training", [True, False])
def test_looking_leaves_no_trace(training: bool) -> None:
    model = built(Remembering).train(training)
    cache: list[Tensor] = [tokens(2, 3)]
    batch = {"x": tokens(2, N), "cache": cache}
    before, seed = state(model), torch.get_rng_state()
    (layer,) = wc.attention_layers(model, batch)
    assert layer.standing == "verified"
    assert all(same_bits(value, before[name]) for name, value in state(model).items())
    assert torch.equal(torch.get_rng_state(), seed)
    assert len(cache) == 1
    assert (model.keys, model.calls, float(model.seen)) == ([], 0, 0.0)  # type: ignore[arg-type]
    assert not hasattr(model, "last")
    assert all(module.training is training for module in model.modules())
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())
    assert all(parameter.grad is None for parameter in model.parameters())
