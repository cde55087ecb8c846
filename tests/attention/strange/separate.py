"""Separate `to_q`, `to_k`, `to_v`: what happens between them and the softmax differs from one to the next."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from tests.attention.strange.told import Parameters, Told, Truth, columns, merge, rows, split, tell


class Separate(nn.Module):
    """Softmax attention with hooks for what strangers add; plain as it is."""

    def __init__(self, dim: int = 12, heads: int = 3, *, bias: bool = False) -> None:
        super().__init__()
        self.heads = heads
        self.to_q, self.to_k, self.to_v = (nn.Linear(dim, dim, bias=bias) for _ in range(3))
        self.to_out = nn.Linear(dim, dim)

    def truth(self, get: Parameters) -> list[Truth]:
        q, k, v = (rows(get(f"to_{role}.weight"), self.heads) for role in "qkv")
        return [Truth(q, k, v, columns(get("to_out.weight"), self.heads))]

    def mapped(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        return q, k

    def scored(self, q: Tensor, k: Tensor) -> Tensor:
        return q @ k.transpose(-2, -1) * q.shape[-1] ** -0.5

    def visible(self, x: Tensor) -> Tensor | None:
        return None

    def shown(self, logits: Tensor, visible: Tensor | None) -> Tensor | None:
        return visible

    def normalised(self, logits: Tensor) -> Tensor:
        return logits.softmax(dim=-1)

    def mixed(self, p: Tensor, v: Tensor) -> Tensor:
        return p @ v

    def finished(self, out: Tensor, x: Tensor) -> Tensor:
        return self.to_out(merge(out))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (split(projection(x), self.heads) for projection in (self.to_q, self.to_k, self.to_v))
        logits = self.scored(*self.mapped(q, k))
        visible = self.visible(x)
        if visible is not None:
            logits = logits.masked_fill(~visible, float("-inf"))
        p = self.normalised(logits)
        out = self.mixed(p, v)
        tell(lambda: Told(self, q, k, v, logits, p, out, self.shown(logits, visible)))
        return self.finished(out, x)


class Cosine(Separate):
    """Normalised queries and keys, and a learned temperature for each head."""

    def __init__(self) -> None:
        super().__init__()
        self.temperature = nn.Parameter(torch.tensor([2.0, 5.0, 11.0]).reshape(3, 1, 1))

    def scored(self, q: Tensor, k: Tensor) -> Tensor:
        return F.normalize(q, dim=-1) @ F.normalize(k, dim=-1).transpose(-2, -1) * self.temperature


class CosineQueries(Separate):
    """Only the queries are normalised, by hand."""

    def mapped(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        return 8 * q / q.norm(dim=-1, keepdim=True), k


class Causal(Separate):
    def visible(self, x: Tensor) -> Tensor | None:
        return torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).tril()


class Alibi(Causal):
    """Distance times a slope for each head."""

    def scored(self, q: Tensor, k: Tensor) -> Tensor:
        places = torch.arange(q.shape[2], dtype=q.dtype)
        slopes = 2.0 ** -torch.arange(1, self.heads + 1, dtype=q.dtype)
        return super().scored(q, k) - slopes[:, None, None] * (places[:, None] - places).abs()


class SoftCap(Causal):
    def scored(self, q: Tensor, k: Tensor) -> Tensor:
        return 1.5 * torch.tanh(super().scored(q, k) / 1.5)


class LogSoftmax(Separate):
    def normalised(self, logits: Tensor) -> Tensor:
        return logits.log_softmax(dim=-1).exp()


class ByHand(Separate):
    """Exponentials over their sum."""

    def normalised(self, logits: Tensor) -> Tensor:
        e = torch.exp(logits - logits.amax(dim=-1, keepdim=True))
        return e / e.sum(dim=-1, keepdim=True)


class LogSumExp(Separate):
    def normalised(self, logits: Tensor) -> Tensor:
        return (logits - logits.logsumexp(dim=-1, keepdim=True)).exp()


class OffByOne(Separate):
    """One more in the denominator: a head may attend to nothing."""

    def normalised(self, logits: Tensor) -> Tensor:
        top = logits.amax(dim=-1, keepdim=True).clamp_min(0)
        e = torch.exp(logits - top)
        return e / (e.sum(dim=-1, keepdim=True) + torch.exp(-top))


class Sinks(Causal):
    """One more logit for each head, whose share is dropped."""

    def __init__(self) -> None:
        super().__init__()
        self.sinks = nn.Parameter(torch.tensor([0.5, -1.0, 2.0]))

    def normalised(self, logits: Tensor) -> Tensor:
        sinks = self.sinks.reshape(1, -1, 1, 1).expand(*logits.shape[:-1], 1)
        return torch.cat([logits, sinks], dim=-1).softmax(dim=-1)[..., :-1]


class Sigmoid(Separate):
    """No softmax at all: a sigmoid of each logit."""

    def normalised(self, logits: Tensor) -> Tensor:
        return torch.sigmoid(logits - math.log(logits.shape[-1]))


class TopKeys(Separate):
    """Each query sees its three best keys."""

    def normalised(self, logits: Tensor) -> Tensor:
        return logits.masked_fill(~self.shown(logits, None), float("-inf")).softmax(dim=-1)

    def shown(self, logits: Tensor, visible: Tensor | None) -> Tensor:
        return logits >= logits.topk(3, dim=-1).values[..., -1:]


class LinearElu(Separate):
    """Linear attention: φ(q) (φ(k)ᵀ v) over its own sum, φ = elu + 1."""

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (split(projection(x), self.heads) for projection in (self.to_q, self.to_k, self.to_v))
        phi_q, phi_k = F.elu(q) + 1, F.elu(k) + 1
        out = phi_q @ (phi_k.transpose(-2, -1) @ v) / (phi_q @ phi_k.sum(dim=2)[..., None])
        tell(lambda: Told(self, q, k, v, s := phi_q @ phi_k.mT, s / s.sum(-1, keepdim=True), out))
        return self.finished(out, x)


class LinearSoftmax(Separate):
    """Efficient attention: a softmax of the queries over channels, one of the keys over tokens."""

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (split(projection(x), self.heads) for projection in (self.to_q, self.to_k, self.to_v))
        soft_q, soft_k = q.softmax(dim=-1), k.softmax(dim=-2)
        out = soft_q @ (soft_k.transpose(-2, -1) @ v)
        tell(lambda: Told(self, q, k, v, p := soft_q @ soft_k.mT, p, out))
        return self.finished(out, x)


class Slots(Separate):
    """Queries compete for keys (a softmax over queries), then each averages what it won."""

    def normalised(self, logits: Tensor) -> Tensor:
        won = logits.softmax(dim=-2) + 1e-8
        return won / won.sum(dim=-1, keepdim=True)


class Fast(Separate):
    """The fused kernel of torch, causal, with its own scale."""

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (split(projection(x), self.heads) for projection in (self.to_q, self.to_k, self.to_v))
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=0.9)
        tell(lambda: self._told(q, k, v, out))
        return self.finished(out, x)

    def _told(self, q: Tensor, k: Tensor, v: Tensor, out: Tensor) -> Told:
        seen = torch.ones(q.shape[2], q.shape[2], dtype=torch.bool).tril()
        logits = (0.9 * q @ k.mT).masked_fill(~seen, float("-inf"))
        return Told(self, q, k, v, logits, logits.softmax(-1), out, seen)


class Padded(Separate):
    """Keys are hidden by what the tokens hold, as padding is."""

    def visible(self, x: Tensor) -> Tensor | None:
        shown = x[..., 0] > -1
        shown[:, 0] = True
        return shown[:, None, None]


class OwnKernel(nn.Module):
    """Names of its own, and a kernel of its own choice around the call (TabPFN)."""

    def __init__(self) -> None:
        super().__init__()
        self.alpha, self.beta, self.gamma, self.delta = (nn.Linear(12, 12, bias=False) for _ in range(4))

    def truth(self, get: Parameters) -> list[Truth]:
        q, k, v = (rows(get(f"{name}.weight"), 3) for name in ("alpha", "beta", "gamma"))
        return [Truth(q, k, v, columns(get("delta.weight"), 3))]

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (split(projection(x), 3) for projection in (self.alpha, self.beta, self.gamma))
        with sdpa_kernel([SDPBackend.FLASH_ATTENTION, SDPBackend.MATH]):
            out = F.scaled_dot_product_attention(q, k, v)
        tell(lambda: Told(self, q, k, v, s := q @ k.mT / 2, s.softmax(-1), out))
        return self.delta(merge(out))
