"""One attention of a pass that is computed in several products, as its own replay."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from wellcond.attention.recorded.describe import Described
from wellcond.attention.recorded.own_replay import OwnReplay


class JoinedReplay:
    """Products of the same queries, keys and values, one for each image or block of queries, one after the other.

    All tokens of the batch are one sequence.

    Args:
        sites: the products, with their views.
        dtype: to compute in; as the model does if None.
    """

    def __init__(self, sites: Sequence[Described], dtype: torch.dtype | None = None) -> None:
        self.sites, self.dtype = sites, dtype
        self.parts = [OwnReplay(site, dtype, joint=True) for site in sites]

    def to(self, dtype: torch.dtype) -> JoinedReplay:
        """Return the same in another precision."""
        return JoinedReplay(self.sites, dtype)

    @property
    def tokens(self) -> dict[str, Tensor]:
        """What each role reads, `(1, N, D)`."""
        return self.parts[0].tokens

    def recorded(self) -> Tensor:
        """What the pass itself mixed, `(1, H, N, d_v)`."""
        return torch.cat([part.recorded() for part in self.parts], 2)

    def weights(self, roles: Mapping[str, Tensor]) -> Tensor:
        """What the values are averaged by, flat, with other numbers for some roles."""
        return torch.cat([part.weights(roles).flatten() for part in self.parts])

    def __call__(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Mix the values: `(1, H, N, d_v)`."""
        return torch.cat([part(q, k, v) for part in self.parts], 2)
