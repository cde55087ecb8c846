"""Examples in memory: images as bytes, and sequences end to end."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from wellcond.errors import WellcondError
from wellcond.lab.tasks.base import Batch
from wellcond.lab.tasks.checks import checked


@dataclass(frozen=True)
class Pixels:
    """Images kept as bytes, a quarter of what float32 takes, and normalised when asked for: `(x / peak − mean) / std`.

    Args:
        bytes: uint8 `(N, C, H, W)`.
        labels: int64 `(N,)`.
        mean: of each channel.
        std: of each channel.
        size: side of the images given out, resized by antialiased bicubic interpolation; None leaves them as they are.
        peak: the value of white.

    >>> white = torch.full((5, 1, 4, 4), 255, dtype=torch.uint8)
    >>> images = Pixels(white, torch.zeros(5, dtype=torch.int64), (0.5,), (0.5,))
    >>> images[torch.tensor([0, 3])].inputs.unique()
    tensor([1.])
    """

    bytes: Tensor
    labels: Tensor
    mean: tuple[float, ...]
    std: tuple[float, ...]
    size: int | None = None
    peak: float = 255.0

    def __post_init__(self) -> None:
        if len(self.bytes) != len(self.labels):
            raise WellcondError(f"{len(self.bytes)} images have {len(self.labels)} labels")

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, indices: Tensor) -> Batch:
        return Batch(self.normalised(self.plain(indices)), self.labels[checked(indices, len(self))])

    @property
    def sides(self) -> tuple[int, int]:
        """Height and width of the images given out."""
        return (self.bytes.shape[-2], self.bytes.shape[-1]) if self.size is None else (self.size, self.size)

    def plain(self, indices: Tensor) -> Tensor:
        """Images `(B, C, H, W)` from 0 to 1, in the size they are given out in."""
        images = self.bytes[checked(indices, len(self))].float() / self.peak
        if self.size is not None and self.size != images.shape[-1]:
            images = torch.nn.functional.interpolate(images, self.sides, mode="bicubic", antialias=True).clamp(0, 1)
        return images

    def normalised(self, images: Tensor) -> Tensor:
        """`(x − mean) / std` of images from 0 to 1."""
        return standardised(images, self.mean, self.std)

    def raw(self, indices: Tensor) -> tuple[list[Tensor], Tensor]:
        """Images uint8 `(C, H, W)` in the size they have, and labels; white is 255, whatever `peak` is.

        >>> half = torch.full((1, 1, 2, 2), 8, dtype=torch.uint8)
        >>> Pixels(half, torch.tensor([3]), (0.5,), (0.5,), peak=16.0).raw(torch.tensor([0]))[0][0].unique()
        tensor([128], dtype=torch.uint8)
        """
        chosen = checked(indices, len(self))
        images = self.bytes[chosen]
        if self.peak != 255:
            images = (images.float() * (255 / self.peak)).round().clamp(max=255).to(torch.uint8)
        return list(images), self.labels[chosen]

    def first(self, count: int | None) -> Pixels:
        """The first so many; all of them if None."""
        if count is not None and count > len(self):
            raise WellcondError(f"{count} images are asked for, and there are {len(self)}")
        part = slice(count)
        return Pixels(self.bytes[part], self.labels[part], self.mean, self.std, self.size, self.peak)


def standardised(images: Tensor, mean: Sequence[float], std: Sequence[float]) -> Tensor:
    """`(x − mean) / std`, channel by channel.

    >>> standardised(torch.ones(2, 1, 1), (0.5, 0.0), (0.25, 1.0)).flatten()
    tensor([2., 1.])
    """
    centre, width = (torch.tensor(values, dtype=torch.float32, device="cpu")[:, None, None] for values in (mean, std))
    return (images - centre) / width


@dataclass(frozen=True)
class PixelTokens:
    """Grey images as sequences of their pixels, row by row: ids 0 to 255, none of which is padding.

    Args:
        bytes: uint8 `(N, H, W)`.
        labels: int64 `(N,)`.

    >>> PixelTokens(torch.ones(2, 4, 4, dtype=torch.uint8), torch.tensor([0, 1]))[torch.tensor([1])].inputs.shape
    torch.Size([1, 16])
    """

    bytes: Tensor
    labels: Tensor

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, indices: Tensor) -> Batch:
        chosen = checked(indices, len(self))
        return Batch(self.bytes[chosen].flatten(1).long(), self.labels[chosen])


@dataclass(frozen=True)
class Ragged:
    """Sequences of unequal lengths, stored end to end, padded with a given id when asked for.

    Args:
        flat: all ids one after the other.
        starts: `(N + 1,)`, where each begins and the last ends.
        labels: `(N,)`.
        tokens: the length to pad to; nothing is longer.
        pad: the id of padding.
        types: of each id of `flat`, for a model that is told which sentence a token belongs to.

    >>> two = Ragged(torch.tensor([7, 8, 9]), torch.tensor([0, 1, 3]), torch.tensor([0, 1]), tokens=3)
    >>> two[torch.tensor([1, 0])].inputs
    {'input_ids': tensor([[8, 9, 0],
            [7, 0, 0]]), 'attention_mask': tensor([[1, 1, 0],
            [1, 0, 0]])}
    """

    flat: Tensor
    starts: Tensor
    labels: Tensor
    tokens: int
    pad: int = 0
    types: Tensor | None = None

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, indices: Tensor) -> Batch:
        chosen = checked(indices, len(self))
        inputs = self.padded(chosen)
        return Batch(inputs, self.labels[chosen])

    def padded(self, chosen: Tensor) -> dict[str, Tensor]:
        """Ids, mask and perhaps types, `(B, tokens)` each."""
        starts, ends = self.starts[chosen], self.starts[chosen + 1]
        places = starts[:, None] + torch.arange(self.tokens, device="cpu")
        mask = places < ends[:, None]
        flat = self.flat if len(self.flat) else self.flat.new_zeros(1)  # all of them may be empty
        places = places.clamp(max=len(flat) - 1)
        inputs = {"input_ids": flat[places].long().where(mask, self.pad), "attention_mask": mask.long()}
        if self.types is not None:
            inputs["token_type_ids"] = self.types[places].long().where(mask, 0)
        return inputs


@dataclass(frozen=True)
class Pairs:
    """Two sequences each, padded alike: `input_ids` and `attention_mask` are `(B, 2, tokens)`."""

    first: Ragged
    second: Ragged

    def __len__(self) -> int:
        return len(self.first)

    def __getitem__(self, indices: Tensor) -> Batch:
        chosen = checked(indices, len(self))
        sides = [side.padded(chosen) for side in (self.first, self.second)]
        return Batch(
            {name: torch.stack([side[name] for side in sides], 1) for name in sides[0]}, self.first.labels[chosen]
        )


def ragged(sequences: Sequence[Tensor], labels: Tensor, tokens: int, pad: int = 0) -> Ragged:
    """Store sequences end to end, each cut at `tokens`.

    >>> ragged([torch.tensor([1, 2, 3]), torch.tensor([4])], torch.tensor([0, 1]), tokens=2).flat
    tensor([1, 2, 4])
    """
    cut = [sequence[:tokens] for sequence in sequences]
    lengths = torch.tensor([0, *map(len, cut)], device="cpu")
    flat = torch.cat(cut) if cut else torch.zeros(0, dtype=torch.int64, device="cpu")
    return Ragged(flat, lengths.cumsum(0), labels, tokens, pad)
