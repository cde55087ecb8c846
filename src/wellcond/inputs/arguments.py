"""Find which arguments a model takes by position, and of which shape, from the model itself; nothing is run."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from torch import nn

from wellcond.errors import WellcondError
from wellcond.inputs.language_models import longest_sequence, vocabulary_size

DEFAULT_TOKENS = 128  # length of a sequence unless told otherwise
DEFAULT_IMAGE_SIZE = (224, 224)  # of an image where the model takes any size and names none
IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
WAY_OUT = (
    "call wc.diagnose(model, batch) in Python with a batch of your own, or return the model from "
    "path/to/file.py:function with an attribute or method `example_inputs`"
)


@dataclass(frozen=True)
class ImageArgument:
    """Images, `(B, C, H, W)`, or videos, `(B, frames, C, H, W)`.

    Args:
        shape: without the batch.
        mean, std: one number per channel; of an image with values from 0 to 1.
    """

    shape: tuple[int, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]


@dataclass(frozen=True)
class TokenIds:
    """Token ids, `(B, length)`.

    Args:
        length: of a sequence.
        vocabulary: how many ids there are.
        special: ids with a meaning of their own (padding, end, image…).
        exact: the model takes this length and no other.
        last: what a sequence must end with.
    """

    length: int
    vocabulary: int
    special: frozenset[int] = frozenset()
    exact: bool = False
    last: int | None = None


@dataclass(frozen=True)
class RealNumbers:
    """Anything else that is real-valued: embedded tokens, sound.

    Args:
        shape: without the batch.
        axis: of the batch.
    """

    shape: tuple[int, ...]
    axis: int = 0


Argument: TypeAlias = ImageArgument | TokenIds | RealNumbers
Arguments: TypeAlias = dict[str | int, Argument]  # by keyword, or by position


def size_pair(size: Any) -> tuple[int, int] | None:
    """Return an image's height and width, however a library writes them."""
    if isinstance(size, int) and size > 0:
        return (size, size)
    if isinstance(size, tuple | list) and len(size) == 2 and all(isinstance(side, int) for side in size):
        return (size[0], size[1])
    return None


def image_argument(
    channels: int, size: tuple[int, int], mean: Any = None, std: Any = None, frames: Any = None
) -> ImageArgument:
    """Return an image argument, normalised by 0.5 and 0.5 where the model names nothing."""

    def per_channel(values: Any) -> tuple[float, ...]:
        values = tuple(values or (0.5,))
        return values if len(values) == channels else (sum(values) / len(values),) * channels

    shape = (channels, *size)
    return ImageArgument((frames, *shape) if isinstance(frames, int) else shape, per_channel(mean), per_channel(std))


def image_size_in(model: nn.Module) -> tuple[int, int] | None:
    """Return `img_size` of the model or of its patch embedding, which is the first part that has one."""
    sizes = (size_pair(getattr(part, "img_size", None)) for part in model.modules())
    return next((size for size in sizes if size is not None), None)


def positional_arguments(model: nn.Module, tokens: int) -> tuple[Argument, ...]:
    """Return what a model of torch, timm, torchvision, or one written like them, takes by position."""
    if isinstance(model, nn.Transformer | nn.TransformerDecoder | nn.TransformerDecoderLayer):
        return (_embedded(model, tokens),) * 2
    if isinstance(model, nn.TransformerEncoder | nn.TransformerEncoderLayer):
        return (_embedded(model, tokens),)
    if isinstance(model, nn.MultiheadAttention):
        axis = 0 if model.batch_first else 1
        return tuple(RealNumbers((tokens, width), axis) for width in (model.embed_dim, model.kdim, model.vdim))
    if (images := _vision(model)) is not None:
        return (images,)
    if (vocabulary := vocabulary_size(model)) is not None:
        return (TokenIds(min(tokens, longest_sequence(model) or sys.maxsize), vocabulary),)
    raise WellcondError(f"the shape of the inputs of {type(model).__name__} cannot be told from it: {WAY_OUT}")


def _embedded(model: nn.Module, tokens: int) -> RealNumbers:
    attention = next((part for part in model.modules() if isinstance(part, nn.MultiheadAttention)), None)
    if attention is None:
        raise WellcondError(f"the width of {type(model).__name__} cannot be told from its layers: {WAY_OUT}")
    return RealNumbers((tokens, attention.embed_dim), 0 if attention.batch_first else 1)


def _vision(model: nn.Module) -> ImageArgument | None:
    """timm, torchvision, and models written like them: one tensor of images."""
    settings: Any = getattr(model, "pretrained_cfg", None) or getattr(model, "default_cfg", None)
    if isinstance(settings, Mapping) and settings.get("input_size"):
        channels, *size = settings["input_size"]
        # The model may have been built for another size or number of channels than its pretrained weights.
        first = dict(model.named_modules()).get(str(settings.get("first_conv")))
        channels = first.in_channels if isinstance(first, nn.Conv2d) else channels
        return image_argument(
            channels, image_size_in(model) or (size[0], size[1]), settings.get("mean"), settings.get("std")
        )
    origins = [kind.__module__ for kind in type(model).__mro__]
    if any(o.startswith("torchvision.models.") and o.count(".") == 2 for o in origins):  # deeper: video, detection…
        return image_argument(3, _torchvision_size(model), *IMAGENET)
    size_found = image_size_in(model)
    first = next((part for part in model.modules() if isinstance(part, nn.Conv2d)), None)
    return image_argument(first.in_channels, size_found) if first is not None and size_found is not None else None


def _torchvision_size(model: Any) -> tuple[int, int]:
    blocks = getattr(model, "blocks", None)
    if blocks is not None and hasattr(blocks[0], "grid_size"):  # MaxViT: a stem and a first block of stride two each
        height, width = blocks[0].grid_size
        return (4 * height, 4 * width)
    return size_pair(getattr(model, "image_size", None)) or DEFAULT_IMAGE_SIZE
