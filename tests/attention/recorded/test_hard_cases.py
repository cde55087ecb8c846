"""Attention written in ways that no table of names knows: described and rebuilt, or refused with the reason."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrizations

from tests.attention.recorded.models import rebuilt_error
from wellcond.attention.layouts import Layout, Strided
from wellcond.attention.recorded.discover import Discovery, discover

D, H, N = 12, 3, 5
ROUNDING = 1e-5  # of single precision, through the few products of one site


def seeded(make: Any, *args: Any) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        made: nn.Module = make(*args)
    return made.eval()


def batch() -> Tensor:
    return torch.randn(2, N, D, generator=torch.Generator().manual_seed(1))


def found(model: nn.Module, *inputs: Tensor) -> Discovery:
    """The sites of a model, every described one rebuilt."""
    sites = discover(model, inputs or (batch(),))
    for described in sites.described:
        assert rebuilt_error(described, model) < ROUNDING
    return sites


def split(x: Tensor, heads: int = H) -> Tensor:
    return x.unflatten(-1, (heads, -1)).transpose(1, 2)


def merged(x: Tensor) -> Tensor:
    return x.transpose(1, 2).flatten(2)


class Plain(nn.Module):
    """Four linear maps and a softmax; what is odd about the others is a method of theirs."""

    def __init__(self, keys: int = H) -> None:
        super().__init__()
        self.keys = keys
        self.a, self.b, self.c = (nn.Linear(D, heads * D // H) for heads in (H, keys, keys))
        self.d = nn.Linear(D, D)

    def forward(self, x: Tensor) -> Tensor:
        return self.d(merged(self.mix(split(self.a(x)), split(self.b(x), self.keys), split(self.c(x), self.keys))))

    def mix(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return (q @ k.mT / 2).softmax(-1) @ v


class WrittenOut(Plain):
    """The softmax as an exponential and a sum that normalises."""

    def mix(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        e = (q @ k.mT / 2).exp()
        return e / (e.sum(-1, keepdim=True) + 1e-6) @ v


class KeysFirst(Plain):
    """The scores transposed, so that rows are keys."""

    def mix(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return ((k @ q.mT).softmax(-2).mT) @ v


class Einsum(Plain):
    def mix(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return torch.einsum("bhnm,bhmd->bhnd", torch.einsum("bhnd,bhmd->bhnm", q, k).softmax(-1), v)


class ElementByElement(Plain):
    """Both products as sums of products of numbers."""

    def mix(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        weights = (q[:, :, :, None] * k[:, :, None]).sum(-1).softmax(-1)
        return (weights[..., None] * v[:, :, None]).sum(-2)


class LogSoftmax(Plain):
    def mix(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return F.log_softmax(q @ k.mT, -1).exp() @ v


class Cosine(Plain):
    def mix(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return (10 * F.normalize(q, dim=-1) @ F.normalize(k, dim=-1).mT).softmax(-1) @ v


class TalkingHeads(Plain):
    def __init__(self) -> None:
        super().__init__()
        self.before, self.after = nn.Linear(H, H), nn.Conv2d(H, H, 1)

    def mix(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        scores = self.before((q @ k.mT).permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
        return self.after(scores.softmax(-1)) @ v


class InPlace(Plain):
    """Writes into its queries, its scores and what it has mixed."""

    def mix(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        scores = q.mul_(0.5) @ k.mT
        scores.masked_fill_(torch.ones(N, N).triu(1).bool(), -1e9)
        return (scores.softmax(-1) @ v).add_(v)


class Preallocated(Plain):
    """Copies keys into a buffer, as a cache does."""

    def mix(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        keys, values = k.new_zeros(2, H, N + 3, D // H), v.new_zeros(2, H, N + 3, D // H)
        keys[:, :, :N] = k
        values[:, :, :N].copy_(v)
        mask = torch.arange(N + 3) >= N
        return (q @ keys.mT).masked_fill(mask, -torch.inf).softmax(-1) @ values


class Modulo(Plain):
    """Query head h reads key head h mod G, not its neighbour's."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.d = nn.Linear(D, 4 * 4), nn.Linear(16, D)
        self.b, self.c = nn.Linear(D, 2 * 4), nn.Linear(D, 2 * 4)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = split(self.a(x), 4), split(self.b(x), 2), split(self.c(x), 2)
        return self.d(merged((q @ k.repeat(1, 2, 1, 1).mT).softmax(-1) @ v.repeat(1, 2, 1, 1)))


DESCRIBED = [
    Plain,
    WrittenOut,
    KeysFirst,
    Einsum,
    ElementByElement,
    LogSoftmax,
    Cosine,
    TalkingHeads,
    InPlace,
    Preallocated,
]


@pytest.mark.parametrize("make", DESCRIBED)
def test_however_it_is_written(make: type[nn.Module]) -> None:
    sites = found(seeded(make))
    assert sites.undescribable == []
    (described,) = sites.described
    layer, kind = described.layer, described.layer.kind
    assert (kind, layer.num_heads, layer.num_kv_heads, layer.head_dim) == ("softmax", H, H, D // H)
    assert [p.weight.path for _, p in layer.projections()][:3] == ["a.weight", "b.weight", "c.weight"]
    assert layer.query is not None
    assert layer.query.bias == "a.bias"


def test_the_output_is_what_reads_the_mixture_and_nothing_else() -> None:
    assert found(seeded(Plain)).described[0].layer.output is not None
    assert found(seeded(InPlace)).described[0].layer.output is None  # values are added to it first


def test_query_heads_that_share_a_key_lie_next_to_each_other() -> None:
    layer = found(seeded(Modulo)).described[0].layer
    assert layer.query is not None
    assert layer.key is not None
    assert layer.query.weight.layout.starts == (0, 8, 4, 12)
    assert layer.key.weight.layout.starts == (0, 4)


class Fused(nn.Module):
    """One weight, cut by a reshape into groups of two queries, a key and a value."""

    def __init__(self) -> None:
        super().__init__()
        self.all, self.out = nn.Linear(D, 2 * 4 * 3, bias=False), nn.Linear(12, D)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.all(x).view(2, N, 2, 4, 3).split((2, 1, 1), 3)
        q, k, v = (
            q.reshape(2, N, 4, 3),
            k.repeat_interleave(2, 2).flatten(2, 3),
            v.repeat_interleave(2, 2).flatten(2, 3),
        )
        k, v = k.reshape(2, N, 4, 3), v.reshape(2, N, 4, 3)
        y = F.scaled_dot_product_attention(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2))
        return self.out(merged(y))


def test_fused_and_grouped_by_a_reshape() -> None:
    described = found(seeded(Fused)).described[0]
    starts = [p.weight.layout.starts for _, p in described.layer.projections("query", "key", "value")]
    assert starts == [(0, 3, 12, 15), (6, 18), (9, 21)]
    assert described.left_over == ()


class Bank(nn.Module):
    """All weights of both layers in one parameter, `(layers, 4, heads, d, D)`."""

    def __init__(self) -> None:
        super().__init__()
        self.bank = nn.Parameter(torch.randn(2, 5, H, D // H, D) / D**0.5)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.bank:
            q, k, v = (torch.einsum("bnD,hdD->bhnd", x, layer[i]) for i in range(3))
            x = x + torch.einsum("bhnd,hdD->bnD", F.scaled_dot_product_attention(q, k, v), layer[3])
        return x


def test_a_bank_of_parameters_is_strided_and_its_rest_is_named() -> None:
    model = seeded(Bank)
    first, second = found(model).described
    for number, described in enumerate((first, second)):
        layer = described.layer.bind(model)
        assert layer.key is not None
        assert isinstance(layer.key.weight.layout, Strided)
        assert torch.equal(layer.key.read(), model.get_parameter("bank")[number, 1].mT)
        assert described.left_over == ("'bank': 288 of 1,440 numbers are in no role",)
        assert layer.storage == "fused block, strided"


class Lora(Plain):
    def __init__(self) -> None:
        super().__init__()
        self.down, self.up = nn.Linear(D, 2, bias=False), nn.Linear(2, D, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        q = split(self.a(x) + self.up(self.down(x)))
        return self.d(merged(self.mix(q, split(self.b(x)), split(self.c(x)))))


class Unprojected(Plain):
    def forward(self, x: Tensor) -> Tensor:
        return self.mix(split(x), split(self.b(x)), split(self.c(x)))


class Learned(Plain):
    """Pools by a query that is a parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.query = nn.Parameter(torch.randn(1, H, 1, D // H))

    def forward(self, x: Tensor) -> Tensor:
        return self.mix(self.query.expand(2, -1, -1, -1), split(self.b(x)), split(self.c(x)))


class Residual(Plain):
    """Queries to which their tokens are added."""

    def forward(self, x: Tensor) -> Tensor:
        return self.mix(split(self.a(x) + x), split(self.b(x)), split(self.c(x)))


class AddedInTheProduct(Plain):
    """The same in one operation."""

    def forward(self, x: Tensor) -> Tensor:
        q = torch.addmm(x.flatten(0, 1), x.flatten(0, 1), self.a.weight.T).view_as(x)
        return self.mix(split(q), split(self.b(x)), split(self.c(x)))


class TwoStreams(Plain):
    """Keys of one stream beside those of another, by other weights."""

    def __init__(self) -> None:
        super().__init__()
        self.e, self.f = nn.Linear(D, D), nn.Linear(D, D)

    def forward(self, x: Tensor) -> Tensor:
        k, v = torch.cat((self.b(x), self.e(x)), 1), torch.cat((self.c(x), self.f(x)), 1)
        return self.mix(split(self.a(x)), split(k), split(v))


class Reparametrised(Plain):
    def __init__(self) -> None:
        super().__init__()
        parametrizations.weight_norm(self.a)


REFUSED = {
    Lora: "the query is a sum of two linear maps",
    Residual: "the query is a sum of two linear maps",
    AddedInTheProduct: "the query is a sum of two linear maps",
    Unprojected: "the query comes from no linear map",
    Learned: "no projected query",
    TwoStreams: "the columns of the key differ from token to token",
    Reparametrised: "a weight is computed in the pass",
}


@pytest.mark.parametrize("make", REFUSED)
def test_what_no_view_can_say_is_listed_with_the_reason(make: type[nn.Module]) -> None:
    sites = found(seeded(make))
    assert sites.described == []
    (site,) = sites.undescribable
    assert REFUSED[make] in site.reason


def test_the_same_weights_for_two_sets_of_tokens_are_one_map() -> None:
    class Twice(Plain):
        def forward(self, x: Tensor, y: Tensor) -> Tensor:
            k, v = (torch.cat((linear(x), linear(y)), 1) for linear in (self.b, self.c))
            return self.d(merged(self.mix(split(self.a(x)), split(k), split(v))))

    described = found(seeded(Twice), batch(), batch()[:, :3]).described[0]
    assert described.layer.cross
    assert described.layer.key is not None
    assert described.layer.key.weight.layout == Layout((0, 4, 8), 4)


def test_two_attentions_in_one_module() -> None:
    class Two(Plain):
        def forward(self, x: Tensor) -> Tensor:
            q, k, v = split(self.a(x)), split(self.b(x)), split(self.c(x))
            return self.d(merged(self.mix(q, k, v))) + merged(self.mix(k, q, v))

    first, second = (described.layer for described in found(seeded(Two)).described)
    assert (first.query, first.key) == (second.key, second.query)
