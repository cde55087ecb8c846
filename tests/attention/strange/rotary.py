"""Rotary positions in classes of their own, in the three ways that people write them, and norms of queries and keys."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.attention.strange.separate import Causal, Separate


class Angles(nn.Module):
    """Cosines and sines of position times frequency, `(N, d / 2)`."""

    def __init__(self, dim: int, base: float = 100.0) -> None:
        super().__init__()
        self.register_buffer("frequencies", base ** (-torch.arange(0, dim, 2).double() / dim), persistent=False)

    def forward(self, tokens: int) -> Tensor:
        return torch.outer(torch.arange(tokens, dtype=self.frequencies.dtype), self.frequencies)


class HalfRotary(Causal):
    """Column c turns with column c + d/2."""

    def __init__(self, heads: int = 3) -> None:
        super().__init__(heads=heads)
        self.angles = Angles(12 // heads)

    def rotate(self, x: Tensor) -> Tensor:
        angles = self.angles(x.shape[2]).repeat(1, 2).to(x)
        first, second = x.chunk(2, dim=-1)
        return x * angles.cos() + torch.cat([-second, first], dim=-1) * angles.sin()

    def mapped(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        return self.rotate(q), self.rotate(k)


class InterleavedRotary(HalfRotary):
    """Column 2c turns with column 2c + 1."""

    def rotate(self, x: Tensor) -> Tensor:
        angles = self.angles(x.shape[2]).repeat_interleave(2, dim=-1).to(x)
        turned = torch.stack([-x[..., 1::2], x[..., ::2]], dim=-1).flatten(-2)
        return x * angles.cos() + turned * angles.sin()


class ComplexRotary(HalfRotary):
    """Pairs of columns as complex numbers."""

    def rotate(self, x: Tensor) -> Tensor:
        angles = self.angles(x.shape[2]).double()
        turns = torch.polar(torch.ones_like(angles), angles)
        pairs = torch.view_as_complex(x.to(torch.float64).reshape(*x.shape[:-1], -1, 2))
        return torch.view_as_real(pairs * turns).flatten(3).type_as(x)


class InPlaceRotary(HalfRotary):
    """Written into an empty tensor, column by column."""

    def rotate(self, x: Tensor) -> Tensor:
        angles, out = self.angles(x.shape[2]).to(x), torch.empty_like(x)
        out[..., 0::2] = x[..., 0::2] * angles.cos() - x[..., 1::2] * angles.sin()
        out[..., 1::2] = x[..., 0::2] * angles.sin() + x[..., 1::2] * angles.cos()
        return out


class PartialRotary(HalfRotary):
    """The first half of a head turns, the rest stays."""

    def __init__(self) -> None:
        super().__init__()
        self.angles = Angles(2)

    def rotate(self, x: Tensor) -> Tensor:
        return torch.cat([super().rotate(x[..., :2]), x[..., 2:]], dim=-1)


class RotaryValues(HalfRotary):
    """Values turn, too."""

    def mixed(self, p: Tensor, v: Tensor) -> Tensor:
        return p @ self.rotate(v)


class RmsHeads(HalfRotary):
    """RMSNorm of each head's queries and keys, then rotary positions (Qwen3)."""

    def __init__(self) -> None:
        super().__init__()
        self.q_norm, self.k_norm = nn.RMSNorm(4, eps=1e-6), nn.RMSNorm(4, eps=1e-6)

    def mapped(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        return super().mapped(self.q_norm(q), self.k_norm(k))


class RmsAll(Separate):
    """RMSNorm over all heads together, written by hand (OLMo2)."""

    def __init__(self) -> None:
        super().__init__()
        self.gains = nn.Parameter(torch.linspace(0.5, 2, 24).reshape(2, 12))

    def mapped(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        q, k = (self._normed(x, gain) for x, gain in zip((q, k), self.gains, strict=True))
        return q, k

    def _normed(self, x: Tensor, gain: Tensor) -> Tensor:
        flat = x.transpose(1, 2).flatten(2)
        flat = flat * torch.rsqrt(flat.pow(2).mean(-1, keepdim=True) + 1e-6) * gain
        return flat.unflatten(-1, (self.heads, -1)).transpose(1, 2)


class OwnGain(nn.Module):
    """A norm with a gain for each head, `(H, 1, d)`."""

    def __init__(self) -> None:
        super().__init__()
        self.gamma = nn.Parameter(torch.ones(3, 1, 4))

    def forward(self, x: Tensor) -> Tensor:
        return 2 * F.normalize(x, dim=-1) * self.gamma


class GainsByHead(Separate):
    """Each head's queries and keys have a gain of their own (vit-pytorch)."""

    def __init__(self) -> None:
        super().__init__()
        self.q_norm, self.k_norm = OwnGain(), OwnGain()

    def mapped(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        return self.q_norm(q), self.k_norm(k)


class LayerNormHeads(Separate):
    def __init__(self) -> None:
        super().__init__()
        self.norm_q, self.norm_k = nn.LayerNorm(4), nn.LayerNorm(4)

    def mapped(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        return self.norm_q(q), self.norm_k(k)


class BatchNormHeads(Separate):
    """BatchNorm of queries and keys over the batch, with running statistics (LeViT)."""

    def __init__(self) -> None:
        super().__init__()
        self.bn_q, self.bn_k = nn.BatchNorm1d(12), nn.BatchNorm1d(12)
        for norm in (self.bn_q, self.bn_k):
            norm.running_var.uniform_(0.5, 2)
            norm.running_mean.uniform_(-1, 1)

    def mapped(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        q, k = (
            norm(x.transpose(1, 2).flatten(0, 1).flatten(1)).reshape(x.shape[0], -1, self.heads, 4).transpose(1, 2)
            for x, norm in ((q, self.bn_q), (k, self.bn_k))
        )
        return q, k


class Dropped(Separate):
    """Dropout of the probabilities and of the output."""

    def normalised(self, logits: Tensor) -> Tensor:
        return F.dropout(super().normalised(logits), 0.3, self.training)
