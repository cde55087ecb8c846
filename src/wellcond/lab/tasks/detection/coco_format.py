"""COCO's format: a folder of images, and a JSON file of objects with their boxes and outlines."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from wellcond._core.atomic import write_text
from wellcond._core.json_files import read_json
from wellcond.errors import WellcondError

Outline = Sequence[float]  # x and y in turn, in pixels


def outline_mask(outlines: Iterable[Outline], height: int, width: int) -> Tensor:
    """Return the pixels whose centre is inside of a polygon, bool `(H, W)`; pixel i reaches from i to i + 1.

    Row by row: each edge that the row crosses toggles all pixels to its right.

    >>> outline_mask([[1, 1, 3, 1, 3, 2, 1, 2]], height=3, width=4).int()[1]
    tensor([0, 1, 1, 0], dtype=torch.int32)
    """
    inside = np.zeros((height, width), dtype=bool)
    rows = np.arange(height) + 0.5
    for outline in outlines:
        if len(outline) < 6 or len(outline) % 2:
            raise WellcondError(
                f"a polygon has {len(outline)} numbers, not 2 for each of 3 or more corners: it is damaged"
            )
        x, y = np.asarray(outline, dtype=np.float64).reshape(-1, 2).T
        next_x, next_y = np.roll(x, -1), np.roll(y, -1)
        row, edge = np.nonzero((y <= rows[:, None]) != (next_y <= rows[:, None]))
        part = (rows[row] - y[edge]) / (next_y - y)[edge]
        first = np.ceil(x[edge] + part * (next_x - x)[edge] - 0.5).clip(0, width).astype(int)
        toggles = np.zeros((height, width + 1), dtype=int)
        np.add.at(toggles, (row, first), 1)
        inside |= toggles.cumsum(1)[:, :-1] % 2 == 1
    return torch.from_numpy(inside)


def run_mask(counts: Sequence[int], height: int, width: int) -> Tensor:
    """Return the mask, bool `(H, W)`, of COCO's uncompressed runs: of zeros and ones in turn, column by column.

    >>> run_mask([1, 2, 1], height=2, width=2)
    tensor([[False,  True],
            [ True, False]])
    """
    bits = np.repeat(np.arange(len(counts)) % 2 == 1, counts)
    if len(bits) != height * width:
        raise WellcondError(f"a mask of {len(bits)} pixels belongs to an image of {height} × {width}: it is damaged")
    return torch.from_numpy(bits.reshape(width, height).T.copy())


def mask_of(annotation: Mapping[str, Any], height: int, width: int) -> Tensor:
    """Return the mask of an annotation, from polygons or uncompressed runs."""
    outlines = annotation["segmentation"]
    if isinstance(outlines, Mapping):
        if not isinstance(outlines["counts"], list):
            raise WellcondError(
                f"annotation {annotation.get('id')} has compressed runs: write polygons, or unpack them by pycocotools"
            )
        return run_mask(outlines["counts"], height, width)
    return outline_mask(outlines, height, width)


def target_of(annotations: Sequence[Mapping[str, Any]], image_id: int, height: int, width: int) -> dict[str, Tensor]:
    """Return the targets of torchvision's Mask R-CNN: boxes `(n, 4)` as x₁ y₁ x₂ y₂, labels, masks uint8 `(n, H, W)`.

    Boxes without area are left out as in torchvision's reference; `iscrowd` `(n,)` is for the evaluation.
    """
    kept = [a for a in annotations if a["bbox"][2] > 0 and a["bbox"][3] > 0]
    boxes = torch.tensor([a["bbox"] for a in kept], dtype=torch.float32, device="cpu").reshape(-1, 4)
    boxes[:, 2:] += boxes[:, :2]
    boxes[:, 0::2] = boxes[:, 0::2].clamp(0, width)
    boxes[:, 1::2] = boxes[:, 1::2].clamp(0, height)
    masks = [mask_of(a, height, width) for a in kept]
    return {
        "boxes": boxes,
        "labels": torch.tensor([a["category_id"] for a in kept], dtype=torch.int64, device="cpu"),
        "masks": torch.stack([torch.zeros(height, width, dtype=torch.bool, device="cpu"), *masks])[1:].to(torch.uint8),
        "image_id": torch.tensor(image_id, device="cpu"),
        "iscrowd": torch.tensor([int(a.get("iscrowd", 0)) for a in kept], dtype=torch.int64, device="cpu"),
    }


def read_instances(path: Path) -> dict[str, Any]:
    """Read the JSON file, with its three lists checked to be there."""
    found = read_json(path, "download it again")
    lacking = [
        part for part in ("images", "annotations", "categories") if not isinstance(found, dict) or part not in found
    ]
    if lacking:
        raise WellcondError(f"{str(path)!r} has no {lacking[0]!r}: it is not a COCO file of instances")
    return dict(found)


def write_instances(
    path: Path,
    images: Sequence[Mapping[str, Any]],
    annotations: Sequence[Mapping[str, Any]],
    categories: Mapping[int, str],
) -> None:
    """Write the JSON file, whole or not at all.

    Args:
        path: such as `annotations/instances_train2017.json`.
        images: id, file_name, height and width of each.
        annotations: id, image_id, category_id, bbox (x y w h), area, iscrowd and segmentation of each.
        categories: names of the classes, from 1 on.
    """
    named = [{"id": id, "name": name, "supercategory": ""} for id, name in categories.items()]
    content = {"info": {}, "licenses": [], "images": images, "annotations": annotations, "categories": named}
    write_text(path, json.dumps(content))
