"""Attention beside layers that are verified, and in the module around them, is named: as a layer, or unclaimed."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention.flex_attention import flex_attention

import wellcond as wc
from tests.attention.strange.deceptive import Nameless
from tests.attention.strange.told import merge

BATCH = torch.randn(2, 6, 12, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


class Averaging(Nameless):
    """Attention that averages in a way of its own."""

    def averaged(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        raise NotImplementedError

    def forward(self, x: Tensor) -> Tensor:
        return self.delta(merge(self.averaged(*self.projected(x))))


class WrittenOut(Averaging):
    """Exponentials over their sum."""

    def averaged(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        e = (q @ k.mT / 2).exp()
        return e / e.sum(-1, keepdim=True) @ v


class Later(Averaging):
    """Exponentials multiply the values, and are normalised then."""

    def averaged(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        e = (q @ k.mT / 2).exp()
        return e @ v / e.sum(-1, keepdim=True)


class Elementwise(Averaging):
    """A sum of products element by element."""

    def averaged(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return ((q @ k.mT / 2).softmax(-1)[..., None] * v[:, :, None]).sum(3)


class Padded(Averaging):
    """Probabilities are joined to zeros first."""

    def averaged(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        p = (q @ k.mT / 2).softmax(-1)
        return torch.cat([p, torch.zeros_like(p)], -1) @ torch.cat([v, v], 2)


class MeanOfHeads(Averaging):
    """All heads average by the mean of their probabilities."""

    def averaged(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return (q @ k.mT / 2).softmax(-1).mean(1, keepdim=True).expand(-1, 3, -1, -1) @ v


class Flex(Averaging):
    """A kernel that takes a function."""

    def averaged(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return flex_attention(q, k, v, score_mod=lambda score, b, h, i, j: score - (i - j).abs())


class Ragged(Averaging):
    """Sequences of other lengths in one nested tensor."""

    def forward(self, x: Tensor) -> Tensor:
        ragged = torch.nested.nested_tensor([x[0], x[1, :3]], layout=torch.jagged)
        q, k, v = (f(ragged).unflatten(-1, [3, 4]).transpose(1, 2) for f in (self.alpha, self.beta, self.gamma))
        out = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(-2)
        return self.delta(out).to_padded_tensor(0.0)


class Around(nn.Module):
    """A known layer and attention: in a module of its own, or, of which this has the parts, in the same forward."""

    def __init__(self, inner: Averaging, *, own: bool) -> None:
        super().__init__()
        self.known = nn.TransformerEncoderLayer(12, 3, 24, batch_first=True)
        if own:
            self.inner = inner
        else:
            self.alpha, self.beta, self.gamma, self.delta = inner.alpha, inner.beta, inner.gamma, inner.delta
        self.call = inner.forward  # as a plain attribute it is no child

    def forward(self, x: Tensor) -> Tensor:
        x = self.known(x)
        return self.inner(x) if "inner" in self._modules else self.call(x)


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("own", [True, False])
@pytest.mark.parametrize("make", [WrittenOut, Later, Elementwise, Padded, MeanOfHeads, Flex, Ragged])
def test_everything_that_averages_is_named(make: type[Averaging], own: bool) -> None:
    torch.manual_seed(0)
    layers = wc.attention_layers(Around(make(), own=own).double().eval(), BATCH)
    named = {layer.name: layer.standing for layer in layers} | {item.name: "unclaimed" for item in layers.unclaimed}
    assert named.pop("known.self_attn") == "verified"
    assert list(named) == ["inner" if own else ""]
    assert all(len(item.reason.split()) > 3 for item in layers.unclaimed)


def test_a_model_without_more_is_not_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second pass is for what the first leaves open."""
    monkeypatch.setattr("wellcond.attention.observe.discover", lambda *_: pytest.fail("a second pass"))
    model = nn.TransformerEncoderLayer(12, 3, 24, batch_first=True).double()
    assert wc.attention_layers(model, BATCH)[0].standing == "verified"
