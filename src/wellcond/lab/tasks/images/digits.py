"""Handwritten digits that come with scikit-learn: the smallest real images."""

from __future__ import annotations

import torch

from wellcond._core.keyed_random import key
from wellcond.lab.tasks.base import Task
from wellcond.lab.tasks.checks import library, whole
from wellcond.lab.tasks.images.pixels import PixelExamples
from wellcond.lab.tasks.registry import register_task

MEAN, STD = (0.3053,), (0.3760,)  # of all 1797 images on a scale from 0 to 1
TEST_IMAGES = 360


@register_task("digits", "scikit-learn's handwritten digits, 8 × 8")
def digits(*, seed: int = 0) -> Task:
    """1797 digits of 8 × 8 pixels, 0 to 16 each, split 1437 to 360 with every digit in proportion.

    E. Alpaydin and C. Kaynak, Optical Recognition of Handwritten Digits, UCI (1998).

    Args:
        seed: of the split.

    >>> task = digits()
    >>> len(task.train), len(task.test), task.train[torch.tensor([0])].inputs.shape
    (1437, 360, torch.Size([1, 1, 8, 8]))
    """
    whole("seed", seed, least=0)
    loaded = library("sklearn.datasets", "lab").load_digits()
    images = torch.from_numpy(loaded.images).to(torch.uint8)[:, None]
    labels = torch.from_numpy(loaded.target).long()
    split = library("sklearn.model_selection", "lab").train_test_split
    # scikit-learn takes 32 bits.
    parts = split(
        range(len(labels)), test_size=TEST_IMAGES, stratify=labels.numpy(), random_state=key(seed, "digits") % 2**32
    )
    train, test = (PixelExamples(images[part], labels[part], MEAN, STD, peak=16.0) for part in map(sorted, parts))
    counted = f"{len(train)} to train on, {len(test)} to test, stratified by seed {seed}"
    shape, title = {"channels": 1, "size": 8, "classes": 10}, "scikit-learn's handwritten digits, 8 × 8 grey"
    return Task("digits", "image", shape, train, test, "accuracy", f"{title}: {counted}")
