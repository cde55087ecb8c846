"""`Batch`: the sizes that a configuration of transformers names, and the tensors that follow from them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

BATCH = 2
LENGTH = 7


def parts(config: Any) -> Iterator[Any]:
    """Yield a configuration and its parts, outer ones first."""
    queue = [config]
    while queue:
        one = queue.pop(0)
        yield one
        queue += [v for v in vars(one).values() if hasattr(v, "to_dict") and hasattr(v, "model_type")]


@dataclass
class Batch:
    """Sizes that a configuration names, and the tensors that follow from them."""

    config: Any
    generator: torch.Generator = field(default_factory=lambda: torch.Generator().manual_seed(1))

    def size(self, *names: str, otherwise: Any = None, of: str = "") -> Any:
        """Return the first of these fields that a part of the configuration has (a part whose name has `of` first)."""
        found = sorted(parts(self.config), key=lambda c: of not in type(c).__name__.lower())
        for one in found:
            for name in names:
                value = getattr(one, name, None)
                if value is not None and not isinstance(value, bool):
                    return value
        return otherwise

    def random(self, *shape: int) -> Tensor:
        return torch.randn(*shape, generator=self.generator)

    def integers(self, high: int, *shape: int, low: int = 0) -> Tensor:
        return torch.randint(low, max(high, low + 1), shape, generator=self.generator)

    def special(self) -> set[int]:
        """Return every token id that the configuration gives a meaning."""
        found: set[int] = set()
        for one in parts(self.config):
            for name, value in vars(one).items():
                if re.search(r"(token|patch|start|end)_?(id|index)s?$", name):
                    found |= {v for v in (value if isinstance(value, (list, tuple)) else [value]) if isinstance(v, int)}
        return found

    def ids(self, length: int = LENGTH) -> Tensor:
        """Draw tokens that are no placeholder."""
        size = min(int(self.size("vocab_size", of="text", otherwise=50)), 60)
        usable = torch.tensor([i for i in range(min(4, size - 1), size) if i not in self.special()] or [0])
        return usable[self.integers(len(usable), BATCH, length)]

    def image_shape(self) -> tuple[int, int, int]:
        channels = self.size("num_channels", "in_channels", "in_chans", "n_channels", of="vision", otherwise=3)
        side = self.size("image_size", "img_size", "pretrain_image_size", "input_size", of="vision", otherwise=64)
        height, width = (side, side) if isinstance(side, int) else (tuple(side)[-2:] if side else (64, 64))
        return channels if isinstance(channels, int) else 3, int(height), int(width)

    def image(self, *before: int) -> Tensor:
        return self.random(*before, *self.image_shape())

    def patch(self) -> int:
        size = self.size("patch_size", "spatial_patch_size", of="vision", otherwise=8)
        return size if isinstance(size, int) else int(size[-1])

    def patches(self, count: int) -> Tensor:
        """Flat patches of pictures, as the models with grids take them."""
        times = self.size("temporal_patch_size", of="vision", otherwise=1)
        return self.random(count, self.image_shape()[0] * int(times) * self.patch() ** 2)

    def sound(self) -> Tensor:
        """Mel features, `(batch, bins, time)` or transposed, by the model's convention."""
        bins = self.size(
            "num_mel_bins", "feature_size", "input_feat_per_channel", "input_dim", "n_mels", of="audio", otherwise=80
        )
        shape = (bins, self.frames()) if self.size("max_source_positions", of="audio") else (self.frames(), bins)
        return self.random(BATCH, *shape)

    def frames(self) -> int:
        return 2 * int(self.size("max_source_positions", of="audio", otherwise=32))
