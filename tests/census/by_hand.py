"""Attention written out by hand, and claims about it that share no code with the library."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

WIDTH, HEADS, GROUPS, HEAD = 12, 4, 2, 3


class Router(nn.Module):
    """A softmax that chooses among three maps, and no attention."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.maps = nn.Linear(8, 3), nn.ModuleList(nn.Linear(8, 8) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        weight = self.gate(x).softmax(-1)
        return torch.stack([one(x) * weight[..., i, None] for i, one in enumerate(self.maps)]).sum(0)


class Exponentials(nn.Module):
    """Attention without the word softmax: exponentials divided by their sum."""

    def __init__(self) -> None:
        super().__init__()
        self.mix = nn.Linear(12, 36)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.mix(x).unflatten(-1, (3, 3, 4)).permute(2, 0, 3, 1, 4)
        scores = torch.einsum("bhid,bhjd->bhij", q, k).sub(1).exp()
        return torch.einsum("bhij,bhjd->bihd", scores / scores.sum(-1, keepdim=True), v).flatten(2)


class Strided(nn.Module):
    """Grouped attention in which query head h reads key head h mod G, with a sink and scores cut into windows.

    The product is `(batch · windows, heads, t, t)`, the softmax `(batch, windows, heads, t, t + 1)`.
    """

    def __init__(self, *, groups: int = GROUPS, norm: bool = False) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(WIDTH, h * HEAD, bias=False) for h in (HEADS, groups, groups))
        self.o = nn.Linear(HEADS * HEAD, WIDTH)
        self.norm = nn.RMSNorm(HEADS * HEAD) if norm else nn.Identity()
        self.sink = nn.Parameter(torch.randn(HEADS))

    def forward(self, x: Tensor) -> Tensor:
        batch, tokens, _ = x.shape
        x = x.reshape(batch * 2, tokens // 2, WIDTH)
        q, k, v = (m(x).unflatten(-1, (-1, HEAD)).transpose(1, 2) for m in (self.q, self.k, self.v))
        k, v = (t.repeat(1, HEADS // t.shape[1], 1, 1) for t in (k, v))
        scores = (q @ k.mT).unflatten(0, (batch, 2))
        sink = self.sink.view(HEADS, 1, 1).expand(*scores.shape[:-1], 1)
        weights = torch.cat([scores, sink], -1).softmax(-1)[..., :-1].flatten(0, 1)
        return self.o(self.norm((weights @ v).transpose(1, 2).flatten(2))).reshape(batch, tokens, WIDTH)


class Two(nn.Module):
    """Two attentions of one module, the second on the result of the first, and both of one key."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.key = (
            nn.Linear(WIDTH, 2 * WIDTH),
            nn.Linear(WIDTH, 2 * WIDTH),
            nn.Linear(WIDTH, WIDTH),
        )

    def forward(self, x: Tensor) -> Tensor:
        k = self.key(x)
        for both in (self.first, self.second):
            q, v = both(x).chunk(2, -1)
            x = x + (q @ k.mT).softmax(-1) @ v
        return x


class Apart(nn.Module):
    """Attention of learned tokens, which start at zero, to the input, with the output projection outside its module."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.o = Inner(), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return self.o(self.inner(torch.zeros_like(x), x))


class Inner(nn.Module):
    """Two heads whose values are of the tokens that start at zero."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(WIDTH, WIDTH) for _ in range(3))

    def forward(self, zeros: Tensor, x: Tensor) -> Tensor:
        q, k, v = (m(t).unflatten(-1, (2, -1)).transpose(1, 2) for m, t in ((self.q, x), (self.k, x), (self.v, zeros)))
        return nn.functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)


class Factorised(nn.Module):
    """Keys alone are normalised; a query meets their mixture with the values afterwards."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v, self.unused = (nn.Linear(WIDTH, WIDTH) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (m(x).unflatten(-1, (2, -1)).transpose(1, 2) for m in (self.q, self.k, self.v))
        return (q @ (k.softmax(-2).mT @ v)).transpose(1, 2).flatten(2)


@dataclass
class Rows:
    """A view of rows of a matrix as heads, `(heads, D, d)`."""

    weight: Tensor
    rows: list[list[int]]
    columns: bool = False  # of an output projection

    def read(self) -> Tensor:
        matrix = self.weight.detach().T if self.columns else self.weight.detach()
        return torch.stack([matrix[rows].T.clone() for rows in self.rows])

    @torch.no_grad()
    def write_(self, new: Tensor) -> None:
        matrix = self.weight.detach().T if self.columns else self.weight.detach()
        for rows, head in zip(self.rows, new, strict=True):
            matrix[rows] = head.T


@dataclass
class Claim:
    """What somebody says about the attention of a module."""

    query: Rows
    key: Rows
    value: Rows
    output: Rows | None = None
    name: str = ""


def blocks(*heads: int, width: int = HEAD, shift: int = 0) -> list[list[int]]:
    """Return the rows of some heads that lie one after the other."""
    return [[h * width + shift + i for i in range(width)] for h in heads]


def strided_claim(model: Strided, **other: Any) -> Claim:
    """Return the true view of `Strided`, query heads that share a key next to each other, with some of it changed."""
    order = (0, 2, 1, 3)
    true = {
        "query": Rows(model.q.weight, blocks(*order)),
        "key": Rows(model.k.weight, blocks(0, 1)),
        "value": Rows(model.v.weight, blocks(0, 1)),
        "output": Rows(model.o.weight, blocks(*order), columns=True),
    }
    return Claim(**(true | other))
