"""CIFAR-10 and CIFAR-100 from their Python files, as images or as sequences of grey pixels."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from wellcond.errors import WellcondError
from wellcond.lab.tasks.base import Task
from wellcond.lab.tasks.checks import choice, first_of, folder_of
from wellcond.lab.tasks.images.pixels import PixelExamples, PixelTokens, image_task, resized
from wellcond.lab.tasks.images.safe_pickle import read_pickle
from wellcond.lab.tasks.registry import register_task

# By the number of classes: the folder that the archive makes, its files to train on and to test, the key of their
# labels, and the mean and deviation of each channel.
FOLDERS = {10: "cifar-10-batches-py", 100: "cifar-100-python"}
SOURCES = {n: f"https://www.cs.toronto.edu/~kriz/cifar-{n}-python.tar.gz, unpacked" for n in FOLDERS}
FILES = {10: (tuple(f"data_batch_{number}" for number in range(1, 6)), ("test_batch",)), 100: (("train",), ("test",))}
LABEL_KEYS = {10: b"labels", 100: b"fine_labels"}
MOMENTS = {
    10: ((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)),
    100: ((0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762)),
}
GREY_WEIGHTS = (0.2989, 0.5870, 0.1140)  # of red, green and blue in TensorFlow's rgb_to_grayscale, as LRA takes it


@register_task("cifar10", "CIFAR-10, 32 × 32 colour, from its Python files", SOURCES[10])
def cifar10(
    *, folder: str | Path, size: int = 32, train_images: int | None = None, test_images: int | None = None
) -> Task:
    """60 000 small photographs of 10 classes, 50 000 to train on.

    A. Krizhevsky, Learning Multiple Layers of Features from Tiny Images (2009).

    Args:
        folder: of `data_batch_1` … `test_batch`, or the one above.
        size: side, resized from 32.
        train_images: only the first so many.
        test_images: the same for the test.
    """
    return _colour_task(10, folder, size, train_images, test_images)


@register_task("cifar100", "CIFAR-100, 32 × 32 colour, from its Python files", SOURCES[100])
def cifar100(
    *, folder: str | Path, size: int = 32, train_images: int | None = None, test_images: int | None = None
) -> Task:
    """60 000 small photographs of 100 classes, 50 000 to train on.

    A. Krizhevsky (2009). Options are those of `cifar10`; the folder is that of `train` and `test`, or the one above.
    """
    return _colour_task(100, folder, size, train_images, test_images)


@register_task("lra-image", "CIFAR-10 in grey, pixel by pixel, as in the Long Range Arena", SOURCES[10])
def lra_image(*, folder: str | Path, held_out: str = "test") -> Task:
    """CIFAR-10 in grey as sequences of 1024 pixels, ids 0 to 255; the last tenth of the training images validates.

    Y. Tay et al., Long Range Arena, arXiv 2011.04006.

    Args:
        folder: of CIFAR-10's Python files.
        held_out: test, or validation, to choose a checkpoint by.
    """
    images, labels = read_cifar(10, folder, test=False)
    cut = len(images) - len(images) // 10
    train, rest = (PixelTokens(_grey(images[part]), labels[part]) for part in (slice(cut), slice(cut, None)))
    if choice("held_out", held_out, ("test", "validation")) == "test":
        images, labels = read_cifar(10, folder, test=True)
        rest = PixelTokens(_grey(images), labels)
    title = f"CIFAR-10 in grey, 1024 pixels: {len(train)} to train on, {len(rest)} for the {held_out}"
    shape = {"tokens": 1024, "vocabulary": 256, "classes": 10}
    return Task("lra-image", "sequence", shape, train, rest, "accuracy", title)


def _colour_task(classes: int, folder: str | Path, size: int, *counts: int | None) -> Task:
    side = resized(size, 32)
    train, test = (
        PixelExamples(*read_cifar(classes, folder, test=part == 1), *MOMENTS[classes], side).first(count)
        for part, count in enumerate(counts)
    )
    return image_task(f"cifar{classes}", f"CIFAR-{classes}", train, test, channels=3, classes=classes)


def read_cifar(classes: int, folder: str | Path, *, test: bool) -> tuple[Tensor, Tensor]:
    """Read images uint8 `(N, 3, 32, 32)` and labels of CIFAR-10 or CIFAR-100; torchvision would run what is in them."""
    key, source = LABEL_KEYS[classes], SOURCES[classes]
    inside = folder_of(folder, source, FOLDERS[classes])
    images, labels = [], []
    for path in [first_of(inside, (name,), source) for name in FILES[classes][test]]:
        found = read_pickle(path)
        pixels, truth = found.get(b"data"), found.get(key)
        if not isinstance(pixels, np.ndarray) or pixels.dtype != np.uint8 or pixels.shape[1:] != (3072,):
            raise WellcondError(f"{str(path)!r} has no b'data' of N × 3072 bytes. The data: {source}")
        valid = isinstance(truth, list) and all(isinstance(label, int) and 0 <= label < classes for label in truth)
        if not isinstance(truth, list) or not valid or len(truth) != len(pixels):
            raise WellcondError(
                f"{str(path)!r} has no {key!r} of {len(pixels)} numbers from 0 to {classes - 1}. The data: {source}"
            )
        images.append(torch.from_numpy(pixels.reshape(-1, 3, 32, 32).copy()))
        labels.append(torch.tensor(truth, dtype=torch.int64))
    return torch.cat(images), torch.cat(labels)


def _grey(images: Tensor) -> Tensor:
    weights = torch.tensor(GREY_WEIGHTS, dtype=torch.float32, device="cpu")[:, None, None]
    # One colour at a time: 50 000 images in float32 would take 600 MB.
    summed = sum(images[:, i].float() * weights[i] for i in range(3))
    return torch.as_tensor(summed).round().to(torch.uint8)
