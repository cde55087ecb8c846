"""Random numbers keyed by `(seed, layer name, role, head)`.

Each head has a generator of its own, so a draw does not depend on which layers are initialised, in which order, on
which device or by how many processes, and the global generator is never touched.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

WHOLE_PROJECTION = -1  # the "head" of a draw that belongs to a whole projection


@contextmanager
def neutral() -> Iterator[None]:
    """Draw and measure on the CPU in float32, whatever the user's default device, default dtype and autocast are."""
    dtype = torch.get_default_dtype()
    torch.set_default_dtype(torch.float32)
    # A device context intercepts every call, so it is entered only where it changes something.
    device = nullcontext() if torch.get_default_device().type == "cpu" else torch.device("cpu")
    try:
        with device, torch.autocast("cpu", enabled=False):
            yield
    finally:
        torch.set_default_dtype(dtype)


def key(*parts: object) -> int:
    """Hash a key to a 63-bit seed.

    >>> key(0, "blocks.0.attn", "query", 3) != key(0, "blocks.0.attn", "query", 4)
    True
    """
    digest = hashlib.blake2b("\x1f".join(map(str, parts)).encode(errors="surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


@dataclass(frozen=True)
class Draw:
    """The random numbers of one layer.

    >>> a = Draw(0, "blocks.0.attn").normal("query", 2, 5, 3)
    >>> a.shape
    torch.Size([2, 5, 3])
    >>> torch.equal(a[1], Draw(0, "blocks.0.attn").normal("query", 4, 5, 3)[1])      # head 1 is head 1
    True
    """

    seed: int  # the user's seed
    scope: str  # canonical path of the layer (or block)

    def generator(self, role: str, head: int = WHOLE_PROJECTION) -> torch.Generator:
        """Return a fresh generator for one role and head."""
        return torch.Generator().manual_seed(key(self.seed, self.scope, role, head))

    def normal(self, role: str, heads: int, rows: int, columns: int, first: int = 0) -> Tensor:
        """Standard normal `(heads, rows, columns)` in float32, for heads `first, first + 1, …`."""
        return self._drawn(Tensor.normal_, role, (heads, rows, columns), first)

    def uniform(self, role: str, heads: int, rows: int, columns: int, first: int = 0) -> Tensor:
        """Uniform on [−1, 1), `(heads, rows, columns)`."""
        return self._drawn(partial(nn.init.uniform_, a=-1.0, b=1.0), role, (heads, rows, columns), first)

    def truncated(self, role: str, heads: int, rows: int, columns: int, std: float, cut: float) -> Tensor:
        """Normal of standard deviation `std` cut at ±`cut`."""
        fill = partial(nn.init.trunc_normal_, std=std, a=-cut, b=cut)
        return self._drawn(fill, role, (heads, rows, columns))

    def _drawn(self, fill: Callable[..., object], role: str, shape: tuple[int, int, int], first: int = 0) -> Tensor:
        heads, rows, columns = shape
        buffer = torch.empty(heads, columns, rows)  # the storage order of nn.Linear: writing needs no transposition
        for head, slot in enumerate(buffer):
            fill(slot, generator=self.generator(role, first + head))
        return buffer.mT
