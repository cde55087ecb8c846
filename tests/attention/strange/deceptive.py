"""Attention of which a plausible view is wrong: tied weights, crossed groups, masks and draws after the softmax."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor, nn

from tests.attention.strange.grouped import Grouped, attend
from tests.attention.strange.separate import Separate
from tests.attention.strange.told import Parameters, Told, Truth, columns, merge, rows, split, tell


class Tied(Separate):
    """Queries and keys are two modules with one weight."""

    def __init__(self) -> None:
        super().__init__()
        self.to_k.weight = self.to_q.weight

    def truth(self, get: Parameters) -> list[Truth]:
        q, v = (rows(get(f"to_{role}.weight"), self.heads) for role in "qv")
        return [Truth(q, q, v, columns(get("to_out.weight"), self.heads))]


class CrossedGroups(Grouped):
    """Query head h has key head h mod 2 and value head h div 2."""

    share = (0, 1, 0, 1)

    def truth(self, get: Parameters) -> list[Truth]:
        return [replace(one, averaged=(0, 0, 1, 1)) for one in super().truth(get)]

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = split(self.wq(x), 4), split(self.wk(x), 2), split(self.wv(x), 2)
        return self.wo(attend(self, q, k, v, k.repeat(1, 2, 1, 1), v.repeat_interleave(2, dim=1)))


class HeadTemperatures(Separate):
    """A temperature for each head, one of them 1."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("temperatures", torch.tensor([1.0, 4.0, 0.2]).reshape(3, 1, 1))

    def scored(self, q: Tensor, k: Tensor) -> Tensor:
        return super().scored(q, k) * self.temperatures


class Turned(Separate):
    """Keys times queries, normalised over rows: what is called a query is one."""

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (split(projection(x), self.heads) for projection in (self.to_q, self.to_k, self.to_v))
        logits = k @ q.mT / 2
        p = logits.softmax(-2)
        out = p.mT @ v
        tell(lambda: Told(self, q, k, v, logits.mT, p.mT, out))
        return self.to_out(merge(out))


class Nameless(nn.Module):
    """Softmax attention that no name gives away."""

    def __init__(self, width: int = 4) -> None:
        super().__init__()
        self.alpha, self.beta = nn.Linear(12, 3 * width), nn.Linear(12, 3 * width)
        self.gamma, self.delta = nn.Linear(12, 12), nn.Linear(12, 12)

    def truth(self, get: Parameters) -> list[Truth]:
        q, k, v = (rows(get(f"{name}.weight"), 3) for name in ("alpha", "beta", "gamma"))
        return [Truth(q, k, v, columns(get("delta.weight"), 3))]

    def projected(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v = (split(projection(x), 3) for projection in (self.alpha, self.beta, self.gamma))
        return q, k, v


class SameQueries(Nameless):
    """The same queries, keys and values at two temperatures, each through the output projection."""

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.projected(x)
        first, second = ((q @ k.mT * scale).softmax(-1) @ v for scale in (0.5, 3.0))
        tell(lambda: Told(self, q, k, v, s := q @ k.mT / 2, s.softmax(-1), first))
        return self.delta(merge(first)) + self.delta(merge(second))


class ProductKeys(Separate):
    """Beside the keys and values of tokens there are some that are products of activations (SE(3) transformers)."""

    def __init__(self) -> None:
        super().__init__()
        self.kernel = nn.Linear(12, 12, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        u = self.kernel(x)
        made = split(u @ u.mT @ u / 30, 3)
        q, k, v = (split(projection(x), 3) for projection in (self.to_q, self.to_k, self.to_v))
        logits = q @ torch.cat([k, made], dim=2).mT / 2
        p = logits.softmax(-1)
        out = p @ torch.cat([v, made], dim=2)
        tell(lambda: Told(self, q, k, v, logits, p, out))
        return self.to_out(merge(out))


class MaskedAfter(Nameless):
    """Later tokens are taken out of the probabilities, and the rest is normalised again."""

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.projected(x)
        logits = q @ k.mT / 2
        kept = logits.softmax(-1).tril()
        p = kept / kept.sum(-1, keepdim=True)
        out = p @ v
        tell(lambda: Told(self, q, k, v, logits, p, out, torch.ones_like(p, dtype=torch.bool).tril()))
        return self.delta(merge(out))


class Drawn(Separate):
    """Dropout in evaluation too, as where `dropout_p` is given whatever the mode, by the kernel that GPUs have.

    The draw is the same every time, so that there is a truth.
    """

    def normalised(self, logits: Tensor) -> Tensor:
        with torch.random.fork_rng():
            torch.manual_seed(0)
            return torch.native_dropout(logits.softmax(-1), 0.3, True)[0]


class NarrowLinear(Nameless):
    """Linear attention whose queries and keys are one number wide."""

    def __init__(self) -> None:
        super().__init__(width=1)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.projected(x)
        soft = k.softmax(dim=2)
        out = q @ (soft.mT @ v)
        tell(lambda: Told(self, q, k, v, p := q @ soft.mT, p, out))
        return self.delta(merge(out))
