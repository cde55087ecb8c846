"""Modules of known classes that run code of somebody's: a sub-class's forward, a function in its place, a hook."""

from __future__ import annotations

import copy
from collections.abc import Callable
from types import MethodType

import pytest
import torch
import torch.nn.functional as F
from timm.models.vision_transformer import Attention
from torch import Tensor, nn

import wellcond as wc
from tests.attention.strange.told import merge, split

BATCH = torch.randn(1, 5, 12, generator=torch.Generator().manual_seed(0))


def scaled(self: nn.Module, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, None]:
    """Softmax attention a hundredth sharper than the class's."""
    parts = zip((query, key, value), self.in_proj_weight.chunk(3), self.in_proj_bias.chunk(3), strict=True)
    q, k, v = (split(F.linear(*part), 3) for part in parts)
    return self.out_proj(merge((q @ k.mT * 0.505).softmax(-1) @ v)), None


class Sharper(nn.MultiheadAttention):
    """A sub-class with a forward of its own."""

    forward = scaled


class Model(nn.Module):
    """An attention module, called as its class is; queries and keys so small that plain attention is close."""

    def __init__(self, attention: nn.Module) -> None:
        super().__init__()
        self.attention = attention
        with torch.no_grad():
            weight = getattr(attention, "in_proj_weight", None)
            (attention.qkv.weight if weight is None else weight)[:24] *= 0.05

    def forward(self, x: Tensor) -> Tensor:
        return self.attention(x) if hasattr(self.attention, "qkv") else self.attention(x, x, x)[0]


def inherited() -> nn.Module:
    return Model(Sharper(12, 3, batch_first=True))


def replaced() -> nn.Module:
    attention = nn.MultiheadAttention(12, 3, batch_first=True)
    attention.forward = MethodType(scaled, attention)
    return Model(attention)


def hooked() -> nn.Module:
    attention = Attention(12, 3)
    gains = torch.cat([torch.full((12,), 1.01), torch.ones(24)])
    attention.qkv.register_forward_hook(lambda module, given, x: x * gains.to(x))
    return Model(attention)


@pytest.mark.parametrize("make", [inherited, replaced, hooked])
def test_a_hundredth_is_seen(make: Callable[[], nn.Module]) -> None:
    """In float32 a known class is believed to a tenth of what its queries do; this is not what the class does."""
    torch.manual_seed(0)
    model = make().eval()
    exact = copy.deepcopy(model).double()
    if isinstance(exact.attention.__dict__.get("forward"), MethodType):
        exact.attention.forward = MethodType(scaled, exact.attention)
    found, truth = (
        wc.diagnose(one, batch, jacobian="exact", progress=False).layers[0].jacobian[0].condition.value
        for one, batch in ((model, BATCH), (exact, BATCH.double()))
    )
    assert found == pytest.approx(truth, rel=1e-4)
