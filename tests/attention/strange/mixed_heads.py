"""Gates on the output, heads that talk to each other, and two softmaxes for one output."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.attention.strange.separate import Causal, Separate
from tests.attention.strange.told import Parameters, Told, Truth, columns, merge, rows, split, tell


class Gated(Separate):
    """A sigmoid of a projection times the output, channel by channel."""

    def __init__(self) -> None:
        super().__init__()
        self.to_gate = nn.Linear(12, 12)

    def finished(self, out: Tensor, x: Tensor) -> Tensor:
        return self.to_out(merge(out) * self.to_gate(x).sigmoid())


class GatedHeads(Separate):
    """One gate for each head."""

    def __init__(self) -> None:
        super().__init__()
        self.head_gate = nn.Linear(12, 3)

    def finished(self, out: Tensor, x: Tensor) -> Tensor:
        return self.to_out(merge(out * self.head_gate(x).sigmoid().transpose(1, 2)[..., None]))


class GateInQuery(nn.Module):
    """The query projection is twice as wide: each head's queries, then its gate (Qwen3-Next)."""

    def __init__(self) -> None:
        super().__init__()
        self.q_proj, self.o_proj = nn.Linear(12, 24, bias=False), nn.Linear(12, 12, bias=False)
        self.k_proj, self.v_proj = nn.Linear(12, 12, bias=False), nn.Linear(12, 12, bias=False)
        self.num_heads, self.head_dim = 3, 4

    def truth(self, get: Parameters) -> list[Truth]:
        query = get("q_proj.weight").reshape(3, 2, 4, 12)[:, 0].mT
        return [
            Truth(query, rows(get("k_proj.weight"), 3), rows(get("v_proj.weight"), 3), columns(get("o_proj.weight"), 3))
        ]

    def forward(self, hidden: Tensor) -> Tensor:
        q, gate = self.q_proj(hidden).unflatten(-1, (3, 8)).chunk(2, dim=-1)
        q, k, v = q.transpose(1, 2), split(self.k_proj(hidden), 3), split(self.v_proj(hidden), 3)
        logits = q @ k.mT / 2
        p = logits.softmax(-1)
        out = p @ v
        tell(lambda: Told(self, q, k, v, logits, p, out))
        return self.o_proj(merge(out) * gate.flatten(2).sigmoid())


class TalkingBefore(Causal):
    """Heads are mixed before the softmax, by an einsum."""

    def __init__(self) -> None:
        super().__init__()
        self.talk = nn.Parameter(torch.eye(3) + 0.3 * torch.randn(3, 3))

    def scored(self, q: Tensor, k: Tensor) -> Tensor:
        return torch.einsum("bhij,hg->bgij", super().scored(q, k), self.talk)


class TalkingAfter(Separate):
    """Heads are mixed after the softmax, by a 1 × 1 convolution."""

    def __init__(self) -> None:
        super().__init__()
        self.talk = nn.Conv2d(3, 3, 1, bias=False)

    def mixed(self, p: Tensor, v: Tensor) -> Tensor:
        return self.talk(p) @ v


class TalkingBoth(Separate):
    """Both, as a linear map over the axis of heads (CaiT)."""

    def __init__(self) -> None:
        super().__init__()
        self.proj_l, self.proj_w = nn.Linear(3, 3), nn.Linear(3, 3)

    def scored(self, q: Tensor, k: Tensor) -> Tensor:
        return self.proj_l(super().scored(q, k).permute(0, 2, 3, 1)).permute(0, 3, 1, 2)

    def mixed(self, p: Tensor, v: Tensor) -> Tensor:
        return self.proj_w(p.permute(0, 2, 3, 1)).permute(0, 3, 1, 2) @ v


class Differential(nn.Module):
    """The difference of two softmaxes averages one value (Differential Transformer): two sites, one value."""

    def __init__(self) -> None:
        super().__init__()
        self.q_proj, self.k_proj = nn.Linear(12, 12, bias=False), nn.Linear(12, 12, bias=False)
        self.v_proj, self.out_proj = nn.Linear(12, 12, bias=False), nn.Linear(12, 12, bias=False)
        self.factor = nn.Parameter(torch.tensor(0.4))
        self.num_heads = 3

    def truth(self, get: Parameters) -> list[Truth]:
        value, output = rows(get("v_proj.weight"), 3), columns(get("out_proj.weight"), 3)
        q, k = (get(f"{role}_proj.weight").reshape(3, 2, 2, 12).mT for role in "qk")
        return [Truth(q[:, part], k[:, part], value, output) for part in range(2)]

    def forward(self, x: Tensor) -> Tensor:
        v = split(self.v_proj(x), 3)
        q, k = (f(x).unflatten(-1, (3, 2, 2)).permute(3, 0, 2, 1, 4) for f in (self.q_proj, self.k_proj))
        logits = q @ k.mT * 2**-0.5
        p = logits.softmax(-1)
        out = (p[0] - self.factor * p[1]) @ v
        for part in range(2):
            tell(lambda part=part: Told(self, q[part], k[part], v, logits[part], p[part], out, site=part))
        return self.out_proj(merge(out))


class Recurrent(Separate):
    """Two steps of attention with the first step's output as the queries of the second."""

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (split(projection(x), self.heads) for projection in (self.to_q, self.to_k, self.to_v))
        logits = self.scored(q, k)
        p = logits.softmax(-1)
        out = p @ v
        tell(lambda: Told(self, q, k, v, logits, p, out))
        again = F.scaled_dot_product_attention(out, k, v)
        return self.to_out(merge(again))


class DeadAttention(Separate):
    """Computes attention and throws it away: what `to_out` reads are the values themselves."""

    def truth(self, get: Parameters) -> list[Truth]:
        (found,) = super().truth(get)
        return [Truth(found.query, found.key, found.value)]

    def finished(self, out: Tensor, x: Tensor) -> Tensor:
        return self.to_out(self.to_v(x))


class Unnormalised(Separate):
    """Scores of tokens with tokens that nothing normalises."""

    def normalised(self, logits: Tensor) -> Tensor:
        return logits / logits.shape[-1]


class HeadsFastest(Separate):
    """Separate heads as everybody has them, but merged with the heads varying fastest before the output, and gated."""

    def truth(self, get: Parameters) -> list[Truth]:
        (found,) = super().truth(get)
        return [Truth(found.query, found.key, found.value, get("to_out.weight").unflatten(1, (4, 3)).movedim(2, 0))]

    def finished(self, out: Tensor, x: Tensor) -> Tensor:
        return self.to_out(out.permute(0, 2, 3, 1).flatten(2) * x.sigmoid())
