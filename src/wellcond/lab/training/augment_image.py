"""Augmentation of one image: crop, flip, policy and jitter; then erasing."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from wellcond.errors import WellcondError
from wellcond.lab.recipe.settings import Augment
from wellcond.lab.tasks.checks import library

PADDED_PART = 8  # the image is moved by up to an eighth of its side
_NUMBER = r"\d+(\.\d+)?"
# timm passes over what it does not know, so that a slip would train without the policy.
POLICY = re.compile(
    rf"rand(-(m\d+|n[1-9]\d*|p{_NUMBER}|mstd{_NUMBER}|mmax\d+|inc[01]|t(weights|3aw?)))*"
    rf"|(originalr?|v0r?|3a)(-mstd{_NUMBER})?"
)


def image_change(settings: Augment, sides: tuple[int, int], mean: tuple[float, ...]) -> Callable[[Tensor], Tensor]:
    """Return the change of an image before it is normalised; it draws from the global generators.

    Crop, flip, policy and jitter are those of `settings`; `sides` are the height and width that an image is to have,
    and a policy fills with the `mean` of each channel.

    Returns:
        A function of an image `(C, H, W)`, uint8 in its own size for a resized crop, else float32 from 0 to 1 with the
        sides given, that gives one of these sides from 0 to 1.

    >>> image_change(Augment(flip=1), (1, 3), (0.5,))(torch.tensor([[[0.0, 0.25, 1.0]]]))
    tensor([[[1.0000, 0.2500, 0.0000]]])
    """
    pictures: list[Callable[[Any], Any]] = []
    if settings.policy:
        pictures.append(_policy(settings.policy, sides, mean))
    if settings.jitter and (not settings.policy or "3a" in settings.policy):
        pictures.append(library("torchvision.transforms", "timm").ColorJitter(*[settings.jitter] * 3))
    resize: Callable[[Any], Any] | None = None
    if settings.crop == "resized":
        resize = library("timm.data.transforms", "timm").RandomResizedCropAndInterpolation(
            sides, settings.scale, interpolation="bicubic"
        )

    def change(image: Tensor) -> Tensor:
        if resize is not None:
            image = _through_pictures(image, [resize])
        elif settings.crop == "padded":
            image = _moved(image)
        if settings.flip and torch.rand(()) < settings.flip:
            image = image.flip(-1)
        return _through_pictures(image, pictures) if pictures else image

    return change


def image_erasing(settings: Augment) -> Callable[[Tensor], Tensor]:
    """Return the change of a normalised image, in place: a rectangle of normal noise (Zhong et al. 2020)."""
    if not settings.erasing:
        return lambda image: image
    made: Callable[[Tensor], Tensor] = library("timm.data.random_erasing", "timm").RandomErasing(
        settings.erasing, mode="pixel", max_count=1, device="cpu"
    )
    return made


def _policy(policy: str, sides: tuple[int, int], mean: tuple[float, ...]) -> Any:
    """Return timm's policy, with the hyperparameters that its `create_transform` gives."""
    if not POLICY.fullmatch(policy):
        raise WellcondError(
            f"timm has no policy {policy!r}: write one as in 'rand-m9-mstd0.5-inc1' (RandAugment) or 'original' "
            "(AutoAugment; also v0 and 3a)"
        )
    timm = library("timm.data.auto_augment", "timm")
    grey = len(mean) == 1
    options = {
        "translate_const": int(min(sides) * 0.45),
        "img_mean": tuple(min(255, round(255 * x)) for x in (mean * 3 if grey else mean)),
        "interpolation": library("timm.data.transforms", "timm").str_to_pil_interp("bicubic"),
    }
    make = timm.rand_augment_transform if policy.startswith("rand") else timm.auto_augment_transform
    made = make(policy, options)
    groups = [made.ops] if policy.startswith("rand") else made.policy
    for operation in (operation for group in groups for operation in group):
        if operation.name.startswith("Posterize"):
            operation.aug_fn = _posterised
    return made


def _posterised(picture: Any, bits: int, **_: Any) -> Any:
    """Keep the first bits of each level. timm asks for none at full strength: black; Pillow 13 makes an error of it."""
    kept = 256 - 2 ** (8 - min(max(bits, 0), 8))
    return picture.point([level & kept for level in range(256)] * len(picture.getbands()))


def _through_pictures(image: Tensor, transforms: list[Callable[[Any], Any]]) -> Tensor:
    """Apply transforms of PIL images, in colour: not every operation takes grey, and none makes colour of it."""
    grey = len(image) == 1
    levels = image if image.dtype == torch.uint8 else (image * 255).round().to(torch.uint8)
    picture = library("PIL.Image", "timm").fromarray(levels.expand(3, -1, -1).permute(1, 2, 0).contiguous().numpy())
    for transform in transforms:
        picture = transform(picture)
    changed = torch.from_numpy(np.array(picture)).permute(2, 0, 1)
    return (changed[:1] if grey else changed).float() / 255


def _moved(image: Tensor) -> Tensor:
    """Cut at a random place out of the image with a black border, as in He et al. 2016."""
    high, wide = image.shape[-2:]
    down, right = high // PADDED_PART, wide // PADDED_PART
    bordered = torch.nn.functional.pad(image, (right, right, down, down))
    top, left = int(torch.randint(2 * down + 1, ())), int(torch.randint(2 * right + 1, ()))
    return bordered[:, top : top + high, left : left + wide]
