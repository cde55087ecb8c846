"""Plain attention in the arrangements that people compute it in: heads by loops, chunks, axes, merged batches."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from tests.attention.strange.separate import Separate
from tests.attention.strange.told import Parameters, Told, Truth, merge, split, tell


class OneHead(nn.Module):
    """One head as a module of its own, as a well-known lecture has it."""

    def __init__(self) -> None:
        super().__init__()
        self.key, self.query, self.value = (nn.Linear(12, 4, bias=False) for _ in range(3))
        self.register_buffer("tril", torch.ones(32, 32).tril())

    def truth(self, get: Parameters) -> list[Truth]:
        q, k, v = (get(f"{role}.weight").mT[None] for role in ("query", "key", "value"))
        return [Truth(q, k, v, anywhere=True)]

    def forward(self, x: Tensor) -> Tensor:
        n = x.shape[1]
        k, q, v = self.key(x), self.query(x), self.value(x)
        logits = (q @ k.transpose(-2, -1) * 0.5).masked_fill(self.tril[:n, :n] == 0, float("-inf"))
        p = logits.softmax(-1)
        out = p @ v
        tell(lambda: Told(self, *(y[:, None] for y in (q, k, v, logits, p, out)), self.tril[:n, :n] != 0))
        return out


class HeadModules(nn.Module):
    """Heads side by side, then a projection."""

    def __init__(self) -> None:
        super().__init__()
        self.heads = nn.ModuleList(OneHead() for _ in range(3))
        self.proj = nn.Linear(12, 12)

    def forward(self, x: Tensor) -> Tensor:
        return self.proj(torch.cat([head(x) for head in self.heads], dim=-1))


class Loop(Separate):
    """Fused projections, then a loop over heads."""

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (projection(x).chunk(3, dim=-1) for projection in (self.to_q, self.to_k, self.to_v))
        logits = [a @ b.mT * 0.5 for a, b in zip(q, k, strict=True)]
        p = [one.softmax(-1) for one in logits]
        out = [a @ b for a, b in zip(p, v, strict=True)]
        tell(lambda: Told(self, *(torch.stack(list(y), 1) for y in (q, k, v, logits, p, out))))
        return self.to_out(torch.cat(out, dim=-1))


class Mapped(Separate):
    """`torch.vmap` over the axis of heads."""

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (split(projection(x), self.heads) for projection in (self.to_q, self.to_k, self.to_v))
        out = torch.vmap(lambda a, b, c: (a @ b.mT / 2).softmax(-1) @ c, in_dims=1, out_dims=1)(q, k, v)
        tell(lambda: Told(self, q, k, v, s := q @ k.mT / 2, s.softmax(-1), out))
        return self.to_out(merge(out))


class QueryChunks(Separate):
    """Queries in chunks of two, to save memory."""

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (split(projection(x), self.heads) for projection in (self.to_q, self.to_k, self.to_v))
        out = torch.cat([(part @ k.mT / 2).softmax(-1) @ v for part in q.split(2, dim=2)], dim=2)
        tell(lambda: Told(self, q, k, v, s := q @ k.mT / 2, s.softmax(-1), out))
        return self.to_out(merge(out))


class OnlineSoftmax(Separate):
    """Keys in chunks of two with a running maximum and sum, as a flash kernel in Python."""

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (split(projection(x), self.heads) for projection in (self.to_q, self.to_k, self.to_v))
        top = torch.full_like(q[..., :1], float("-inf"))
        total, mixed = torch.zeros_like(top), torch.zeros_like(q)
        for keys, values in zip(k.split(2, dim=2), v.split(2, dim=2), strict=True):
            scores = q @ keys.mT / 2
            new = torch.maximum(top, scores.amax(-1, keepdim=True))
            e, fade = torch.exp(scores - new), torch.exp(top - new)
            total, mixed, top = total * fade + e.sum(-1, keepdim=True), mixed * fade + e @ values, new
        out = mixed / total
        tell(lambda: Told(self, q, k, v, s := q @ k.mT / 2, s.softmax(-1), out))
        return self.to_out(merge(out))


class SequenceFirst(Separate):
    """Tokens first, batch and heads merged, `baddbmm` with a bias by place (fairseq, Bloom)."""

    def forward(self, x: Tensor) -> Tensor:
        b, n, _ = x.shape
        turned = x.transpose(0, 1)
        q, k, v = (
            projection(turned).contiguous().view(n, b * 3, 4).transpose(0, 1)
            for projection in (self.to_q, self.to_k, self.to_v)
        )
        bias = torch.arange(n, dtype=x.dtype).expand(b * 3, n, n)
        logits = torch.baddbmm(bias, q, k.transpose(1, 2), beta=0.1, alpha=0.5)
        p = logits.softmax(-1)
        out = torch.bmm(p, v)
        tell(lambda: Told(self, *(y.unflatten(0, (b, 3)) for y in (q, k, v, logits, p, out))))
        return self.to_out(out.transpose(0, 1).reshape(n, b, 12)).transpose(0, 1)


class Axial(Separate):
    """Six tokens as a grid of 2 × 3: attention along the columns of the grid."""

    def forward(self, x: Tensor) -> Tensor:
        b = len(x)
        grid = x.view(b, 2, 3, 12).transpose(1, 2).flatten(0, 1)
        return super().forward(grid).view(b, 3, 2, 12).transpose(1, 2).flatten(1, 2)


class Unbatched(Separate):
    """A loop over the sequences of the batch, without a batch axis inside."""

    def forward(self, x: Tensor) -> Tensor:
        results, told = [], []
        for one in x:
            q, k, v = (f(one).view(-1, 3, 4).transpose(0, 1) for f in (self.to_q, self.to_k, self.to_v))
            logits = q @ k.mT / 2
            p = logits.softmax(-1)
            out = p @ v
            told.append((q, k, v, logits, p, out))
            results.append(self.to_out(out.transpose(0, 1).flatten(1)))
        for one_told in told:
            tell(lambda a=one_told: Told(self, *(y[None] for y in a)))
        return torch.stack(results)


class Temperatures(Separate):
    """A temperature for each head, one of them 1; all but that head are pruned from the output."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("temperatures", torch.tensor([1.0, 4.0, 0.2]).reshape(3, 1, 1))
        self.register_buffer("kept", torch.tensor([1.0, 0.0, 0.0]).reshape(3, 1, 1))

    def scored(self, q: Tensor, k: Tensor) -> Tensor:
        return super().scored(q, k) * self.temperatures

    def finished(self, out: Tensor, x: Tensor) -> Tensor:
        return super().finished(out * self.kept, x)


class KeyIsValue(nn.Module):
    """One weight makes keys and values."""

    def __init__(self) -> None:
        super().__init__()
        self.to_q, self.to_kv, self.to_out = (nn.Linear(12, 12, bias=False) for _ in range(3))

    def truth(self, get: Parameters) -> list[Truth]:
        q, kv = (get(f"to_{name}.weight").unflatten(0, (3, 4)).mT for name in ("q", "kv"))
        return [Truth(q, kv, kv, get("to_out.weight").unflatten(1, (3, 4)).movedim(1, 0))]

    def forward(self, x: Tensor) -> Tensor:
        q, kv = split(self.to_q(x), 3), split(self.to_kv(x), 3)
        logits = q @ kv.mT / 2
        p = logits.softmax(-1)
        out = p @ kv
        tell(lambda: Told(self, q, kv, kv, logits, p, out))
        return self.to_out(merge(out))


class Hooked(Separate):
    """A hook of somebody's steers the queries."""

    def __init__(self) -> None:
        super().__init__()
        self.to_q.register_forward_hook(lambda module, given, q: 3 * q.tanh())

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (split(projection(x), self.heads) for projection in (self.to_q, self.to_k, self.to_v))
        logits = self.scored(q, k)
        p = logits.softmax(-1)
        out = p @ v
        tell(lambda: Told(self, q, k, v, logits, p, out))
        return self.finished(out, x)


class Autocast(Separate):
    """Projections in bfloat16 inside a wider model."""

    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return super().forward(x.float()).to(x.dtype)


class ScaledInPlace(nn.Module):
    """Queries are scaled where they lie, in the memory of the projection's result (ESM); names of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.alpha, self.beta, self.gamma, self.delta = (nn.Linear(12, 12) for _ in range(4))

    def truth(self, get: Parameters) -> list[Truth]:
        q, k, v = (get(f"{n}.weight").unflatten(0, (3, 4)).mT for n in ("alpha", "beta", "gamma"))
        return [Truth(q, k, v, get("delta.weight").unflatten(1, (3, 4)).movedim(1, 0))]

    def forward(self, x: Tensor) -> Tensor:
        b, n, _ = x.shape
        q, k, v = (f(x).view(b, n, 3, 4) for f in (self.alpha, self.beta, self.gamma))
        shown = x[None, :, None, :, 0] < x[None, :, None, :, 0].amax(-1, keepdim=True)
        q *= 0.3
        logits = torch.einsum("bnhd,bthd->hbnt", q, k).masked_fill(~shown, -10000)
        p = logits.softmax(-1)
        out = torch.einsum("hbnt,bthd->bnhd", p, v)
        tell(lambda: self._told(x, *(y.transpose(1, 2) for y in (k, v, out)), logits, p, shown))
        return self.delta(out.reshape(b, n, 12))

    def _told(self, x: Tensor, k: Tensor, v: Tensor, out: Tensor, *scored: Tensor) -> Told:
        logits, p, shown = (y.transpose(0, 1) for y in scored)
        return Told(self, split(self.alpha(x), 3), k, v, logits, p, out, shown)
