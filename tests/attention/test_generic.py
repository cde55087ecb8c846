"""The structural adapter on classes as users write them, and models in wrappers, tied and frozen."""

from __future__ import annotations

import math
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper

import wellcond as wc
from wellcond.attention.capture import capture
from wellcond.attention.replay import project
from wellcond.attention.verify import Verification, check_call
from wellcond.errors import NoAttentionError
from wellcond.testing import check_adapter, same_bits, state

D, B, N = 12, 2, 5


# ---- as in nanoGPT: fused, causal, one config object ----


class CausalSelfAttention(nn.Module):
    def __init__(self, config: Any) -> None:
        super().__init__()
        self.c_attn = nn.Linear(config.n_embd, 3 * config.n_embd, bias=config.bias)
        self.c_proj = nn.Linear(config.n_embd, config.n_embd, bias=config.bias)
        self.resid_dropout = nn.Dropout(0.1)
        self.n_head, self.n_embd, self.dropout = config.n_head, config.n_embd, 0.1

    def forward(self, x: Tensor) -> Tensor:
        b, t, c = x.size()
        q, k, v = self.c_attn(x).split(self.n_embd, dim=2)
        q, k, v = (y.view(b, t, self.n_head, c // self.n_head).transpose(1, 2) for y in (q, k, v))
        y = F.scaled_dot_product_attention(q, k, v, dropout_p=0.1 if self.training else 0.0, is_causal=True)
        return self.resid_dropout(self.c_proj(y.transpose(1, 2).contiguous().view(b, t, c)))


def nanogpt(bias: bool = True) -> nn.Module:
    return CausalSelfAttention(SimpleNamespace(n_embd=D, n_head=3, bias=bias))


# ---- as lucidrains writes them ----


class ViTAttention(nn.Module):
    """Norm inside, inner width other than the model's, output in a Sequential."""

    def __init__(self, dim: int = D, heads: int = 3, dim_head: int = 5, dropout: float = 0.1) -> None:
        super().__init__()
        inner = dim_head * heads
        self.heads, self.scale = heads, dim_head**-0.5
        self.norm, self.attend, self.dropout = nn.LayerNorm(dim), nn.Softmax(dim=-1), nn.Dropout(dropout)
        self.to_qkv = nn.Linear(dim, inner * 3, bias=False)
        self.to_out = nn.Sequential(nn.Linear(inner, dim), nn.Dropout(dropout))

    def forward(self, x: Tensor) -> Tensor:
        qkv = self.to_qkv(self.norm(x)).chunk(3, dim=-1)
        q, k, v = (y.unflatten(-1, (self.heads, -1)).transpose(1, 2) for y in qkv)
        attention = self.dropout(self.attend(q @ k.transpose(-1, -2) * self.scale))
        return self.to_out((attention @ v).transpose(1, 2).flatten(2))


class PerceiverAttention(nn.Module):
    """`to_q` and `to_kv`, keys and values from a context."""

    def __init__(self, dim: int = D, context_dim: int = 7, heads: int = 3, dim_head: int = 5) -> None:
        super().__init__()
        self.heads, self.scale = heads, dim_head**-0.5
        self.to_q = nn.Linear(dim, heads * dim_head, bias=False)
        self.to_kv = nn.Linear(context_dim, 2 * heads * dim_head, bias=False)
        self.to_out = nn.Linear(heads * dim_head, dim)

    def forward(self, x: Tensor, context: Tensor, mask: Tensor | None = None) -> Tensor:
        q, (k, v) = self.to_q(x), self.to_kv(context).chunk(2, dim=-1)
        q, k, v = (y.unflatten(-1, (self.heads, -1)).transpose(1, 2) for y in (q, k, v))
        logits = torch.einsum("bhid,bhjd->bhij", q, k) * self.scale
        if mask is not None:
            logits = logits.masked_fill(~mask[:, None, None, :], -torch.finfo(logits.dtype).max)
        return self.to_out((logits.softmax(-1) @ v).transpose(1, 2).flatten(2))


class XAttention(nn.Module):
    """x-transformers: three projections, optionally one key and value for all heads, attention without biases."""

    def __init__(self, dim: int = D, heads: int = 3, dim_head: int = 5, one_kv_head: bool = False) -> None:
        super().__init__()
        self.heads, self.scale, kv = heads, dim_head**-0.5, dim_head * (1 if one_kv_head else heads)
        self.to_q = nn.Linear(dim, heads * dim_head, bias=False)
        self.to_k, self.to_v = nn.Linear(dim, kv, bias=False), nn.Linear(dim, kv, bias=False)
        self.to_out = nn.Linear(heads * dim_head, dim, bias=False)
        self.dim_head = dim_head

    def forward(self, x: Tensor, attn_mask: Tensor | None = None) -> Tensor:
        q, k, v = (f(x).unflatten(-1, (-1, self.dim_head)).transpose(1, 2) for f in (self.to_q, self.to_k, self.to_v))
        k, v = (y.expand(-1, self.heads, -1, -1) for y in (k, v))
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=attn_mask)
        return self.to_out(out.transpose(1, 2).flatten(2))


# ---- as in Megatron: head-interleaved ----


class ParallelAttention(nn.Module):
    def __init__(self, hidden: int = D, heads: int = 3) -> None:
        super().__init__()
        self.num_attention_heads, self.hidden_size_per_attention_head = heads, hidden // heads
        self.query_key_value = nn.Linear(hidden, 3 * hidden)
        self.dense = nn.Linear(hidden, hidden)

    def forward(self, hidden_states: Tensor, attention_mask: Tensor) -> Tensor:
        mixed = self.query_key_value(hidden_states)
        mixed = mixed.view(*mixed.shape[:-1], self.num_attention_heads, 3 * self.hidden_size_per_attention_head)
        q, k, v = (y.transpose(1, 2) for y in mixed.chunk(3, dim=-1))
        scores = q @ k.mT / math.sqrt(self.hidden_size_per_attention_head)
        scores = scores.masked_fill(attention_mask, -10000.0)  # here True means hidden
        return self.dense((scores.softmax(-1) @ v).transpose(1, 2).flatten(2))


# ---- as in llama2.c: grouped-query, w-names ----


class LlamaStyle(nn.Module):
    def __init__(self, dim: int = D, n_heads: int = 4, n_kv_heads: int = 2) -> None:
        super().__init__()
        self.n_heads, self.n_kv_heads, self.head_dim = n_heads, n_kv_heads, dim // n_heads
        self.wq = nn.Linear(dim, n_heads * self.head_dim, bias=False)
        self.wk, self.wv = (nn.Linear(dim, n_kv_heads * self.head_dim, bias=False) for _ in range(2))
        self.wo = nn.Linear(n_heads * self.head_dim, dim, bias=False)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        q, k, v = (f(x).unflatten(-1, (-1, self.head_dim)).transpose(1, 2) for f in (self.wq, self.wk, self.wv))
        k, v = (y.repeat_interleave(self.n_heads // self.n_kv_heads, dim=1) for y in (k, v))
        scores = q @ k.mT / math.sqrt(self.head_dim)
        if mask is not None:
            scores = scores + mask
        return self.wo((scores.softmax(-1) @ v).transpose(1, 2).flatten(2))


class PaddedCausal(nn.Module):
    """A language model's own: causal by itself, and told which tokens are padding."""

    def __init__(self) -> None:
        super().__init__()
        self.n_head, self.qkv, self.proj = 3, nn.Linear(D, 3 * D), nn.Linear(D, D)

    def forward(self, x: Tensor, attention_mask: Tensor) -> Tensor:
        q, k, v = (y.unflatten(-1, (self.n_head, -1)).transpose(1, 2) for y in self.qkv(x).chunk(3, dim=-1))
        seen = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).tril() & attention_mask[:, None, None]
        return self.proj(F.scaled_dot_product_attention(q, k, v, attn_mask=seen).transpose(1, 2).flatten(2))


class FusedGrouped(nn.Module):
    """One block-fused weight with fewer key and value heads."""

    def __init__(self, dim: int = D, num_heads: int = 6, num_kv_heads: int = 2) -> None:
        super().__init__()
        self.num_heads, self.num_kv_heads, self.head_dim = num_heads, num_kv_heads, dim // num_heads
        self.Wqkv = nn.Linear(dim, (num_heads + 2 * num_kv_heads) * self.head_dim)
        self.out_proj = nn.Linear(dim, dim)

    def forward(self, x: Tensor) -> Tensor:
        sizes = [n * self.head_dim for n in (self.num_heads, self.num_kv_heads, self.num_kv_heads)]
        q, k, v = (y.unflatten(-1, (-1, self.head_dim)).transpose(1, 2) for y in self.Wqkv(x).split(sizes, dim=-1))
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return self.out_proj(out.transpose(1, 2).flatten(2))


# ---- as in a Hugging Face fork, a textbook, a course ----


class ConfigAttention(nn.Module):
    """The head count is only in the configuration; returns a pair."""

    def __init__(self) -> None:
        super().__init__()
        self.config = SimpleNamespace(num_attention_heads=3, num_key_value_heads=1, hidden_size=D)
        self.q_proj, self.k_proj, self.v_proj = nn.Linear(D, D), nn.Linear(D, D // 3), nn.Linear(D, D // 3)
        self.o_proj = nn.Linear(D, D)

    def forward(self, hidden_states: Tensor, attention_mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
        parts = (self.q_proj, self.k_proj, self.v_proj)
        q, k, v = (f(hidden_states).unflatten(-1, (-1, D // 3)).transpose(1, 2) for f in parts)
        scores = q @ k.mT / math.sqrt(D // 3)
        weights = (scores if attention_mask is None else scores + attention_mask).softmax(-1)
        return self.o_proj((weights @ v).transpose(1, 2).flatten(2)), weights


class Capitals(nn.Module):
    """Q, K, V in capitals or by any other name, and a mask of zeros and ones."""

    def __init__(self, names: tuple[str, str, str, str] = ("Q", "K", "V", "out")) -> None:
        super().__init__()
        self.names, self.num_heads, self.root = names, 3, math.sqrt(D // 3)
        for name in names:
            self.add_module(name, nn.Linear(D, D))

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        q, k, v, out = (self.get_submodule(name) for name in self.names)
        q, k, v = (f(x).unflatten(-1, (self.num_heads, -1)).transpose(1, 2) for f in (q, k, v))
        scores = q @ k.mT / self.root
        if mask is not None:
            scores = scores.masked_fill(mask == 0, -1e9)
        return out((scores.softmax(-1) @ v).transpose(1, 2).flatten(2))


class Divides(Capitals):
    """What is called the scale is what the scores are divided by."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = self.root


class WithoutOutput(nn.Module):
    """No output projection, and the head count under another name."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value, self.h = nn.Linear(D, D), nn.Linear(D, D), nn.Linear(D, D), 3

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (f(x).unflatten(-1, (self.h, -1)).transpose(1, 2) for f in (self.query, self.key, self.value))
        return F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)


class ConvAttention(nn.Module):
    """1×1 convolutions on a feature map."""

    def __init__(self, dim: int = D, heads: int = 3) -> None:
        super().__init__()
        self.heads, self.to_qkv, self.to_out = heads, nn.Conv2d(dim, 3 * dim, 1, bias=False), nn.Conv2d(dim, dim, 1)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (y.flatten(2).unflatten(1, (self.heads, -1)).mT for y in self.to_qkv(x).chunk(3, dim=1))
        out = F.scaled_dot_product_attention(q, k, v)
        return self.to_out(out.mT.flatten(1, 2).unflatten(-1, x.shape[2:]))


def random(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(sum(shape)))


# Which keys each query may see: irregular, so that no mask passes for a causal one, nor for its own transpose.
SEEN = torch.tensor([[1, 0, 1, 0, 1], [1, 1, 0, 0, 1], [0, 1, 0, 1, 0], [1, 1, 1, 0, 0], [0, 0, 0, 1, 1]]).bool()
HOLES = torch.tensor([[1, 1, 1, 0, 1], [1, 0, 1, 1, 0]]).bool()  # the same for every query: (B, N)
ADDITIVE = torch.zeros(N, N, dtype=torch.float64).masked_fill(~SEEN, float("-inf"))
SQUARE = {"x": random(N, N, D)}  # as many sequences as tokens


# class, arguments of its forward, (H, G, D, d), storage
CASES: dict[str, tuple[Callable[[], nn.Module], Any, tuple[int, int, int, int], str]] = {
    "nanogpt": (nanogpt, random(B, N, D), (3, 3, D, 4), "fused block"),
    "nanogpt without biases": (lambda: nanogpt(False), random(B, N, D), (3, 3, D, 4), "fused block"),
    "lucidrains": (ViTAttention, random(B, N, D), (3, 3, D, 5), "fused block"),
    "perceiver": (PerceiverAttention, (random(B, N, D), random(B, 6, 7)), (3, 3, D, 5), "fused block, q + fused kv"),
    "perceiver, padded": (
        PerceiverAttention,
        (random(B, N, D), random(B, N, 7), HOLES),
        (3, 3, D, 5),
        "fused block, q + fused kv",
    ),
    "x-transformers": (XAttention, random(B, N, D), (3, 3, D, 5), "separate"),
    "x-transformers, one key": (
        lambda: XAttention(one_kv_head=True),
        random(B, N, D),
        (3, 1, D, 5),
        "separate, grouped-query",
    ),
    "boolean mask": (XAttention, {"x": random(B, N, D), "attn_mask": SEEN}, (3, 3, D, 5), "separate"),
    "additive mask": (XAttention, {"x": random(B, N, D), "attn_mask": ADDITIVE}, (3, 3, D, 5), "separate"),
    "mask per sequence": (
        XAttention,
        {"x": random(B, N, D), "attn_mask": HOLES[:, None, None].expand(B, 1, N, N)},
        (3, 3, D, 5),
        "separate",
    ),
    "as many sequences as tokens": (XAttention, SQUARE | {"attn_mask": SEEN}, (3, 3, D, 5), "separate"),
    "soft additive mask": (XAttention, {"x": random(B, N, D), "attn_mask": random(N, N)}, (3, 3, D, 5), "separate"),
    "bias per head": (XAttention, {"x": random(B, N, D), "attn_mask": random(3, N, N)}, (3, 3, D, 5), "separate"),
    "mask per pair": (
        XAttention,
        {"x": random(B, N, D), "attn_mask": torch.stack([SEEN, SEEN.flip(0)])[:, None]},
        (3, 3, D, 5),
        "separate",
    ),
    "causal and padded": (PaddedCausal, (random(B, N, D), HOLES), (3, 3, D, 4), "fused block"),
    "megatron": (ParallelAttention, (random(B, N, D), ~SEEN), (3, 3, D, 4), "fused head-interleaved"),
    "llama2.c": (LlamaStyle, random(B, N, D), (4, 2, D, 3), "separate, grouped-query"),
    "llama2.c, masked": (LlamaStyle, (random(B, N, D), ADDITIVE), (4, 2, D, 3), "separate, grouped-query"),
    "fused grouped": (FusedGrouped, random(B, N, D), (6, 2, D, 2), "fused block, grouped-query"),
    "config": (ConfigAttention, random(B, N, D), (3, 1, D, 4), "separate, grouped-query"),
    "config, masked": (ConfigAttention, (random(B, N, D), ADDITIVE), (3, 1, D, 4), "separate, grouped-query"),
    "capitals": (Capitals, random(B, N, D), (3, 3, D, 4), "separate"),
    "scale that divides": (Divides, random(B, N, D), (3, 3, D, 4), "separate"),
    "capitals, mask of zeros and ones": (Capitals, (random(B, N, D), SEEN.long()), (3, 3, D, 4), "separate"),
    "capitals, float mask of zeros and ones": (Capitals, (random(B, N, D), SEEN.double()), (3, 3, D, 4), "separate"),
    "W_Q": (lambda: Capitals(("W_Q", "W_K", "W_V", "W_O")), random(B, N, D), (3, 3, D, 4), "separate"),
    "Wq": (lambda: Capitals(("Wq", "Wk", "Wv", "Wo")), random(B, N, D), (3, 3, D, 4), "separate"),
    "query_proj": (
        lambda: Capitals(("query_proj", "key_proj", "value_proj", "out_proj")),
        random(B, N, D),
        (3, 3, D, 4),
        "separate",
    ),
    "fc_q": (lambda: Capitals(("fc_q", "fc_k", "fc_v", "fc_o")), random(B, N, D), (3, 3, D, 4), "separate"),
    "queries": (lambda: Capitals(("queries", "keys", "values", "fc_out")), random(B, N, D), (3, 3, D, 4), "separate"),
    "without output": (WithoutOutput, random(B, N, D), (3, 3, D, 4), "separate"),
    "convolution": (ConvAttention, random(B, D, 2, 4), (3, 3, D, 4), "fused block"),
}


def seeded(build: Callable[[], nn.Module], seed: int = 0) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return build()


@pytest.mark.parametrize("case", CASES)
def test_claimed_and_verified(case: str) -> None:
    make, inputs, (heads, groups, width, d), storage = CASES[case]
    (layer,) = check_adapter(seeded(make).double(), inputs)
    assert (layer.num_heads, layer.num_kv_heads, layer.width, layer.head_dim) == (heads, groups, width, d)
    assert layer.storage == storage
    assert layer.kind == "softmax"
    assert (layer.output is None) == (case == "without output")


@pytest.mark.parametrize("case", CASES)
def test_the_scale_is_one_over_the_root_of_the_head_width(case: str) -> None:
    make, _, (*_, d), _ = CASES[case]
    assert wc.attention_layers(seeded(make))[0].scale == pytest.approx(d**-0.5)


@pytest.mark.parametrize("case", CASES)
def test_conditioned_changes_the_right_weights(case: str) -> None:
    make, *_ = CASES[case]
    model = seeded(make)
    before = state(model)
    plan = wc.init_(model, "conditioned", seed=0)
    assert wc.audit(model, "conditioned").passed
    written = {entry.projection.weight.path for entry in plan.entries}
    for name, value in state(model).items():
        assert same_bits(value, before[name]) == (name not in written), name


def test_the_replay_does_not_excuse_a_wrong_scale() -> None:
    """The adapter may choose a mask, not make any view pass; attention that does something else is its own replay."""

    class Sharpened(ViTAttention):
        def forward(self, x: Tensor) -> Tensor:
            qkv = self.to_qkv(self.norm(x)).chunk(3, dim=-1)
            q, k, v = (y.unflatten(-1, (self.heads, -1)).transpose(1, 2) for y in qkv)
            return self.to_out(((q @ k.mT * 3 * self.scale).softmax(-1) @ v).transpose(1, 2).flatten(2))

    model, x = seeded(Sharpened).double(), random(B, N, D)
    (layer,) = wc.attention_layers(model)
    (call,) = capture([layer], x)
    assert call is not None
    assert not check_call(layer, call)
    result: Verification = layer.verify(x)
    assert result.passed
    assert result.method == "recording"
    q, k, _ = (project(p, model.norm(x)) for _, p in layer.projections("query", "key", "value"))
    p = (q @ k.mT * 3 * model.scale).softmax(-1)
    truth = (torch.special.entr(p).sum(-1) / math.log(N)).mean((0, 2))
    measured = [head.entropy for head in wc.diagnose(model, x, jacobian=False).layers[0].heads]
    assert torch.allclose(torch.tensor(measured, dtype=torch.float64), truth, rtol=1e-12)


# ---- what must not be claimed ----


class LatentAttention(nn.Module):
    """DeepSeek's low-rank queries, keys and values: no matrix reads the stream and writes a head."""

    def __init__(self, lora: bool = True) -> None:
        super().__init__()
        self.num_heads, self.head_dim, rank = 3, 4, 6
        if lora:
            self.q_a_proj, self.q_b_proj = nn.Linear(D, rank), nn.Linear(rank, 12)
        else:
            self.q_proj = nn.Linear(D, 12)
        self.kv_a_proj_with_mqa, self.kv_b_proj = nn.Linear(D, rank), nn.Linear(rank, 24)
        self.o_proj = nn.Linear(12, D)


class OnlyQuery(nn.Module):
    """A pooling head with learned keys."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.num_heads = nn.Linear(D, D), 3
        self.keys = nn.Parameter(torch.zeros(4, D))


class Head(nn.Module):
    """A single head as in the course: no head count anywhere."""

    def __init__(self) -> None:
        super().__init__()
        self.key, self.query, self.value = nn.Linear(D, 4), nn.Linear(D, 4), nn.Linear(D, 4)


class KeyValueThatDoNotFit(nn.Module):
    """Four query heads cannot share three key heads."""

    def __init__(self) -> None:
        super().__init__()
        self.heads, self.dim_head = 4, 3
        self.to_q, self.to_kv, self.to_out = nn.Linear(D, 12), nn.Linear(D, 2 * 9), nn.Linear(12, D)


class WrongKeyHeads(nn.Module):
    """Says one key head, has weights for two."""

    def __init__(self) -> None:
        super().__init__()
        self.num_heads, self.num_kv_heads = 4, 1
        self.q_proj, self.k_proj, self.v_proj = nn.Linear(D, 12), nn.Linear(D, 6), nn.Linear(D, 6)
        self.o_proj = nn.Linear(12, D)


class DepthwiseAttention(nn.Module):
    """CvT: convolutions that mix tokens are no projections."""

    def __init__(self) -> None:
        super().__init__()
        self.num_heads = 3
        self.q, self.k, self.v = (nn.Conv2d(D, D, 3, padding=1, groups=D) for _ in range(3))


UNCLAIMED: dict[str, tuple[Callable[[], nn.Module], str]] = {
    "latent": (LatentAttention, "q_a_proj"),
    "latent, plain query": (lambda: LatentAttention(lora=False), "kv_a_proj_with_mqa"),
    "no head count": (Head, "no head count"),
    "key heads that do not divide": (KeyValueThatDoNotFit, "to_q/to_kv"),
    "key heads that contradict": (WrongKeyHeads, "q_proj/k_proj/v_proj"),
    "depthwise": (DepthwiseAttention, "q"),
}


@pytest.mark.parametrize("case", UNCLAIMED)
def test_not_claimed_and_the_reason_is_given(case: str) -> None:
    make, word = UNCLAIMED[case]
    model = nn.ModuleDict({"mine": make(), "other": nn.MultiheadAttention(D, 3)})
    layers = wc.attention_layers(model)
    assert [layer.name for layer in layers] == ["other"]
    (item,) = layers.unclaimed
    assert (item.name, item.cls) == ("mine", type(model["mine"]).__name__)
    assert word in item.reason
    assert item.reason in str(layers)


@pytest.mark.parametrize("case", UNCLAIMED)
def test_alone_it_is_an_error_with_that_reason(case: str) -> None:
    make, word = UNCLAIMED[case]
    with pytest.raises(NoAttentionError, match="Looked alike") as caught:
        wc.attention_layers(make())
    assert word in str(caught.value)


def test_a_module_that_is_no_attention_is_not_mentioned() -> None:
    model = nn.ModuleDict({"pool": OnlyQuery(), "norm": nn.LayerNorm(D), "other": nn.MultiheadAttention(D, 3)})
    layers = wc.attention_layers(model)
    assert [layer.name for layer in layers] == ["other"]
    assert layers.unclaimed == ()


def test_a_look_alike_that_contains_attention_is_not_listed() -> None:
    class AttentionBlock(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nanogpt()

    assert wc.attention_layers(AttentionBlock()).unclaimed == ()


# ---- wrappers ----


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.attn, self.norm2 = nn.LayerNorm(D), nanogpt(), nn.LayerNorm(D)
        self.mlp = nn.Sequential(nn.Linear(D, 20), nn.GELU(), nn.Linear(20, D))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class GPT(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        return x


def compile_each_block(model: Any) -> nn.Module:
    for index, block in enumerate(model.blocks):
        model.blocks[index] = torch.compile(block, backend="eager")
    return model


def checkpoint_each_block(model: Any) -> nn.Module:
    for index, block in enumerate(model.blocks):
        model.blocks[index] = checkpoint_wrapper(block)
    return model


def compile_in_place(model: nn.Module) -> nn.Module:
    model.compile(backend="eager")
    return model


WRAPPERS: dict[str, Callable[[nn.Module], nn.Module]] = {
    "none": lambda model: model,
    "compiled": lambda model: torch.compile(model, backend="eager"),
    "compiled in place": compile_in_place,
    "compiled block by block": compile_each_block,
    "DataParallel": nn.DataParallel,
    "checkpointed": checkpoint_wrapper,
    "checkpointed block by block": checkpoint_each_block,
    "all of them": lambda m: nn.DataParallel(torch.compile(checkpoint_each_block(m), backend="eager")),
    "averaged": torch.optim.swa_utils.AveragedModel,
}
NAMES = ["blocks.0.attn", "blocks.1.attn", "blocks.2.attn"]


@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_names_and_draws_do_not_depend_on_a_wrapper(wrapper: str) -> None:
    plain = seeded(GPT)
    wc.init_(plain, "mimetic", seed=3)
    model = WRAPPERS[wrapper](seeded(GPT, seed=1))
    layers = wc.attention_layers(model)
    assert [layer.name for layer in layers] == NAMES
    assert [block.name for block in layers.blocks] == ["blocks.0", "blocks.1", "blocks.2"]
    assert layers[0].query.weight.path == "blocks.0.attn.c_attn.weight"
    wc.init_(model, "mimetic", seed=3)
    for layer, expected in zip(layers, wc.attention_layers(plain), strict=True):
        for role, projection in layer.projections():
            assert same_bits(projection.read(), getattr(expected, role).read())


@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_a_view_made_before_wrapping_still_writes(wrapper: str) -> None:
    model = seeded(GPT)
    layers = wc.attention_layers(model)
    wrapped = WRAPPERS[wrapper](model)
    layers[1].key.write_(torch.ones(3, D, 4))
    if wrapper != "averaged":  # which is a copy
        assert wc.attention_layers(wrapped)[1].key.read().eq(1).all()
    assert layers[1].key.read().eq(1).all()


@pytest.mark.parametrize("wrapper", ["compiled", "DataParallel", "checkpointed block by block"])
def test_a_wrapped_model_verifies(wrapper: str) -> None:
    model = WRAPPERS[wrapper](seeded(GPT).double())
    assert len(check_adapter(model, random(B, N, D))) == 3


def test_a_view_survives_load_state_dict_with_assign() -> None:
    model, other = seeded(GPT), seeded(GPT, seed=1)
    layer = wc.attention_layers(model)[0]
    model.load_state_dict(other.state_dict(), assign=True)
    assert same_bits(layer.query.read(), wc.attention_layers(other)[0].query.read())
    layer.query.write_(torch.ones(3, D, 4))
    assert model.blocks[0].attn.c_attn.weight[:D].eq(1).all()


def test_a_child_called_module_keeps_its_name() -> None:
    model = nn.ModuleDict({"module": nn.ModuleDict({"attn": nanogpt()})})
    assert wc.attention_layers(model)[0].name == "module.attn"


# ---- tied, frozen ----


def test_a_tied_parameter_is_initialised_once_and_recorded() -> None:
    model, free = seeded(GPT), seeded(GPT)
    model.blocks[2].attn.c_attn.weight = model.blocks[0].attn.c_attn.weight
    plan = wc.init_(model, "conditioned", seed=0)
    wc.init_(free, "conditioned", seed=0)
    assert same_bits(model.blocks[0].attn.c_attn.weight, free.blocks[0].attn.c_attn.weight)
    assert model.blocks[2].attn.c_attn.weight is model.blocks[0].attn.c_attn.weight
    assert [(entry.layer, entry.role) for entry in plan.entries] == [
        (f"blocks.{i}.attn", role) for i in (0, 1) for role in ("query", "key", "value")
    ]
    assert [name for name, _ in plan.skipped] == [f"blocks.2.attn {role}" for role in ("query", "key", "value")]
    assert plan.skipped[0][1] == "tied to blocks.0.attn query"
    assert "skipped blocks.2.attn query: tied to blocks.0.attn query" in str(plan)
    assert wc.audit(model, "conditioned").passed


def test_a_shared_module_is_one_layer() -> None:
    model = seeded(GPT)
    model.blocks[2].attn = model.blocks[0].attn
    assert [layer.name for layer in wc.attention_layers(model)] == NAMES[:2]


def test_only_the_tied_role_is_skipped() -> None:
    first, second = seeded(LlamaStyle), seeded(LlamaStyle, seed=1)
    second.wk.weight = first.wk.weight
    plan = wc.init_(nn.ModuleList([first, second]), "normal", seed=0)
    assert plan.skipped == [("1 key", "tied to 0 key")]
    assert len(plan.entries) == 7


def test_a_function_scheme_writes_a_tied_parameter_once() -> None:
    model = seeded(GPT)
    model.blocks[1].attn.c_attn.weight = model.blocks[0].attn.c_attn.weight
    number = {name: float(index) for index, name in enumerate(NAMES)}
    wc.init_(model, lambda layer, draw: {"query": torch.full(layer.query.shape, number[layer.name])})
    assert model.blocks[0].attn.c_attn.weight[:D].eq(0).all()
    assert model.blocks[2].attn.c_attn.weight[:D].eq(2).all()


def test_frozen_parameters_are_initialised_and_stay_frozen() -> None:
    model, free = seeded(GPT), seeded(GPT)
    model.requires_grad_(False)
    model.blocks[1].requires_grad_(True)
    for net in (model, free):
        wc.init_(net, "conditioned", seed=0)
    for (name, value), (_, expected) in zip(model.named_parameters(), free.named_parameters(), strict=True):
        assert value.requires_grad == name.startswith("blocks.1."), name
        assert same_bits(value, expected), name
        assert value.grad is None
        assert value.is_leaf


def test_a_gradient_that_was_there_stays() -> None:
    model = seeded(GPT)
    model(torch.ones(1, N, D)).sum().backward()
    gradients = {name: value.grad.clone() for name, value in model.named_parameters()}
    objects = dict(model.named_parameters())
    wc.init_(model, "conditioned", seed=0)
    for name, value in model.named_parameters():
        assert torch.equal(value.grad, gradients[name])
        assert value is objects[name]
