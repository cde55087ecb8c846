"""Query heads that share keys, and one weight for all roles, cut in every order that people cut it."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from tests.attention.strange.told import Parameters, Told, Truth, columns, merge, rows, split, tell


def attend(module: nn.Module, q: Tensor, k: Tensor, v: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    """Plain softmax attention, all `(B, H, N, d)`; `k` and `v` are told before they are repeated."""
    logits = q @ keys.mT * q.shape[-1] ** -0.5
    p = logits.softmax(-1)
    out = p @ values
    tell(lambda: Told(module, q, k, v, logits, p, out))
    return merge(out)


class Grouped(nn.Module):
    """Four query heads, two key heads, separate weights; keys are expanded and reshaped (Llama)."""

    share: tuple[int, ...] | None = None
    kv_heads = 2

    def __init__(self) -> None:
        super().__init__()
        self.num_heads, self.num_kv_heads = 4, self.kv_heads
        self.wq, self.wo = nn.Linear(12, 16, bias=False), nn.Linear(16, 12, bias=False)
        self.wk, self.wv = (nn.Linear(12, 4 * self.kv_heads, bias=False) for _ in range(2))

    def truth(self, get: Parameters) -> list[Truth]:
        q, k, v = (
            rows(get("wq.weight"), 4),
            rows(get("wk.weight"), self.kv_heads),
            rows(get("wv.weight"), self.kv_heads),
        )
        return [Truth(q, k, v, columns(get("wo.weight"), 4), self.share)]

    def shared(self, x: Tensor) -> Tensor:
        return x[:, :, None].expand(-1, -1, 4 // self.kv_heads, -1, -1).reshape(x.shape[0], 4, *x.shape[2:])

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = split(self.wq(x), 4), split(self.wk(x), self.kv_heads), split(self.wv(x), self.kv_heads)
        return self.wo(attend(self, q, k, v, self.shared(k), self.shared(v)))


class OneKey(Grouped):
    """All query heads share one key head, by broadcasting."""

    kv_heads = 1

    def shared(self, x: Tensor) -> Tensor:
        return x


class KeysModulo(Grouped):
    """Query head h has key head h mod G: keys are tiled, not repeated (x-transformers)."""

    share = (0, 1, 0, 1)

    def shared(self, x: Tensor) -> Tensor:
        return x.repeat(1, 2, 1, 1)


class ByReshape(Grouped):
    """Queries are cut into groups and scored in five dimensions; no key is ever repeated."""

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = split(self.wq(x), 4), split(self.wk(x), 2), split(self.wv(x), 2)
        logits = q.reshape(q.shape[0], 2, 2, *q.shape[2:]) @ k[:, :, None].mT / 2
        p = logits.softmax(-1)
        out = (p @ v[:, :, None]).flatten(1, 2)
        tell(lambda: Told(self, q, k, v, logits.flatten(1, 2), p.flatten(1, 2), out))
        return self.wo(merge(out))


class FoldedIntoTokens(Grouped):
    """The query heads of a group are folded into the tokens, so that a product has one entry for each key head."""

    def forward(self, x: Tensor) -> Tensor:
        b, n, _ = x.shape
        q, k, v = split(self.wq(x), 4), split(self.wk(x), 2), split(self.wv(x), 2)
        logits = q.reshape(b, 2, 2 * n, 4) @ k.mT / 2
        p = logits.softmax(-1)
        out = (p @ v).reshape(b, 4, n, 4)
        tell(lambda: Told(self, q, k, v, logits.reshape(b, 4, n, n), p.reshape(b, 4, n, n), out))
        return self.wo(merge(out))


class GroupedFusion(nn.Module):
    """One weight, cut as (groups, queries of a group + 2, d) (litgpt)."""

    def __init__(self) -> None:
        super().__init__()
        self.attn, self.proj = nn.Linear(12, (4 + 2 * 2) * 4), nn.Linear(16, 12)

    def truth(self, get: Parameters) -> list[Truth]:
        whole = get("attn.weight").reshape(2, 4, 4, 12).mT
        query = whole[:, :2].flatten(0, 1)
        return [Truth(query, whole[:, 2], whole[:, 3], columns(get("proj.weight"), 4))]

    def forward(self, x: Tensor) -> Tensor:
        b, n, _ = x.shape
        qkv = self.attn(x).view(b, n, 2, 4, 4).permute(0, 2, 3, 1, 4)
        q, k, v = qkv.split((2, 1, 1), dim=2)
        q, k, v = (y.reshape(b, -1, n, 4) for y in (q, k, v))
        return self.proj(attend(self, q, k, v, *(y.repeat_interleave(2, dim=1) for y in (k, v))))


class Fused(nn.Module):
    """One weight named `qkv`, blocks of q, k, v as everybody has it."""

    def __init__(self) -> None:
        super().__init__()
        self.num_heads = 3
        self.qkv, self.proj = nn.Linear(12, 36), nn.Linear(12, 12)

    def cut(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """`(36, …)` to three of `(3, 4, …)`: heads, d."""
        q, k, v = x.unflatten(0, (3, 3, 4))
        return q, k, v

    def truth(self, get: Parameters) -> list[Truth]:
        q, k, v = self.cut(get("qkv.weight"))
        return [Truth(q.mT, k.mT, v.mT, columns(get("proj.weight"), 3))]

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (y.permute(2, 0, 3, 1) for y in self.cut(self.qkv(x).movedim(-1, 0)))
        return self.proj(attend(self, q, k, v, k, v))


class HeadMajor(Fused):
    """Named `qkv`, but each head's q, k and v lie together."""

    def cut(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v = x.unflatten(0, (3, 3, 4)).unbind(1)
        return q, k, v


class ChannelMajor(Fused):
    """`rearrange(qkv, "b t (d k h) -> k b h t d")`: the heads vary fastest."""

    def cut(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v = x.unflatten(0, (4, 3, 3)).movedim((1, 2), (0, 1))
        return q, k, v


class ValueFirst(Fused):
    """Named `qkv`, but the order is value, query, key."""

    def cut(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        v, q, k = x.unflatten(0, (3, 3, 4))
        return q, k, v


class Scattered(Fused):
    """The rows of a head follow a fixed permutation: no arithmetic progression."""

    def cut(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        order = torch.randperm(36, generator=torch.Generator().manual_seed(3))
        q, k, v = x[order].unflatten(0, (3, 3, 4))
        return q, k, v


class QueryAndFusedKeys(nn.Module):
    """`to_q`, and `to_kv` that holds keys and values head by head."""

    def __init__(self) -> None:
        super().__init__()
        self.heads = 3
        self.to_q, self.to_kv, self.to_out = nn.Linear(12, 12), nn.Linear(12, 24), nn.Linear(12, 12)

    def truth(self, get: Parameters) -> list[Truth]:
        k, v = get("to_kv.weight").reshape(3, 2, 4, 12).unbind(1)
        return [Truth(rows(get("to_q.weight"), 3), k.mT, v.mT, columns(get("to_out.weight"), 3))]

    def forward(self, x: Tensor) -> Tensor:
        k, v = self.to_kv(x).unflatten(-1, (3, 2, 4)).permute(3, 0, 2, 1, 4)
        return self.to_out(attend(self, split(self.to_q(x), 3), k, v, k, v))
