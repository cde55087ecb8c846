"""Fake scenes in COCO's format: polygons in pictures."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from wellcond.lab.tasks.checks import library
from wellcond.lab.tasks.detection.coco_format import write_instances
from wellcond.reproduce.fake_data import new_file

UNUSED_IDS = (12, 26, 29, 30, 45, 66, 68, 69, 71, 83)  # ids up to 90 that none of COCO's 80 categories has
CATEGORIES = {id: f"object {id}" for id in range(1, 91) if id not in UNUSED_IDS}
IMAGE_SIZES = ((96, 128), (128, 96))  # height and width, in turn
OBJECTS_PER_IMAGE = 3  # in an image
PARTS = (("train", "train2017", 12), ("test", "val2017", 6))  # option, its default, how many


def write_coco(folder: Path, options: Mapping[str, Any], draw: np.random.Generator) -> None:
    """`train2017/`, `val2017/` and `annotations/instances_….json`: polygons on grey noise, coloured by their category.

    T.-Y. Lin et al., arXiv 1405.0312. There are the 80 ids of COCO from 1 to 90. The first image of each part has a
    crowd, given as runs, and the last has no object: both occur in COCO. Options `train` and `test` name the parts.
    """
    for option, usual, count in PARTS:
        part = str(options.get(option, usual))
        images, annotations = [], []
        for number in range(count):
            height, width = IMAGE_SIZES[number % 2]
            image = {"id": 1000 + 7 * number, "file_name": f"{1000 + 7 * number:012d}.jpg"}
            images.append({**image, "height": height, "width": width})
            found = [_object(draw, height, width) for _ in range(OBJECTS_PER_IMAGE if number < count - 1 else 0)]
            _draw(folder / part / str(image["file_name"]), found, height, width, draw)
            found += [_crowd(height, width)] if number == 0 else []
            annotations += [{"image_id": image["id"], **each} for each in found]
        numbered = [{"id": id, **each} for id, each in enumerate(annotations, start=1)]
        write_instances(new_file(folder / "annotations" / f"instances_{part}.json"), images, numbered, CATEGORIES)


def _object(draw: np.random.Generator, height: int, width: int) -> dict[str, Any]:
    """A convex polygon of five corners on an ellipse inside of the image."""
    radii = draw.uniform(8, min(height, width) / 3, size=2)
    centre = draw.uniform(radii, np.array([width, height]) - radii)
    angles = 2 * np.pi * (np.arange(5) + draw.uniform(0, 0.5, size=5)) / 5
    corners = np.round(centre + radii * np.stack([np.cos(angles), np.sin(angles)], 1), 2)
    x, y = corners.T
    low, high = corners.min(0), corners.max(0)
    return {
        "category_id": int(draw.choice(list(CATEGORIES))),
        "segmentation": [corners.flatten().tolist()],
        "area": float(abs(x @ np.roll(y, -1) - y @ np.roll(x, -1)) / 2),
        "bbox": [*low.tolist(), *np.round(high - low, 2).tolist()],
        "iscrowd": 0,
    }


def _crowd(height: int, width: int) -> dict[str, Any]:
    """The right half of an image, column by column: so many pixels that are not in it, so many that are."""
    left = width // 2
    return {
        "category_id": 1,
        "segmentation": {"counts": [height * left, height * (width - left)], "size": [height, width]},
        "area": float(height * (width - left)),
        "bbox": [float(left), 0.0, float(width - left), float(height)],
        "iscrowd": 1,
    }


def _draw(path: Path, objects: list[dict[str, Any]], height: int, width: int, draw: np.random.Generator) -> None:
    pixels = draw.integers(100, 156, size=(height, width, 3)).astype(np.uint8)
    image = library("PIL.Image", "timm").fromarray(pixels)
    canvas = library("PIL.ImageDraw", "timm").Draw(image)
    for each in objects:
        id = each["category_id"]
        # Coprime multipliers: no two categories have the same colour.
        canvas.polygon(each["segmentation"][0], fill=(id * 37 % 256, id * 91 % 256, id * 151 % 256))
    image.save(new_file(path), format="JPEG", quality=90)
