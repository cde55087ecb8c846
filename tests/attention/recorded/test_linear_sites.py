"""Linear attention has a view and a kind of its own; a product that nothing normalises is no attention."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.attention.recorded.models import rebuilt_error
from tests.attention.recorded.test_hard_cases import D, H, N, Plain, batch, found, merged, seeded, split
from wellcond.attention.recorded.discover import discover
from wellcond.attention.recorded.own_replay import OwnReplay


class Kernel(Plain):
    """Katharopoulos et al. (2020): `φ(q) (φ(k)ᵀ v) / φ(q) Σ φ(k)`."""

    def mix(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        q, k = F.elu(q) + 1, F.elu(k) + 1
        return q @ (k.mT @ v) / (q @ k.sum(-2)[..., None])


class Extended(Plain):
    """Values with a column of ones, whose result normalises; channels before tokens, as EfficientViT has them."""

    def mix(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        q, k, v = q.relu().mT, k.relu().mT, F.pad(v.mT, (0, 0, 0, 1), value=1.0)
        y = (v @ k.mT) @ q
        return (y[..., :-1, :] / (y[..., -1:, :] + 1e-6)).mT


class SoftmaxOfKeys(Plain):
    """Shen et al. (2021): keys are normalised over tokens, queries over channels."""

    def mix(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return q.softmax(-1) @ (k.softmax(-2).mT @ v)


@pytest.mark.parametrize("make", [Kernel, Extended, SoftmaxOfKeys])
def test_linear_attention_has_its_own_kind(make: type[nn.Module]) -> None:
    sites = found(seeded(make))
    assert sites.undescribable == []
    (described,) = sites.described
    layer = described.layer
    assert (layer.kind, layer.num_heads, layer.head_dim) == ("linear", H, D // H)
    assert [p.weight.path for _, p in layer.projections()] == ["a.weight", "b.weight", "c.weight", "d.weight"]


@pytest.mark.parametrize("make", [Kernel, Extended, SoftmaxOfKeys])
def test_its_replay_is_what_the_module_returns_with_the_sum_that_normalises(make: type[Plain]) -> None:
    model = seeded(make)
    assert isinstance(model, make)
    replay = OwnReplay(discover(model, batch()).described[0])
    with torch.no_grad():
        wanted = model.mix(split(model.a(batch())), split(model.b(batch())), split(model.c(batch())))
    assert replay.recorded().shape == (2, H, N, D // H)
    assert torch.allclose(replay.recorded(), wanted, atol=1e-6)


def test_a_product_that_nothing_normalises_is_no_site() -> None:
    class Bilinear(Plain):
        def mix(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            return q @ (k.mT @ v) / 3

    sites = found(seeded(Bilinear))
    assert (sites.described, sites.undescribable) == ([], [])


def test_factorised_attention_of_coat() -> None:
    coat = pytest.importorskip("timm.models.coat")
    positions = coat.ConvRelPosEnc(head_chs=4, num_heads=4, window={3: 2, 5: 2})
    model = seeded(lambda: coat.FactorAttnConvRelPosEnc(16, num_heads=4, qkv_bias=True, shared_crpe=positions))
    x = torch.randn(2, 1 + 16, 16, generator=torch.Generator().manual_seed(0))
    (described,) = discover(model, (x, (4, 4))).described
    assert (described.layer.kind, described.layer.num_heads) == ("linear", 4)
    assert described.layer.output is None  # positional terms are added before it
    assert rebuilt_error(described, model) < 1e-5


def test_merged_heads_are_those_of_the_output() -> None:
    model = seeded(Kernel)
    layer = discover(model, batch()).described[0].layer.bind(model)
    assert layer.output is not None
    mixed = torch.randn(2, H, N, D // H, generator=torch.Generator().manual_seed(0))
    wanted = merged(mixed) @ model.get_parameter("d.weight").T
    assert torch.allclose(torch.einsum("bhnd,hed->bne", mixed, layer.output.read()), wanted, atol=1e-6)


def test_the_state_of_a_recurrence_is_no_site() -> None:
    class Recurrent(Plain):
        def mix(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            state, out = torch.zeros(2, H, D // H, D // H), []
            for t in range(N):
                state = state * v.mean() + k[:, :, t, :, None] @ v[:, :, t, None]
                out.append(q[:, :, t, None] @ state / (1 + q[:, :, t, None].square().sum(-1, keepdim=True)))
            return torch.cat(out, 2)

    sites = found(seeded(Recurrent))
    assert (sites.described, sites.undescribable) == ([], [])
