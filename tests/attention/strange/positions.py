"""Learned relative positions inside the scores."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.attention.strange.separate import Separate
from tests.attention.strange.told import Told, merge, split, tell


class BiasTable(Separate):
    """A number for each head and distance, added to the logits (T5)."""

    def __init__(self) -> None:
        super().__init__()
        self.distances = nn.Embedding(21, 3)

    def scored(self, q: Tensor, k: Tensor) -> Tensor:
        place = torch.arange(q.shape[2])
        return super().scored(q, k) + self.distances(place[:, None] - place + 10).permute(2, 0, 1)


class TransformerXL(Separate):
    """(q + u) kᵀ plus (q + v) rᵀ, shifted by padding and reshaping."""

    def __init__(self) -> None:
        super().__init__()
        self.u, self.v = nn.Parameter(torch.randn(3, 4)), nn.Parameter(torch.randn(3, 4))
        self.pos_proj = nn.Linear(12, 12, bias=False)

    def shifted(self, x: Tensor) -> Tensor:
        b, h, n, t = x.shape
        x = F.pad(x, (1, 0)).view(b, h, t + 1, n)
        return x[:, :, 1:].view(b, h, n, t)[..., : t // 2 + 1]

    def scored(self, q: Tensor, k: Tensor) -> Tensor:
        n = q.shape[2]
        place = torch.arange(n - 1, -n, -1, dtype=q.dtype)[:, None] / 10 ** (torch.arange(6, dtype=q.dtype) / 6)
        r = self.pos_proj(torch.cat([place.sin(), place.cos()], dim=-1)).view(2 * n - 1, 3, 4).transpose(0, 1)
        content = (q + self.u[:, None]) @ k.mT
        return (content + self.shifted((q + self.v[:, None]) @ r.mT)) / 2


class Shaw(Separate):
    """An embedding of the distance is added to each key, and another to each value."""

    def __init__(self) -> None:
        super().__init__()
        self.rel_k, self.rel_v = (nn.Parameter(torch.randn(21, 4)) for _ in range(2))

    def _near(self, table: Tensor, n: int) -> Tensor:
        place = torch.arange(n)
        return table[place[:, None] - place + 10]

    def scored(self, q: Tensor, k: Tensor) -> Tensor:
        return super().scored(q, k) + torch.einsum("bhnd,ntd->bhnt", q, self._near(self.rel_k, q.shape[2])) / 2

    def mixed(self, p: Tensor, v: Tensor) -> Tensor:
        return p @ v + torch.einsum("bhnt,ntd->bhnd", p, self._near(self.rel_v, v.shape[2]))


class GatedPositions(Separate):
    """Content and position attention under one gate, each with its softmax (ConViT)."""

    def __init__(self) -> None:
        super().__init__()
        self.position = nn.Linear(1, 3)
        self.gate = nn.Parameter(torch.tensor([0.3, -0.5, 1.0]))

    def normalised(self, logits: Tensor) -> Tensor:
        place = torch.arange(logits.shape[-1], dtype=logits.dtype)
        near = self.position((place[:, None] - place).abs()[..., None]).permute(2, 0, 1).softmax(-1)
        gate = self.gate.sigmoid()[:, None, None]
        return (1 - gate) * logits.softmax(-1) + gate * near


class Registers(Separate):
    """Learned keys and values that are no tokens come first (memory key–values of x-transformers)."""

    def __init__(self) -> None:
        super().__init__()
        self.mem_k, self.mem_v = nn.Parameter(torch.randn(3, 2, 4)), nn.Parameter(torch.randn(3, 2, 4))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (split(projection(x), self.heads) for projection in (self.to_q, self.to_k, self.to_v))
        keys, values = (
            torch.cat([m.expand(len(x), -1, -1, -1), y], dim=2) for m, y in ((self.mem_k, k), (self.mem_v, v))
        )
        logits = self.scored(q, keys)
        p = logits.softmax(-1)
        out = p @ values
        tell(lambda: Told(self, q, k, v, logits, p, out))
        return self.to_out(merge(out))
