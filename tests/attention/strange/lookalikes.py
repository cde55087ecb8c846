"""What has a softmax, or the names of attention, and is none."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class SqueezeExcite(nn.Module):
    """A gate on channels."""

    def __init__(self) -> None:
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(12, 4), nn.Linear(4, 12)

    def forward(self, x: Tensor) -> Tensor:
        return x * self.fc2(self.fc1(x.mean(1)).relu()).sigmoid()[:, None]


class SelectiveKernel(nn.Module):
    """A softmax over two branches."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.choose = nn.Linear(12, 12), nn.Linear(12, 12), nn.Linear(12, 24)

    def forward(self, x: Tensor) -> Tensor:
        branches = torch.stack([self.a(x), self.b(x)], dim=1)
        weight = self.choose(branches.sum(1).mean(1)).unflatten(-1, (2, 12)).softmax(dim=1)
        return (branches * weight[:, :, None]).sum(1)


class SoftExperts(nn.Module):
    """A router's softmax mixes the experts' outputs, by a product."""

    def __init__(self) -> None:
        super().__init__()
        self.router = nn.Linear(12, 4)
        self.experts = nn.ModuleList(nn.Linear(12, 12) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        outputs = torch.stack([expert(x) for expert in self.experts], dim=2)
        return (self.router(x).softmax(-1)[..., None, :] @ outputs)[..., 0, :]


class TopExperts(nn.Module):
    """A router with its two best experts."""

    def __init__(self) -> None:
        super().__init__()
        self.router = nn.Linear(12, 4)
        self.experts = nn.Parameter(torch.randn(4, 12, 12))

    def forward(self, x: Tensor) -> Tensor:
        weight, chosen = self.router(x).softmax(-1).topk(2, dim=-1)
        return (torch.einsum("bnx,bnkxy->bnky", x, self.experts[chosen]) * weight[..., None]).sum(2)


class MixtureOfLogits(nn.Module):
    """A mixture of softmaxes over classes."""

    def __init__(self) -> None:
        super().__init__()
        self.prior, self.logits = nn.Linear(12, 3), nn.Linear(12, 3 * 7)

    def forward(self, x: Tensor) -> Tensor:
        each = self.logits(x).unflatten(-1, (3, 7)).softmax(-1)
        return (self.prior(x).softmax(-1)[..., None] * each).sum(-2)


class SoftEmbedding(nn.Module):
    """Expected embedding of a distribution over a vocabulary: what is averaged is a parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(9, 12)

    def forward(self, x: Tensor) -> Tensor:
        return (x @ self.table.weight.T).softmax(-1) @ self.table.weight


class SpatialSoftmax(nn.Module):
    """Expected coordinates of each channel."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(12, 12)

    def forward(self, x: Tensor) -> Tensor:
        where = torch.linspace(-1, 1, x.shape[1], dtype=x.dtype)
        return self.linear((x.softmax(1) * where[:, None]).sum(1))


class SoftAssignment(nn.Module):
    """Tokens averaged by their soft assignment to clusters (NetVLAD): no scores of tokens with tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.assign, self.out = nn.Linear(12, 5), nn.Linear(12, 12)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.assign(x).softmax(-1).mT @ x)


class NamesOnly(nn.Module):
    """All the names of attention and no attention."""

    def __init__(self) -> None:
        super().__init__()
        self.num_heads, self.head_dim, self.scale = 3, 4, 0.5
        self.q_proj, self.k_proj, self.v_proj, self.out_proj = (nn.Linear(12, 12) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        return self.out_proj(self.q_proj(x).tanh() * self.k_proj(x).sigmoid() + self.v_proj(x))


class FusedNamesOnly(nn.Module):
    """`qkv` and `num_heads`, but a gated convolution over tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.num_heads = 3
        self.qkv, self.proj = nn.Linear(12, 36), nn.Linear(12, 12)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).chunk(3, dim=-1)
        return self.proj(q * torch.cumsum(k * v, dim=1))
