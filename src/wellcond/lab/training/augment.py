"""Augmentation of training images by timm, as a function of a generator alone."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from wellcond._core.global_generators import restored_generators, seed_generators
from wellcond._core.keyed_random import neutral
from wellcond.errors import WellcondError
from wellcond.lab.recipe.settings import Augment
from wellcond.lab.tasks.base import Batch, Examples, Task
from wellcond.lab.tasks.checks import checked_indices, library
from wellcond.lab.tasks.images.pixels import ImageExamples
from wellcond.lab.training.augment_image import PADDED_PART, image_change, image_erasing


def augmented(
    examples: Examples, indices: Tensor, settings: Augment, generator: torch.Generator, *, classes: int, first: int = 0
) -> Batch:
    """Return a batch of augmented images, in the order of timm's training pipeline.

    Crop, flip, policy or jitter, normalisation, erasing (one rectangle, filled with normal noise), then mixup or cutmix
    of the batch with its reverse: `λ x_i + (1 − λ) x_{B−1−i}`. As in timm, `jitter` stands back for a policy, except
    for one of 3-Augment (Touvron et al. 2022); interpolation is bicubic. Where nothing is asked for, the result is
    `examples[indices]` to the bit; only a resized crop, a policy and jitter round to 256 levels.

    timm draws from the global generators of Python, NumPy and torch. They are seeded for each image by its place and
    one number of `generator`, and are afterwards what they were.

    Args:
        examples: of an image task.
        indices: int64 `(B,)`, with repetitions.
        settings: what is to be done.
        generator: on the CPU; it moves on by one number.
        classes: how many there are.
        first: place of the first image in the whole batch: images do not depend on how a batch is split. Mixing does,
            as each part is mixed by itself.

    Returns:
        Images float32 `(B, C, H, W)`; classes int64 `(B,)`, or probabilities float32 `(B, classes)` of mixed ones.

    >>> from wellcond.lab.training.data_order import generator
    >>> from wellcond.lab.tasks import task
    >>> settings = Augment(crop="padded", flip=0.5, mixup=0.8)
    >>> batch = augmented(task("digits").train, torch.arange(4), settings, generator(0, "augment", 7), classes=10)
    >>> batch.inputs.shape, batch.targets.shape
    (torch.Size([4, 1, 8, 8]), torch.Size([4, 10]))
    """
    if not isinstance(examples, ImageExamples):
        raise WellcondError(f"images of {type(examples).__name__} cannot be augmented: leave the table `augment` out")
    with neutral(), restored_generators():
        indices = checked_indices(indices, len(examples))
        draw = int(torch.randint(2**62, (), generator=generator))
        change, erase = image_change(settings, examples.sides, examples.mean), image_erasing(settings)
        images: list[Tensor] = [torch.empty(0)] * len(indices)
        for place, image in _sources(examples, indices, own_size=settings.crop == "resized"):
            seed_generators("augment", draw, first + place)
            images[place] = erase(examples.normalised(change(image)))
        # One that has no images has no size to stack either.
        inputs = torch.stack(images) if images else examples.normalised(examples.plain(indices))
        targets = examples.labels[indices]
        if settings.mixup or settings.cutmix:
            if len(inputs) % 2:
                raise WellcondError(f"mixup and cutmix need an even number of images, got {len(inputs)}")
            seed_generators("augment", draw, "mix", first)
            inputs, targets = library("timm.data", "timm").Mixup(
                settings.mixup, settings.cutmix, label_smoothing=0.0, num_classes=classes
            )(inputs, targets)
        return Batch(inputs, targets)


def check_augment(settings: Augment, task: Task, batch: int, parts: int = 1) -> None:
    """Raise an error if a task cannot be augmented so.

    `batch` counts the images of an update with their repetitions; `parts` is into how many it is split before it is
    mixed: processes times accumulation.

    >>> from wellcond.lab.tasks import task
    >>> check_augment(Augment(policy="rand-m9-n2"), task("digits"), batch=64)
    >>> check_augment(Augment(repeats=3), task("digits"), batch=64)
    Traceback (most recent call last):
    wellcond.errors.WellcondError: batch is 64; repeats = 3 asks for a multiple of 3: try 66
    """
    if settings == Augment():
        return
    if task.kind != "image":
        raise WellcondError(f"augment is for images, and task {task.name!r} is of kind {task.kind!r}: leave it out")
    if not isinstance(task.train, ImageExamples) or task.shape["channels"] not in (1, 3):
        raise WellcondError(f"the images of task {task.name!r} cannot be augmented: leave the table `augment` out")
    least, most = settings.scale
    if not 0 < least <= most <= 1:
        raise WellcondError(
            f"scale is the smallest and the largest part, 0 < smallest ≤ largest ≤ 1, got {least, most}"
        )
    if settings.crop == "padded" and min(task.train.sides) < PADDED_PART:
        raise WellcondError(f"crop = 'padded' needs images of {PADDED_PART} pixels or more, got {task.train.sides}")
    mixed = bool(settings.mixup or settings.cutmix)
    whole = math.lcm(settings.repeats, 2 * parts if mixed else 1)
    if batch % whole:
        pairs = f" and pairs to mix in each of its parts, of which there are {parts}," if mixed else ""
        near = batch + -batch % whole
        raise WellcondError(
            f"batch is {batch}; repeats = {settings.repeats}{pairs} asks for a multiple of {whole}: try {near}"
        )
    if mixed:
        library("timm.data", "timm")
    with neutral(), restored_generators():
        image_erasing(settings)
        change = image_change(settings, task.train.sides, task.train.mean)
        try:
            change(torch.zeros(task.shape["channels"], *task.train.sides))
        except ValueError as error:  # more operations than there are
            raise WellcondError(f"timm cannot apply the policy {settings.policy!r} ({error})") from error


def _sources(examples: ImageExamples, indices: Tensor, *, own_size: bool) -> Iterator[tuple[int, Tensor]]:
    """Yield places of the batch with their images, each decoded once however often it comes."""
    numbers, which = torch.unique(indices, return_inverse=True)
    plain = None if own_size else examples.plain(numbers)
    for i in range(len(numbers)):
        image = examples.raw(numbers[i : i + 1])[0][0] if plain is None else plain[i]
        for place in (which == i).nonzero().flatten().tolist():
            yield place, image
