"""Images in memory, as bytes, and the task of naming what they show."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from wellcond.errors import WellcondError
from wellcond.lab.tasks.base import Batch, Task
from wellcond.lab.tasks.checks import checked_indices, whole


class ImageExamples(ABC):
    """Images that can be augmented: each with a label, and normalised when asked for.

    Args:
        labels: int64 `(N,)`.
        mean: of each channel, on a scale from 0 to 1.
        std: of each channel.
    """

    labels: Tensor
    mean: tuple[float, ...]
    std: tuple[float, ...]

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, indices: Tensor) -> Batch:
        return Batch(self.normalised(self.plain(indices)), self.labels[checked_indices(indices, len(self))])

    def normalised(self, images: Tensor) -> Tensor:
        """Return `(x − mean) / std` of images from 0 to 1, channel by channel."""
        mean, std = (torch.tensor(x, dtype=torch.float32, device="cpu")[:, None, None] for x in (self.mean, self.std))
        return (images - mean) / std

    @property
    @abstractmethod
    def sides(self) -> tuple[int, int]:
        """Return height and width of the images given out."""

    @abstractmethod
    def plain(self, indices: Tensor) -> Tensor:
        """Return images float32 `(B, C, H, W)` from 0 to 1, in the size they are given out in."""

    @abstractmethod
    def raw(self, indices: Tensor) -> tuple[list[Tensor], Tensor]:
        """Return images uint8 `(C, H, W)` from 0 to 255, each in the size it has, and labels."""


@dataclass(frozen=True)
class PixelExamples(ImageExamples):
    """Images kept as bytes, a quarter of what float32 takes, and normalised when asked for: `(x / peak − mean) / std`.

    Args:
        bytes: uint8 `(N, C, H, W)`.
        labels: int64 `(N,)`.
        mean: of each channel.
        std: of each channel.
        size: side of the images given out, resized by antialiased bicubic interpolation; None leaves them as they are.
        peak: the value of white.

    >>> white = torch.full((5, 1, 4, 4), 255, dtype=torch.uint8)
    >>> images = PixelExamples(white, torch.zeros(5, dtype=torch.int64), (0.5,), (0.5,))
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

    @property
    def sides(self) -> tuple[int, int]:
        """Return height and width of the images given out."""
        return (self.bytes.shape[-2], self.bytes.shape[-1]) if self.size is None else (self.size, self.size)

    def plain(self, indices: Tensor) -> Tensor:
        """Return images `(B, C, H, W)` from 0 to 1, in the size they are given out in."""
        images = self.bytes[checked_indices(indices, len(self))].float() / self.peak
        if self.size is not None and self.size != images.shape[-1]:
            images = torch.nn.functional.interpolate(images, self.sides, mode="bicubic", antialias=True).clamp(0, 1)
        return images

    def raw(self, indices: Tensor) -> tuple[list[Tensor], Tensor]:
        """Return images uint8 `(C, H, W)` in the size they have, and labels; white is 255, whatever `peak` is.

        >>> half = torch.full((1, 1, 2, 2), 8, dtype=torch.uint8)
        >>> PixelExamples(half, torch.tensor([3]), (0.5,), (0.5,), peak=16.0).raw(torch.tensor([0]))[0][0].unique()
        tensor([128], dtype=torch.uint8)
        """
        chosen = checked_indices(indices, len(self))
        images = self.bytes[chosen]
        if self.peak != 255:
            images = (images.float() * (255 / self.peak)).round().clamp(max=255).to(torch.uint8)
        return list(images), self.labels[chosen]

    def first(self, count: int | None) -> PixelExamples:
        """Return the first so many; all of them if None."""
        if count is not None and count > len(self):
            raise WellcondError(f"{count} images are asked for, and there are {len(self)}")
        return replace(self, bytes=self.bytes[:count], labels=self.labels[:count])


def resized(size: int, own: int) -> int | None:
    """Return the size that images of a side are to be resized to; None if they have it."""
    return None if whole("size", size) == own else size


def image_task(
    name: str, title: str, train: ImageExamples, test: ImageExamples, *, channels: int, classes: int
) -> Task:
    """Return a task of images to classes, judged by accuracy."""
    size, colour = train.sides[0], "grey" if channels == 1 else "colour"
    counted = f"{classes} classes: {len(train)} to train on, {len(test)} to test"
    shape = {"channels": channels, "size": size, "classes": classes}
    return Task(name, "image", shape, train, test, "accuracy", f"{title}, {size} × {size} {colour}, {counted}")


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
        chosen = checked_indices(indices, len(self))
        return Batch(self.bytes[chosen].flatten(1).long(), self.labels[chosen])
