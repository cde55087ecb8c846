"""Photographs on disk, in the folders of torchvision's datasets, which list them; decoded when they are asked for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from wellcond.errors import DataError, WellcondError
from wellcond.lab.tasks.base import Task
from wellcond.lab.tasks.checks import checked_indices, folder_of, library, whole
from wellcond.lab.tasks.images.pixels import ImageExamples, image_task
from wellcond.lab.tasks.registry import register_task

IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # of every model of timm
TEST_CROP = 0.875  # of the shorter side, as most models of ImageNet are tested
DATA_SOURCES = {
    "imagenet": "https://image-net.org (ILSVRC 2012): train/ and val/, one folder for each class in both",
    "flowers": "https://www.robots.ox.ac.uk/~vgg/data/flowers/102: flowers-102/jpg, imagelabels.mat and setid.mat",
    "pets": "https://www.robots.ox.ac.uk/~vgg/data/pets: oxford-iiit-pet/images and oxford-iiit-pet/annotations",
    "food101": "http://data.vision.ee.ethz.ch/cvl/food-101.tar.gz, unpacked: food-101/images and food-101/meta",
}


@dataclass(frozen=True)
class Photographs(ImageExamples):
    """Files and their classes; `size` is `crop` of the shorter side of each, which is cropped at the centre."""

    files: Sequence[Path]
    labels: Tensor
    size: int  # side of the images given out
    source: str  # where the data come from, for an error
    crop: float = TEST_CROP
    mean: tuple[float, ...] = IMAGENET_MEAN
    std: tuple[float, ...] = IMAGENET_STD

    def __post_init__(self) -> None:
        if not isinstance(self.crop, float | int) or isinstance(self.crop, bool) or not 0 < self.crop <= 1:
            raise WellcondError(f"crop is a part of the shorter side, over 0 and up to 1, got {self.crop!r}")

    @property
    def sides(self) -> tuple[int, int]:
        """Return height and width of the images given out."""
        return self.size, self.size

    def plain(self, indices: Tensor) -> Tensor:
        """Return images `(B, 3, size, size)` from 0 to 1, resized and cropped at the centre."""
        functional = library("torchvision.transforms.functional", "timm")
        images = []
        for number in checked_indices(indices, len(self)).tolist():
            image = read_image(self.files[number], self.source)
            image = functional.resize(
                image, round(self.size / self.crop), functional.InterpolationMode.BICUBIC, antialias=True
            )
            images.append(functional.center_crop(image, [self.size, self.size]).float() / 255)
        return torch.stack(images) if images else torch.zeros(0, 3, *self.sides, device="cpu")

    def raw(self, indices: Tensor) -> tuple[list[Tensor], Tensor]:
        """Return images uint8 `(3, H, W)` in the size they have, and labels."""
        chosen = checked_indices(indices, len(self))
        return [read_image(self.files[number], self.source) for number in chosen.tolist()], self.labels[chosen]


@register_task("imagenet", "ImageNet-1k, or any two folders of a folder for each class", DATA_SOURCES["imagenet"])
def imagenet(*, folder: str | Path, size: int = 224, crop: float = TEST_CROP) -> Task:
    """Photographs in `train/<class>/` and `val/<class>/`; classes are numbered in alphabetical order.

    O. Russakovsky et al., ImageNet Large Scale Visual Recognition Challenge, arXiv 1409.0575.

    Args:
        folder: with `train` and `val` (or `test`).
        size: side of the images.
        crop: part of the shorter side that is seen, over 0 and up to 1.
    """
    path = folder_of(folder, DATA_SOURCES["imagenet"])
    found = _folders("imagenet", path, size, crop)
    if found is None:
        raise WellcondError(f"{str(path)!r} has no folders 'train' and 'val'. The data: {DATA_SOURCES['imagenet']}")
    return found


@register_task("flowers", "Oxford's 102 flowers: training and validation against test", DATA_SOURCES["flowers"])
def flowers(*, folder: str | Path, size: int = 224, crop: float = TEST_CROP) -> Task:
    """102 flowers, 2040 photographs to train on (training and validation) and 6149 to test.

    M.-E. Nilsback and A. Zisserman, Automated Flower Classification over a Large Number of Classes (2008).

    Options are those of `imagenet`; the folder is the one above `flowers-102`, or one of `train/<class>/` and
    `test/<class>/`.
    """
    return _torchvision("flowers", "Flowers102", ("train", "val"), folder, size, crop)


@register_task("pets", "Oxford's 37 breeds of cats and dogs", DATA_SOURCES["pets"])
def pets(*, folder: str | Path, size: int = 224, crop: float = TEST_CROP) -> Task:
    """37 breeds, 3680 photographs to train on (trainval) and 3669 to test.

    O. Parkhi, A. Vedaldi, A. Zisserman, C. Jawahar, Cats and Dogs (2012).

    Options are those of `imagenet`; the folder is the one above `oxford-iiit-pet`, or one of `train/<class>/` and
    `test/<class>/`.
    """
    return _torchvision("pets", "OxfordIIITPet", ("trainval",), folder, size, crop)


@register_task("food101", "101 dishes", DATA_SOURCES["food101"])
def food101(*, folder: str | Path, size: int = 224, crop: float = TEST_CROP) -> Task:
    """101 dishes, 75 750 photographs to train on and 25 250 to test.

    L. Bossard, M. Guillaumin, L. Van Gool, Food-101 (2014).

    Options are those of `imagenet`; the folder is the one above `food-101`, or one of `train/<class>/` and
    `test/<class>/`.
    """
    return _torchvision("food101", "Food101", ("train",), folder, size, crop)


def read_image(path: Path, source: str) -> Tensor:
    """Read an image as uint8 `(3, H, W)`, RGB."""
    if not path.is_file():
        raise DataError(f"there is no file {str(path)!r}. The data: {source}")
    try:
        with library("PIL.Image", "timm").open(path) as image:
            return torch.from_numpy(np.array(image.convert("RGB"))).permute(2, 0, 1)
    except Exception as error:  # decoders raise OSError, SyntaxError, ValueError, struct.error…
        reason = " ".join(str(error).split())
        raise DataError(f"{str(path)!r} cannot be read as an image: {reason}. Download it again") from error


def _torchvision(name: str, dataset: str, splits: Sequence[str], folder: str | Path, size: int, crop: float) -> Task:
    path = folder_of(folder, DATA_SOURCES[name])
    found = _folders(name, path, size, crop)
    if found is not None:
        return found
    make = getattr(library("torchvision.datasets", "timm"), dataset)
    try:
        parts = [[make(path, split=split, download=False) for split in group] for group in (splits, ("test",))]
    except (RuntimeError, OSError, ImportError, ValueError, KeyError) as error:  # not found; or a damaged list of files
        reason = " ".join(str(error).split())
        raise WellcondError(f"{str(path)!r} does not hold {name} ({reason}). The data: {DATA_SOURCES[name]}") from error
    return _task(name, [[file for dataset in part for file in _listed(dataset)] for part in parts], size, crop)


def _listed(dataset: Any) -> list[tuple[Any, int]]:
    """Return files and classes: torchvision has no public list, and without one an error cannot name the file."""
    files = getattr(dataset, "_image_files", None) or dataset._images
    return list(zip(files, dataset._labels, strict=True))


def _folders(name: str, path: Path, size: int, crop: float) -> Task | None:
    """Return a task of `train/<class>/` and `val/<class>/` or `test/<class>/`; None if there are no such folders."""
    test = next((path / part for part in ("val", "test") if (path / part).is_dir()), None)
    if test is None or not (path / "train").is_dir():
        return None
    datasets = library("torchvision.datasets", "timm")
    try:
        train, rest = (datasets.ImageFolder(part) for part in (path / "train", test))
    except (OSError, RuntimeError) as error:
        raise WellcondError(f"{str(path)!r}: {' '.join(str(error).split())}. The data: {DATA_SOURCES[name]}") from error
    if train.classes != rest.classes:
        odd = sorted(set(train.classes) ^ set(rest.classes))[0]
        raise WellcondError(f"{str(path)!r} has the class {odd!r} in only one of 'train' and {test.name!r}")
    return _task(name, [train.samples, rest.samples], size, crop)


def _task(name: str, parts: Sequence[Sequence[tuple[Any, int]]], size: int, crop: float) -> Task:
    whole("size", size)
    train, test = (
        Photographs([Path(f) for f, _ in part], torch.tensor([n for _, n in part]), size, DATA_SOURCES[name], crop)
        for part in parts
    )
    classes = 1 + max(int(part.labels.max()) for part in (train, test))
    return image_task(name, name, train, test, channels=3, classes=classes)
