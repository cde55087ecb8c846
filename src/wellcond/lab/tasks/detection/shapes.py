"""Drawn circles, squares and triangles to be found in an image: a small stand-in for COCO."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from wellcond._core.keyed_random import key, neutral
from wellcond.lab.tasks.base import Batch, Task
from wellcond.lab.tasks.checks import checked_indices, whole
from wellcond.lab.tasks.detection.coco_format import outline_mask, target_of
from wellcond.lab.tasks.registry import register_task

SHAPE_NAMES = {1: "circle", 2: "square", 3: "triangle"}
CORNERS = {1: 24, 2: 4, 3: 3}
MAX_OBJECTS = 4  # in an image


@register_task("shapes", "drawn circles, squares and triangles with boxes and masks, as in COCO")
def drawn_shapes(*, size: int = 64, train_images: int = 500, test_images: int = 100, seed: int = 0) -> Task:
    """One to four coloured objects on a noisy background, turned at random, none over another.

    Each image is drawn when it is asked for, from its own number and the seed.

    Args:
        size: side of the image.
        train_images: how many.
        test_images: how many.
        seed: of the drawing.

    >>> batch = drawn_shapes().train[[0]]
    >>> batch.inputs[0].shape, sorted(batch.targets[0])
    (torch.Size([3, 64, 64]), ['boxes', 'image_id', 'iscrowd', 'labels', 'masks'])
    """
    whole("size", size, least=16)
    whole("seed", seed, least=0)
    train = Shapes(whole("train_images", train_images), size, seed, "train")
    test = Shapes(whole("test_images", test_images), size, seed, "test")
    drawn = f"drawn circles, squares and triangles, {size} × {size} colour, seed {seed}"
    title = f"{drawn}: {train_images} to train on, {test_images} to test; class 0 is the background"
    shape = {"channels": 3, "size": size, "classes": len(SHAPE_NAMES) + 1}
    return Task("shapes", "detection", shape, train, test, "ap", title)


@dataclass(frozen=True)
class Shapes:
    """Drawn images by index; `image_id` is that index plus 1."""

    count: int
    size: int
    seed: int
    part: str

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, indices: Tensor) -> Batch:
        with neutral():
            drawn = [(number, *self.drawn(number)) for number in checked_indices(indices, self.count).tolist()]
        images = tuple(pixels.permute(2, 0, 1).float() / 255 for _, pixels, _ in drawn)
        return Batch(images, tuple(target_of(found, n + 1, self.size, self.size) for n, _, found in drawn))

    def drawn(self, number: int) -> tuple[Tensor, list[dict[str, Any]]]:
        """Draw pixels uint8 `(H, W, 3)`, and the objects as COCO annotates them."""
        source = torch.Generator().manual_seed(key(self.seed, "shapes", self.part, number))
        ground = 40 + 30 * torch.rand(self.size, self.size, 3, generator=source, dtype=torch.float32)
        pixels = ground.to(torch.uint8)
        discs: list[tuple[float, float, float]] = []
        found: list[dict[str, Any]] = []
        for _ in range(1 + int(torch.randint(MAX_OBJECTS, (1,), generator=source))):
            disc = self._free(discs, source)
            if disc is None:
                break
            discs.append(disc)
            label = 1 + int(torch.randint(len(SHAPE_NAMES), (1,), generator=source))
            turn, *colour = torch.rand(4, generator=source, dtype=torch.float64).tolist()
            outline = _outline(label, disc, turn)
            inside = outline_mask([outline], self.size, self.size)
            pixels[inside] = torch.tensor([int(110 + 145 * part) for part in colour], dtype=torch.uint8)
            found.append(_annotation(label, outline, id=number * MAX_OBJECTS + len(found) + 1, image_id=number + 1))
        return pixels, found

    def _free(
        self, discs: list[tuple[float, float, float]], source: torch.Generator
    ) -> tuple[float, float, float] | None:
        """Return centre and radius of a disc that touches no other; None if there is hardly any room left."""
        for across, down, large in torch.rand(50, 3, generator=source, dtype=torch.float64).tolist():
            radius = self.size * (0.08 + 0.12 * large)
            x, y = (radius + 1 + part * (self.size - 2 * radius - 3) for part in (across, down))
            if all(math.hypot(x - a, y - b) > radius + r + 2 for a, b, r in discs):
                return x, y, radius
        return None


def _outline(label: int, disc: tuple[float, float, float], turn: float) -> list[float]:
    x, y, radius = disc
    angles = [2 * math.pi * (turn + corner / CORNERS[label]) for corner in range(CORNERS[label])]
    corners = [(x + radius * math.cos(angle), y + radius * math.sin(angle)) for angle in angles]
    return [round(value, 2) for corner in corners for value in corner]  # as many digits as COCO has


def _annotation(label: int, outline: list[float], *, id: int, image_id: int) -> dict[str, Any]:
    xs, ys = outline[0::2], outline[1::2]
    left, top = min(xs), min(ys)
    shifted = zip(xs, ys, xs[1:] + xs[:1], ys[1:] + ys[:1], strict=True)
    area = abs(sum(x * next_y - next_x * y for x, y, next_x, next_y in shifted)) / 2
    box = [round(value, 2) for value in (left, top, max(xs) - left, max(ys) - top)]
    return {
        "id": id,
        "image_id": image_id,
        "category_id": label,
        "bbox": box,
        "area": round(area, 2),
        "iscrowd": 0,
        "segmentation": [outline],
    }
