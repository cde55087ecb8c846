"""Attention in windows: rolled, padded, and with positions that depend on the place in a window."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.attention.strange.told import Parameters, Told, Truth, columns, merge, rows, tell

SIZE = 2  # of a window


class Windows(nn.Module):
    """Windows of 2 × 2 on a grid of 4 × 4 tokens, rolled by one place; a mask keeps strangers apart (Swin)."""

    shift = 1

    def __init__(self) -> None:
        super().__init__()
        self.num_heads = 3
        self.qkv, self.proj = nn.Linear(12, 36), nn.Linear(12, 12)
        self.table = nn.Parameter(torch.randn((2 * SIZE - 1) ** 2, 3))
        place = torch.stack(torch.meshgrid(torch.arange(SIZE), torch.arange(SIZE), indexing="ij")).flatten(1)
        apart = place[:, :, None] - place[:, None] + SIZE - 1
        self.register_buffer("index", apart[0] * (2 * SIZE - 1) + apart[1], persistent=False)

    def truth(self, get: Parameters) -> list[Truth]:
        q, k, v = (rows(part, 3) for part in get("qkv.weight").chunk(3))
        return [Truth(q, k, v, columns(get("proj.weight"), 3))]

    def cut(self, x: Tensor) -> Tensor:
        """`(B, 4, 4, C)` to `(B · windows, 4, C)`."""
        b, h, w, c = x.shape
        x = x.view(b, h // SIZE, SIZE, w // SIZE, SIZE, c)
        return x.permute(0, 1, 3, 2, 4, 5).reshape(-1, SIZE * SIZE, c)

    def joined(self, x: Tensor, h: int, w: int) -> Tensor:
        x = x.view(-1, h // SIZE, w // SIZE, SIZE, SIZE, x.shape[-1])
        return x.permute(0, 1, 3, 2, 4, 5).reshape(-1, h, w, x.shape[-1])

    def mask(self, h: int, w: int) -> Tensor:
        """−100 between tokens that were not neighbours before the roll, `(windows, 4, 4)`."""
        parts = torch.zeros(1, h, w, 1)
        cuts = (slice(0, -SIZE), slice(-SIZE, -self.shift), slice(-self.shift, None))
        for number, (rows_, columns_) in enumerate((r, c) for r in cuts for c in cuts):
            parts[:, rows_, columns_] = number
        parts = self.cut(parts)[..., 0]
        return torch.where(parts[:, None] == parts[..., None], 0.0, -100.0)

    def attend(self, x: Tensor, mask: Tensor | None) -> Tensor:
        """Windows `(B · windows, 4, C)` to the same."""
        q, k, v = self.qkv(x).unflatten(-1, (3, 3, 4)).permute(2, 0, 3, 1, 4)
        logits = (q * 0.5) @ k.transpose(-2, -1) + self.table[self.index].permute(2, 0, 1)
        if mask is not None:
            logits = (logits.unflatten(0, (-1, len(mask))) + mask[:, None].to(x)).flatten(0, 1)
        p = logits.softmax(-1)
        out = p @ v
        seen = None if mask is None else (mask >= 0).repeat(len(x) // len(mask), 1, 1)[:, None]
        tell(lambda: Told(self, q, k, v, logits, p, out, seen))
        return self.proj(merge(out))

    def forward(self, x: Tensor) -> Tensor:
        b, n, c = x.shape
        grid = x.view(b, 4, n // 4, c)
        if self.shift:
            grid = torch.roll(grid, (-self.shift, -self.shift), (1, 2))
        mixed = self.attend(self.cut(grid), self.mask(4, n // 4) if self.shift else None)
        grid = self.joined(mixed, 4, n // 4)
        if self.shift:
            grid = torch.roll(grid, (self.shift, self.shift), (1, 2))
        return grid.reshape(b, n, c)


class StillWindows(Windows):
    shift = 0


class PaddedWindows(Windows):
    """A grid of 3 × 5 padded to 4 × 6 with zeros, which attend as well and are cut off (SAM)."""

    def forward(self, x: Tensor) -> Tensor:
        b, _, c = x.shape
        grid = F.pad(x.view(b, 3, 5, c), (0, 0, 0, 1, 0, 1))
        grid = self.joined(self.attend(self.cut(grid), None), 4, 6)
        return grid[:, :3, :5].reshape(b, 15, c)


class Neighbours(nn.Module):
    """Each token sees the three around it: keys and values are unfolded, windows overlap."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v, self.out = (nn.Linear(12, 12) for _ in range(4))

    def truth(self, get: Parameters) -> list[Truth]:
        q, k, v = (rows(get(f"{role}.weight"), 3) for role in "qkv")
        return [Truth(q, k, v, columns(get("out.weight"), 3))]

    def forward(self, x: Tensor) -> Tensor:
        b, n, _ = x.shape
        q = self.q(x).view(b, n, 3, 1, 4)
        k, v = (F.pad(f(x), (0, 0, 1, 1)).unfold(1, 3, 1).view(b, n, 3, 4, 3) for f in (self.k, self.v))
        logits = (q @ k / 2).masked_fill(self.outside(n)[:, None, None], float("-inf"))
        p = logits.softmax(-1)
        out = p @ v.mT
        tell(lambda: self._told(x, q, p, logits, out))
        return self.out(out.flatten(2))

    def outside(self, n: int) -> Tensor:
        place = torch.arange(n)[:, None] + torch.arange(-1, 2)
        return (place < 0) | (place >= n)

    def _told(self, x: Tensor, q: Tensor, p: Tensor, logits: Tensor, out: Tensor) -> Told:
        """The same as one sequence whose tokens see their neighbours."""
        b, n, _ = x.shape
        k, v = (f(x).view(b, n, 3, 4).transpose(1, 2) for f in (self.k, self.v))
        whole_p = torch.zeros(b, 3, n, n + 2, dtype=x.dtype)
        whole_l = torch.full((b, 3, n, n + 2), float("-inf"), dtype=x.dtype)
        for i in range(n):
            whole_p[:, :, i, i : i + 3] = p[:, i, :, 0]
            whole_l[:, :, i, i : i + 3] = logits[:, i, :, 0]
        whole_p, whole_l = whole_p[..., 1:-1], whole_l[..., 1:-1]
        near = (torch.arange(n)[:, None] - torch.arange(n)).abs() <= 1
        return Told(self, q[:, :, :, 0].transpose(1, 2), k, v, whole_l, whole_p, out[..., 0, :].transpose(1, 2), near)
