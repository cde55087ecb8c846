"""COCO, or any folder in its format: objects to be found, with boxes and masks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from wellcond.errors import DataError, WellcondError
from wellcond.lab.tasks.base import Batch, Task
from wellcond.lab.tasks.checks import checked_indices, first_of, folder_of
from wellcond.lab.tasks.detection.coco_format import read_instances, target_of
from wellcond.lab.tasks.images.photographs import read_image
from wellcond.lab.tasks.registry import register_task

SOURCE = (
    "https://cocodataset.org/#download: train2017/, val2017/ and annotations/instances_train2017.json and "
    "instances_val2017.json in one folder"
)


@register_task("coco", "objects with boxes and masks, from a folder in COCO's format", SOURCE)
def coco(*, folder: str | Path, train: str = "train2017", test: str = "val2017") -> Task:
    """80 kinds of objects in 118 000 photographs to train on and 5000 to test.

    T.-Y. Lin et al., Microsoft COCO: Common Objects in Context, arXiv 1405.0312. Images are read when they are asked
    for, RGB from 0 to 1, each in its own size: torchvision's detectors resize and normalise. Crowds, and images without
    an object, are left out of the training as in torchvision's reference; the evaluation has them all. Labels are the
    file's own ids, so there are `max id + 1` classes: 91 for COCO.

    Args:
        folder: with one folder of images for each part, and `annotations/instances_….json`.
        train: name of the part to train on.
        test: name of the part to test on.
    """
    path = folder_of(folder, SOURCE)
    parts, classes = [], 0
    for name in (train, test):
        file = first_of(path, (f"annotations/instances_{name}.json",), SOURCE)
        found = read_instances(file)
        classes = max([classes, *(1 + category["id"] for category in found["categories"])])
        parts.append(_part(path / name, found, file, test=name == test))
    counted = f"{len(parts[0])} images to train on, {len(parts[1])} to test; class 0 is the background"
    title = f"objects in photographs of any size, {classes - 1} ids: {counted}"
    shape = {"channels": 3, "size": 0, "classes": classes}
    return Task("coco", "detection", shape, parts[0], parts[1], "ap", title)


@dataclass(frozen=True)
class Scenes:
    """Photographs with their objects."""

    folder: Path
    images: Sequence[Mapping[str, Any]]  # id, file_name, height and width of each
    objects: Mapping[int, Sequence[Mapping[str, Any]]]  # annotations by the id of their image

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, indices: Tensor) -> Batch:
        pixels, targets = [], []
        for image in (self.images[number] for number in checked_indices(indices, len(self)).tolist()):
            path = self.folder / image["file_name"]
            pixels.append(read_image(path, SOURCE).float() / 255)
            height, width = pixels[-1].shape[1:]
            if (height, width) != (image["height"], image["width"]):
                raise DataError(f"{str(path)!r} is {height} × {width}, not as its annotation says: download it again")
            targets.append(target_of(self.objects.get(image["id"], ()), image["id"], height, width))
        return Batch(tuple(pixels), tuple(targets))


def _part(folder: Path, found: Mapping[str, Any], file: Path, *, test: bool) -> Scenes:
    if not folder.is_dir():
        raise WellcondError(f"there is no folder {str(folder)!r}. The data: {SOURCE}")
    objects: dict[int, list[Mapping[str, Any]]] = {}
    try:
        for annotation in found["annotations"]:
            if test or not annotation.get("iscrowd"):
                objects.setdefault(annotation["image_id"], []).append(annotation)
        images = [image for image in found["images"] if test or image["id"] in objects]
    except (KeyError, TypeError, AttributeError) as error:
        raise WellcondError(f"{str(file)!r} is not a COCO file of instances: {error!r}") from error
    return Scenes(folder, images, objects)
