"""Weights that are not the weights of an `nn.Linear`: banks, tensors of three dimensions, convolutions, sums."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.attention.strange.grouped import Fused, attend
from tests.attention.strange.separate import Separate
from tests.attention.strange.told import Parameters, Told, Truth, columns, merge, rows, split, tell


class Bank(nn.Module):
    """All layers' weights in one parameter at the root, `(L, 3D, D)`, and one for the outputs, `(L, D, D)`."""

    def __init__(self) -> None:
        super().__init__()
        self.qkvs = nn.Parameter(0.4 * torch.randn(2, 36, 12))
        self.outs = nn.Parameter(0.4 * torch.randn(2, 12, 12))

    def truth(self, get: Parameters) -> list[Truth]:
        found = []
        for layer in range(2):
            q, k, v = (rows(part, 3) for part in get("qkvs")[layer].chunk(3))
            found.append(Truth(q, k, v, columns(get("outs")[layer], 3)))
        return found

    def forward(self, x: Tensor) -> Tensor:
        for layer in range(2):
            normed = F.layer_norm(x, (12,))
            q, k, v = (split(y, 3) for y in F.linear(normed, self.qkvs[layer]).chunk(3, dim=-1))
            logits = q @ k.mT / 2
            p = logits.softmax(-1)
            out = p @ v
            tell(lambda l=layer, a=(q, k, v, logits, p, out): Told(self, *a, site=l))  # noqa: E741
            x = x + F.linear(merge(out), self.outs[layer])
        return x


class EinsumModelFirst(nn.Module):
    """Parameters `(D, H, d)` and `(H, d, D)`, all by einsum (flax, Haiku)."""

    equation = "bnx,xhd->bhnd"

    def __init__(self) -> None:
        super().__init__()
        self.w_q, self.w_k, self.w_v = (nn.Parameter(0.4 * torch.randn(12, 3, 4)) for _ in range(3))
        self.w_o = nn.Parameter(0.4 * torch.randn(3, 4, 12))

    def truth(self, get: Parameters) -> list[Truth]:
        q, k, v = (get(f"w_{role}").movedim(1, 0) for role in "qkv")
        return [Truth(q, k, v, get("w_o").mT)]

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (torch.einsum(self.equation, x, w) for w in (self.w_q, self.w_k, self.w_v))
        logits = torch.einsum("bhnd,bhtd->bhnt", q, k) / 2
        p = logits.softmax(-1)
        out = torch.einsum("bhnt,bhtd->bhnd", p, v)
        tell(lambda: Told(self, q, k, v, logits, p, out))
        return torch.einsum("bhnd,hdx->bnx", out, self.w_o)


class EinsumHeadsFirst(EinsumModelFirst):
    """Parameters `(H, D, d)`."""

    equation = "bnx,hxd->bhnd"

    def __init__(self) -> None:
        super().__init__()
        self.w_q, self.w_k, self.w_v = (nn.Parameter(0.4 * torch.randn(3, 12, 4)) for _ in range(3))

    def truth(self, get: Parameters) -> list[Truth]:
        return [Truth(get("w_q"), get("w_k"), get("w_v"), get("w_o").mT)]


class Transposed(nn.Module):
    """`x @ W + b` with W `(D, 3D)` (GPT-2)."""

    def __init__(self) -> None:
        super().__init__()
        self.c_attn = nn.Parameter(0.4 * torch.randn(12, 36))
        self.b_attn = nn.Parameter(0.4 * torch.randn(36))
        self.c_proj = nn.Parameter(0.4 * torch.randn(12, 12))

    def truth(self, get: Parameters) -> list[Truth]:
        q, k, v = (part.unflatten(1, (3, 4)).movedim(1, 0) for part in get("c_attn").chunk(3, dim=1))
        return [Truth(q, k, v, get("c_proj").unflatten(0, (3, 4)).mT)]

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (split(y, 3) for y in (x @ self.c_attn + self.b_attn).split(12, dim=2))
        return attend(self, q, k, v, k, v) @ self.c_proj


class Convolved(nn.Module):
    """1 × 1 convolutions on a grid, channels first; tokens in columns."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value, self.out = (nn.Conv2d(12, 12, 1) for _ in range(4))

    def truth(self, get: Parameters) -> list[Truth]:
        q, k, v = (rows(get(f"{role}.weight").flatten(1), 3) for role in ("query", "key", "value"))
        return [Truth(q, k, v, columns(get("out.weight").flatten(1), 3))]

    def forward(self, x: Tensor) -> Tensor:
        b, n, c = x.shape
        grid = x.mT.reshape(b, c, 2, n // 2)
        q, k, v = (f(grid).reshape(b, 3, 4, n) for f in (self.query, self.key, self.value))
        logits = q.mT @ k / 2
        p = logits.softmax(-1)
        out = v @ p.mT
        tell(lambda: Told(self, q.mT, k.mT, v.mT, logits, p, out.mT))
        return self.out(out.reshape(b, c, 2, n // 2)).flatten(2).mT


class NonLocal(nn.Module):
    """A non-local block: one head, narrower than the model, softmax over the second of two spatial axes."""

    def __init__(self) -> None:
        super().__init__()
        self.theta, self.phi, self.g = (nn.Conv1d(12, 6, 1) for _ in range(3))
        self.out = nn.Conv1d(6, 12, 1)

    def truth(self, get: Parameters) -> list[Truth]:
        q, k, v = (get(f"{name}.weight").flatten(1).mT[None] for name in ("theta", "phi", "g"))
        return [Truth(q, k, v, get("out.weight").flatten(1)[None])]

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (f(x.mT) for f in (self.theta, self.phi, self.g))
        logits = torch.bmm(q.mT, k)
        p = logits.softmax(dim=-1)
        out = torch.bmm(p, v.mT)
        tell(lambda: Told(self, *(y.mT[:, None] for y in (q, k, v)), logits[:, None], p[:, None], out[:, None]))
        return self.out(out.mT).mT


class Adapted(nn.Module):
    """A linear map and its low-rank adapter."""

    def __init__(self, base: nn.Linear) -> None:
        super().__init__()
        self.base = base
        self.lora_a, self.lora_b = nn.Linear(12, 2, bias=False), nn.Linear(2, 12, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + 2 * self.lora_b(self.lora_a(x))


class Lora(Separate):
    """Adapters on queries and values."""

    def __init__(self) -> None:
        super().__init__()
        self.to_q, self.to_v = Adapted(self.to_q), Adapted(self.to_v)

    def truth(self, get: Parameters) -> list[Truth]:
        names = {"q": "to_q.base", "k": "to_k", "v": "to_v.base"}
        q, k, v = (rows(get(f"{name}.weight"), 3) for name in names.values())
        return [Truth(q, k, v, columns(get("to_out.weight"), 3))]


class Gained(Fused):
    """A weight times a constant in the forward pass (equalised learning rate)."""

    def forward(self, x: Tensor) -> Tensor:
        z = F.linear(x, self.qkv.weight * 1.7, self.qkv.bias)
        q, k, v = (y.permute(2, 0, 3, 1) for y in self.cut(z.movedim(-1, 0)))
        return self.proj(attend(self, q, k, v, k, v))


class Standardised(Fused):
    """A weight that is standardised in the forward pass: what multiplies is not what is stored."""

    def forward(self, x: Tensor) -> Tensor:
        w = self.qkv.weight
        w = (w - w.mean(1, keepdim=True)) / w.std(1, keepdim=True)
        q, k, v = (y.permute(2, 0, 3, 1) for y in self.cut(F.linear(x, w, self.qkv.bias).movedim(-1, 0)))
        return self.proj(attend(self, q, k, v, k, v))
