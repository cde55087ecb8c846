"""More than one sequence, more than one attention, more than one call."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from tests.attention.strange.grouped import attend
from tests.attention.strange.separate import Separate
from tests.attention.strange.told import Parameters, Told, Truth, columns, merge, rows, split, tell


class Joint(nn.Module):
    """Two streams attend jointly; each has projections of its own (SD3, Flux).

    There is one softmax whose heads come from six weights, so that no `(heads, D, d)` is all of it.
    """

    def __init__(self) -> None:
        super().__init__()
        self.heads = 3
        self.to_q, self.to_k, self.to_v = (nn.Linear(12, 12) for _ in range(3))
        self.add_q_proj, self.add_k_proj, self.add_v_proj = (nn.Linear(12, 12) for _ in range(3))
        self.to_out, self.to_add_out = nn.Linear(12, 12), nn.Linear(12, 12)

    def truth(self, get: Parameters) -> list[Truth]:
        own = Truth(*(rows(get(f"to_{r}.weight"), 3) for r in "qkv"), columns(get("to_out.weight"), 3))
        added = Truth(*(rows(get(f"add_{r}_proj.weight"), 3) for r in "qkv"), columns(get("to_add_out.weight"), 3))
        return [own, added]

    def forward(self, x: Tensor) -> Tensor:
        image, text = x[:, :4], x[:, 4:]
        own = [split(f(image), 3) for f in (self.to_q, self.to_k, self.to_v)]
        added = [split(f(text), 3) for f in (self.add_q_proj, self.add_k_proj, self.add_v_proj)]
        q, k, v = (torch.cat([a, b], dim=2) for a, b in zip(own, added, strict=True))
        logits = q @ k.mT / 2
        p = logits.softmax(-1)
        out = p @ v
        tell(lambda: Told(self, *own, logits, p, out, site=0))
        tell(lambda: Told(self, *added, logits, p, out, site=1))
        mixed = merge(out)
        return torch.cat([self.to_out(mixed[:, :4]), self.to_add_out(mixed[:, 4:])], dim=1)


class TwoSites(nn.Module):
    """Attention among tokens, then to their mean and maximum, in one forward with eight flat attributes."""

    def __init__(self) -> None:
        super().__init__()
        self.q1, self.k1, self.v1, self.o1, self.q2, self.k2, self.v2, self.o2 = (nn.Linear(12, 12) for _ in range(8))

    def truth(self, get: Parameters) -> list[Truth]:
        return [
            Truth(*(rows(get(f"{r}{i}.weight"), heads) for r in "qkv"), columns(get(f"o{i}.weight"), heads))
            for i, heads in ((1, 3), (2, 2))
        ]

    def forward(self, x: Tensor) -> Tensor:
        memory = torch.stack([x.mean(1), x.amax(1), x.amin(1)], dim=1)
        for site, (heads, source) in enumerate(((3, x), (2, memory))):
            names = [f"{r}{site + 1}" for r in "qkvo"]
            fq, fk, fv, fo = (getattr(self, name) for name in names)
            q, k, v = split(fq(x), heads), split(fk(source), heads), split(fv(source), heads)
            logits = q @ k.mT * q.shape[-1] ** -0.5
            p = logits.softmax(-1)
            out = p @ v
            tell(lambda s=site, a=(q, k, v, logits, p, out): Told(self, *a, site=s))
            x = x + fo(merge(out))
        return x


class Twice(nn.Module):
    """One module called twice with the same weights (ALBERT)."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.shared = nn.LayerNorm(12), Separate()

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.shared(self.norm(x))
        return x + self.shared(self.norm(x))


class Cross(nn.Module):
    """Tokens read a memory of another width and length."""

    def __init__(self) -> None:
        super().__init__()
        self.to_q, self.to_k, self.to_v = nn.Linear(12, 12), nn.Linear(5, 12), nn.Linear(5, 12)
        self.to_out = nn.Linear(12, 12)

    def truth(self, get: Parameters) -> list[Truth]:
        return [Truth(*(rows(get(f"to_{r}.weight"), 3) for r in "qkv"), columns(get("to_out.weight"), 3))]

    def forward(self, x: Tensor, memory: Tensor) -> Tensor:
        q, k, v = split(self.to_q(x), 3), split(self.to_k(memory), 3), split(self.to_v(memory), 3)
        return x + self.to_out(attend(self, q, k, v, k, v))


class SharedQueryKey(nn.Module):
    """One weight makes queries and keys (Reformer): a view of two roles would overlap."""

    def __init__(self) -> None:
        super().__init__()
        self.to_qk, self.to_v, self.to_out = (nn.Linear(12, 12, bias=False) for _ in range(3))

    def truth(self, get: Parameters) -> list[Truth]:
        qk = rows(get("to_qk.weight"), 3)
        return [Truth(qk, qk, rows(get("to_v.weight"), 3), columns(get("to_out.weight"), 3))]

    def forward(self, x: Tensor) -> Tensor:
        qk, v = split(self.to_qk(x), 3), split(self.to_v(x), 3)
        return self.to_out(attend(self, qk, qk, v, qk, v))


class LearnedQueries(nn.Module):
    """Queries are parameters, not a function of the input (Perceiver, pooling by attention)."""

    def __init__(self) -> None:
        super().__init__()
        self.latents = nn.Parameter(torch.randn(5, 12))
        self.to_q, self.to_k, self.to_v, self.to_out = (nn.Linear(12, 12) for _ in range(4))

    def truth(self, get: Parameters) -> list[Truth]:
        return [Truth(*(rows(get(f"to_{r}.weight"), 3) for r in "qkv"), columns(get("to_out.weight"), 3))]

    def forward(self, x: Tensor) -> Tensor:
        q = split(self.to_q(self.latents.expand(len(x), -1, -1)), 3)
        k, v = split(self.to_k(x), 3), split(self.to_v(x), 3)
        return self.to_out(attend(self, q, k, v, k, v))


class RawQueries(LearnedQueries):
    """Queries are the parameters themselves: no weight makes them."""

    def truth(self, get: Parameters) -> list[Truth]:
        query = get("latents").reshape(5, 3, 4).transpose(0, 1)
        return [Truth(query, *(rows(get(f"to_{r}.weight"), 3) for r in "kv"), columns(get("to_out.weight"), 3))]

    def forward(self, x: Tensor) -> Tensor:
        q = split(self.latents.expand(len(x), -1, -1), 3)
        k, v = split(self.to_k(x), 3), split(self.to_v(x), 3)
        return self.to_out(attend(self, q, k, v, k, v))


class Cached(Separate):
    """Keys and values of earlier calls are kept in the module and grow with each call."""

    def __init__(self) -> None:
        super().__init__()
        self.past: list[tuple[Tensor, Tensor]] = []

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (split(projection(x), self.heads) for projection in (self.to_q, self.to_k, self.to_v))
        self.past.append((k.detach(), v.detach()))
        keys = torch.cat([*(past for past, _ in self.past[:-1]), k], dim=2)
        values = torch.cat([*(past for _, past in self.past[:-1]), v], dim=2)
        logits = self.scored(q, keys)
        p = logits.softmax(-1)
        out = p @ values
        tell(lambda: Told(self, q, k, v, logits, p, out))
        return self.to_out(merge(out))


class Buffered(Separate):
    """Keys and values are written into buffers in place (a static cache), from where the last call stopped."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("keys", torch.zeros(2, 3, 40, 4), persistent=False)
        self.register_buffer("values", torch.zeros(2, 3, 40, 4), persistent=False)
        self.register_buffer("filled", torch.tensor(0))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (split(projection(x), self.heads) for projection in (self.to_q, self.to_k, self.to_v))
        start, stop = int(self.filled), int(self.filled) + x.shape[1]
        keys = torch.cat([self.keys[:, :, :start], k], dim=2)
        values = torch.cat([self.values[:, :, :start], v], dim=2)
        self.keys[:, :, start:stop], self.values[:, :, start:stop] = k.detach(), v.detach()
        self.filled += x.shape[1]
        logits = self.scored(q, keys)
        p = logits.softmax(-1)
        out = p @ values
        tell(lambda: Told(self, q, k, v, logits, p, out))
        return self.to_out(merge(out))
