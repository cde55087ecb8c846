"""Queries and keys from a latent, and parts of a head that all heads share (DeepSeek's MLA)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from tests.attention.strange.rotary import Angles
from tests.attention.strange.told import Parameters, Told, Truth, columns, merge, rows, split, tell


class Latent(nn.Module):
    """Keys and values from one latent; no positions."""

    def __init__(self) -> None:
        super().__init__()
        self.down, self.norm = nn.Linear(12, 6, bias=False), nn.RMSNorm(6)
        self.up_k, self.up_v = nn.Linear(6, 12, bias=False), nn.Linear(6, 12, bias=False)
        self.query, self.out = nn.Linear(12, 12, bias=False), nn.Linear(12, 12, bias=False)

    def truth(self, get: Parameters) -> list[Truth]:
        k, v = rows(get("up_k.weight"), 3), rows(get("up_v.weight"), 3)
        return [Truth(rows(get("query.weight"), 3), k, v, columns(get("out.weight"), 3))]

    def forward(self, x: Tensor) -> Tensor:
        latent = self.norm(self.down(x))
        q, k, v = split(self.query(x), 3), split(self.up_k(latent), 3), split(self.up_v(latent), 3)
        logits = q @ k.mT / 2
        p = logits.softmax(-1)
        out = p @ v
        tell(lambda: Told(self, q, k, v, logits, p, out))
        return self.out(merge(out))


class LatentRotary(nn.Module):
    """Each head's query and key have a part without position and a rotary part; the key's rotary part is shared."""

    def __init__(self) -> None:
        super().__init__()
        self.q_proj = nn.Linear(12, 3 * (4 + 2), bias=False)
        self.kv_a, self.kv_norm = nn.Linear(12, 6 + 2, bias=False), nn.RMSNorm(6)
        self.kv_b, self.o_proj = nn.Linear(6, 3 * (4 + 4), bias=False), nn.Linear(12, 12, bias=False)
        self.angles = Angles(2)

    def truth(self, get: Parameters) -> list[Truth]:
        k, v = rows(get("kv_b.weight"), 3).chunk(2, dim=-1)
        return [Truth(rows(get("q_proj.weight"), 3), k, v, columns(get("o_proj.weight"), 3), partial=True)]

    def turned(self, x: Tensor) -> Tensor:
        angles = self.angles(x.shape[2]).repeat(1, 2).to(x)
        return x * angles.cos() + torch.cat([-x[..., 1:], x[..., :1]], dim=-1) * angles.sin()

    def forward(self, x: Tensor) -> Tensor:
        q = split(self.q_proj(x), 3)
        latent, rotary = self.kv_a(x).split([6, 2], dim=-1)
        k, v = split(self.kv_b(self.kv_norm(latent)), 3).split([4, 4], dim=-1)
        shared = self.turned(rotary[:, None]).expand(-1, 3, -1, -1)
        queries = torch.cat([q[..., :4], self.turned(q[..., 4:])], dim=-1)
        logits = queries @ torch.cat([k, shared], dim=-1).mT * 6**-0.5
        seen = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).tril()
        logits = logits.masked_fill(~seen, float("-inf"))
        p = logits.softmax(-1)
        out = p @ v
        tell(lambda: Told(self, q, k, v, logits, p, out, seen))
        return self.o_proj(merge(out))


class LatentTwoQueries(LatentRotary):
    """The two parts of a query come from two weights."""

    def __init__(self) -> None:
        super().__init__()
        self.q_proj = nn.Linear(12, 12, bias=False)
        self.q_rope = nn.Linear(12, 6, bias=False)

    def truth(self, get: Parameters) -> list[Truth]:
        k, v = rows(get("kv_b.weight"), 3).chunk(2, dim=-1)
        query = torch.cat([rows(get("q_proj.weight"), 3), rows(get("q_rope.weight"), 3)], dim=-1)
        return [Truth(query, k, v, columns(get("o_proj.weight"), 3), partial=True)]

    def forward(self, x: Tensor) -> Tensor:
        q = torch.cat([split(self.q_proj(x), 3), split(self.q_rope(x), 3)], dim=-1)
        latent, rotary = self.kv_a(x).split([6, 2], dim=-1)
        k, v = split(self.kv_b(self.kv_norm(latent)), 3).split([4, 4], dim=-1)
        shared = self.turned(rotary[:, None]).expand(-1, 3, -1, -1)
        queries = torch.cat([q[..., :4], self.turned(q[..., 4:])], dim=-1)
        logits = queries @ torch.cat([k, shared], dim=-1).mT * 6**-0.5
        p = logits.softmax(-1)
        out = p @ v
        tell(lambda: Told(self, q, k, v, logits, p, out))
        return self.o_proj(merge(out))
